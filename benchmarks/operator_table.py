"""`docs/operators.md` from what `benchmarks.operators` stored."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks import operator_usage

# From the worst: an operator has the verdict of its worst sample.
ORDER = ("crashed", "different", "unexplained", "refused", "dtype", "needs a value", "explained", "equal")
_MEANING = {
    "explained": "a hostile sample gives another value, for a reason that is known",
    "equal": "every sample gives what torch gives, or raises where torch raises",
    "needs a value": "a traced sample gives a Python value, or a result whose size depends on values",
    "dtype": "a sample asks for a dtype that the device does not have, and an error says so",
    "refused": "a sample raises another error, which names the operator: it has no lowering",
    "unexplained": "a sample raises an error that does not name the operator",
    "different": "a sample gives another value, dtype, shape or kind, or a result where torch raises",
    "crashed": "the process ended",
}
_HEADER = """# Operators beside torch

Torch has a database of its operators, with arguments to test each of them (`op_db` in `torch.testing`). This page says
what becomes of them under tpuport, in {dtypes}.
These are {calls:,} calls ({forms}).
Not every operator has every form, and methods and operators were not run for all that have them.

```console
$ python -m benchmarks.operators                                     # all of them, which takes hours; continues
$ python -m benchmarks.operators --only softmax --dtype float32 --again  # one of them
```

Results are compared with torch {torch} on the CPU: values, dtype, shape and kind (a tensor, a bool), also of arguments
that the operator writes to. Where torch itself rounds, the same call in double precision is the referee: an error up
to three times torch's own is equal. Random results are compared by shape and dtype; their distribution is tested
elsewhere. Sparse and quantized samples are left out, because jax has no such arrays.

**64 bits.** Unless jax runs with `jax_enable_x64`, the device has float32 where torch has float64. Here that counts as
equal.
"""


# Since then int32 in place of int64 is different.
_STRICT_SINCE = "2026-11-27"
_LIMITED = """
**Samples.** For {complete:,} results, of an operator in a dtype each, all samples of the database were run:
{by_dtype}.
For the others it was between {fewest} and {most} of each form, or as many as there are; the database has up to some
thousand. `--again` without `--samples` runs them all.
"""
_RUNS = """
**When.** {runs}
"""
_HOSTILE = """The database has few samples with NaN, infinities, zeros of both signs, denormal numbers, empty dimensions
and dimensions of one. So some of its samples were varied, one kind at a time: a third of the elements of each floating
argument replaced, and each size of the first argument made 0 and 1, in all arguments alike, where torch accepts that.
Compared are values, the places of NaN, the sign of zeros that double precision has too, indices, dtypes, and errors.

```console
$ python -m benchmarks.operators --hostile --samples 4    # variations of four samples of each operator; continues
```

These are {calls:,} calls ({forms}) of {dtypes}.
By the worst call of each operator in each dtype: {verdicts}.
An operator is "explained" where it cannot be as in torch, for a reason that is known:
"""
_USED = """
**Operators of models.** {count} of these operators occur in the models of {libraries}, by their names:

{verdicts}
"""
_VALUES = """
**Values and dtypes.** No compiled program can give a Python value (`item`, `equal`) or a result whose size depends on
values (`nonzero`, `unique`, `x[mask]`); outside of compiled code these are equal too. A compiled function that calls
one says so with your line and with what to write instead: `torch.where` in place of a selection, `num_classes=` of
`one_hot`, `output_size=` of `repeat_interleave`. The dtypes that the device lacks are float64, complex128 and uint64
without `jax_enable_x64`, and complex32 always.
"""
_ON_HOST = """
**On the host.** Of what no model of transformers, diffusers and timm calls, torch itself computes these: {names};
derivatives of digamma, `cov` with weights, and of complex numbers {complex_names}, `logaddexp` and `logcumsumexp`. Each
call moves its inputs to the host and the results back, at once or by a callback of the compiled program, also over a
mesh of one process. Gradients are torch's. A program for a described TPU (`tpuport compile`), or of several processes,
cannot call the host: an error names the operator and your line.
"""


def page(
    entries: Sequence[dict[str, Any]], versions: dict[str, str], hostile: Sequence[dict[str, Any]] = ()
) -> str:
    """The page, in Markdown.

    Args:
        hostile: the results of samples with hostile elements and sizes.
    """
    by_operator: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for entry in entries:
        by_operator[entry["operator"]].append(entry)
    verdicts = {name: worst(map(verdict, some)) for name, some in by_operator.items()}
    dtypes = list(dict.fromkeys(entry["dtype"] for entry in entries))
    forms = _calls_by_form(entries)
    header = _HEADER.format(
        dtypes=_listed(dtypes),
        calls=forms.total(),
        forms="; ".join(f"{form}: {count:,}" for form, count in forms.most_common()),
        torch=versions["torch"],
    )
    limits = {entry["samples"] for entry in entries if entry.get("samples")}
    if limits:
        complete = Counter(entry["dtype"] for entry in entries if entry.get("samples") is None)
        header += _LIMITED.format(
            fewest=min(limits),
            most=max(limits),
            complete=complete.total(),
            by_dtype=_listed([f"{count:,} of {dtype}" for dtype, count in complete.items()]) or "none",
        )
    header += _RUNS.format(runs=_runs(entries)) + _usage(verdicts) + _VALUES + _on_host()
    lines = [header, *_summary(entries, verdicts, dtypes), *_exceptions(by_operator, verdicts)]
    return "\n".join([*lines, *_hostile(hostile, by_operator, verdicts)]) + "\n"


def _on_host() -> str:
    from tpuport.compat.operators.complex_functions import ON_HOST
    from tpuport.compat.operators.host_operators import NAMES

    # Overloads of one function are one name, and derivatives of digamma are named in the text.
    names = (name.removeprefix("_").replace("special_", "special.") for name in NAMES if name != "polygamma")
    return _ON_HOST.format(
        names=", ".join(f"`{name}`" for name in names),
        complex_names=", ".join(f"`{name}`" for name in ON_HOST),
    )


def _hostile(
    entries: Sequence[dict[str, Any]],
    by_operator: dict[str, list[dict[str, Any]]],
    verdicts: dict[str, str],
) -> Iterator[str]:
    """What becomes of samples with NaN and the like.

    Args:
        by_operator: results of the database's own samples.
        verdicts: of these.
    """
    if not entries:
        return
    run = Counter(entry["dtype"] for entry in entries)
    samples = {dtype: _numbers_of_samples(entries, dtype) for dtype in run}
    there_are = Counter(entry["dtype"] for some in by_operator.values() for entry in some)
    calls = _calls_by_form(entries)
    counts = Counter(map(verdict, entries))
    yield from ("", "## Hostile arguments", "")
    yield _HOSTILE.format(
        calls=calls.total(),
        forms="; ".join(f"{form}: {count:,}" for form, count in calls.most_common()),
        dtypes=_listed(
            [
                f"{'all' if count == there_are[dtype] else f'{count} of the'} {there_are[dtype]} operators of "
                f"{dtype} ({samples[dtype]})"
                for dtype, count in run.items()
            ]
        ),
        verdicts=", ".join(f"{name}: {counts[name]}" for name in reversed(ORDER) if counts[name]),
    )
    yield from ("| reason | operators |", "| --- | --- |")
    operators: dict[str, set[str]] = defaultdict(set)
    for entry in entries:
        for form in entry["forms"].values():
            for reason in form["reasons"].get("explained", []):
                operators[reason.split(": ", 1)[1]].add(f"`{entry['operator']}`")
    for reason, names in sorted(operators.items()):
        yield f"| {reason} | {', '.join(sorted(names))} |"
    others: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for entry in entries:
        own = verdict(entry)
        if own not in {"equal", "explained", verdicts.get(entry["operator"])}:
            others[entry["operator"], own].append(entry)
    if not others:
        yield from ("", "All others are equal, or as in the table above.")
        return
    yield from ("", "Those that are neither equal nor explained nor as in the table above:", "")
    yield from ("| operator | verdict | dtypes | forms | reason |", "| --- | --- | --- | --- | --- |")
    for (name, own), some in others.items():
        yield _row(name, own, some)


def _numbers_of_samples(entries: Sequence[dict[str, Any]], dtype: str) -> str:
    """Of how many samples of the database an operator's calls in a dtype are variations."""
    limits = {entry["samples"] for entry in entries if entry["dtype"] == dtype if entry.get("samples")}
    listed = _listed([str(limit) for limit in sorted(limits)]) or "all"
    return f"{listed} sample{'' if listed == '1' else 's'} of each"


def _runs(entries: Sequence[dict[str, Any]]) -> str:
    """How many results are of which day."""
    days = Counter(entry["date"] for entry in entries)
    parts = [f"{count:,} are of {day}" for day, count in sorted(days.items())]
    text = f"Of {len(entries):,} results, of an operator in a dtype each, {_listed(parts)}."
    older = [entry for entry in entries if entry["date"] < _STRICT_SINCE]
    if older:
        count = f"{len(older):,}"
        text += f"\nThe {count} of before {_STRICT_SINCE} are by a comparison that took integers of 32 bits for 64."
    return text


def _usage(verdicts: dict[str, str]) -> str:
    used = operator_usage.occurring(verdicts)
    versions = operator_usage.stored()["versions"]
    lines = []
    for name in (name for name in reversed(ORDER) if name != "explained"):
        of_verdict = sorted(operator for operator in used if verdicts[operator] == name)
        listed = ", ".join(f"`{operator}`" for operator in of_verdict) if name != "equal" else ""
        lines.append(f"- {name}: {len(of_verdict)}{': ' if listed else ''}{listed}")
    libraries = _listed([f"{name} {version}" for name, version in versions.items()])
    return _USED.format(count=len(used), libraries=libraries, verdicts="\n".join(lines))


def verdict(entry: dict[str, Any]) -> str:
    """An operator's verdict in one dtype."""
    if "crashed" in entry:
        return "crashed"
    return worst(name for form in entry["forms"].values() for name in form["counts"])


def worst(verdicts: Iterator[str]) -> str:
    """The worst of several verdicts."""
    present = set(verdicts)
    return next((name for name in ORDER if name in present), "equal")


def _calls_by_form(entries: Sequence[dict[str, Any]]) -> Counter[str]:
    calls: Counter[str] = Counter()
    for entry in entries:
        for name, form in entry["forms"].items():
            calls[name] += sum(form["counts"].values())
    return calls


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def _summary(
    entries: Sequence[dict[str, Any]], verdicts: dict[str, str], dtypes: Sequence[str]
) -> Iterator[str]:
    counts = {
        dtype: Counter(verdict(entry) for entry in entries if entry["dtype"] == dtype) for dtype in dtypes
    }
    total = Counter(verdicts.values())
    yield f"| operators | {' | '.join(dtypes)} | together | meaning |"
    yield f"| --- |{' ---: |' * (len(dtypes) + 1)} --- |"
    for name in (name for name in reversed(ORDER) if name != "explained"):
        cells = [str(counts[dtype][name]) for dtype in dtypes]
        yield f"| {name} | {' | '.join(cells)} | {total[name]} | {_MEANING[name]} |"
    yield ""


def _exceptions(by_operator: dict[str, list[dict[str, Any]]], verdicts: dict[str, str]) -> Iterator[str]:
    yield "## Those that are not always equal"
    yield ""
    yield "| operator | verdict | dtypes | forms | reason |"
    yield "| --- | --- | --- | --- | --- |"
    order = sorted(verdicts, key=lambda name: (ORDER.index(verdicts[name]), name))
    for name in order:
        if verdicts[name] != "equal":
            yield _row(name, verdicts[name], by_operator[name])
    yield ""
    yield "## Always equal"
    yield ""
    yield ", ".join(f"`{name}`" for name in order if verdicts[name] == "equal")


def _row(name: str, its_verdict: str, entries: Sequence[dict[str, Any]]) -> str:
    concerned = [entry for entry in entries if verdict(entry) == its_verdict]
    dtypes = ", ".join(entry["dtype"] for entry in concerned)
    forms = [
        form
        for entry in concerned
        for form, result in entry["forms"].items()
        if its_verdict in result["counts"]
    ]
    cells = [
        f"`{name}`",
        its_verdict,
        dtypes,
        "; ".join(dict.fromkeys(forms)),
        _reason(concerned, its_verdict),
    ]
    return f"| {' | '.join(cells)} |"


def _reason(entries: Sequence[dict[str, Any]], its_verdict: str) -> str:
    if "crashed" in entries[0]:
        return _cell(entries[0]["crashed"])
    for form in entries[0]["forms"].values():
        for reason in form["reasons"].get(its_verdict, []):
            return _cell(reason.split(": ", 1)[1])
    return ""


def _cell(text: str) -> str:
    """Text of one line that Markdown shows as it is."""
    short = " ".join(text.split())[:160].replace("|", "\\|").replace("`", "'")
    return f"`{short}`"
