"""`docs/coverage.md` from what `benchmarks.coverage` stored."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from benchmarks import coverage_unbuilt

Record = dict[str, Any]

# The checks of a record with their titles, in the order of columns.
CHECKS = {
    "forward": "forward",
    "mesh": "dp2 x sp2 x tp2",
    "generate": "generate",
    "generate_batch": "padded batch",
    "generate_video": "videos",
    "generate_audio": "audio",
    "generate_mesh": "dp2 x tp2",
    "streamed": "streamed",
    "topology": "TPU program",
}
# From the worst.
ORDER = ("different", "raw error", "crashed", "refused", "not compared", "torch fails", "equal")
_MEANING = {
    "equal": "what torch gives, as far as float64 can tell: the error is that of rounding; the same tokens",
    "torch fails": "torch does not run it with the arguments that are tried here",
    "not compared": "the result depends on random numbers; its shapes are torch's",
    "refused": "a `PortError` says why, and what to do",
    "crashed": "the process ended, or took too long",
    "raw error": "an error that is not tpuport's",
    "different": "another result than torch's",
}
_HEADER = """# Models beside torch

The {exported_count} model classes that transformers {transformers} and diffusers {diffusers} export, tiny and with
random weights, through tpuport and through torch {torch} on the CPU, in float32: {count} of them are compared, and
[the last section](#not-run) says why {unbuilt_count} are not.{older}

```console
$ python -m benchmarks.coverage                                    # all of them, which takes hours; continues
$ python -m benchmarks.coverage --only 'transformers:Llama*' --again
```

- **forward**: `tpuport.compile(model)` with each of several calls. Float64 is the referee: a result that is
  farther from it than torch's by more than rounding is different. A model that no program can compute, because a
  length follows from what it computes, is called itself: its code runs on the host, over compiled calls of its
  modules, which a warning says, and the last column.
- **dp2 x sp2 x tp2**: the same on eight devices.
- **generate**: `model.generate` of the ported model, greedy, {new_tokens} tokens, one prompt. Where no program can
  repeat a model's steps, it is transformers' own loop over compiled calls (docs/generate.md), which a warning says.
- **padded batch**: the same for two prompts, one of them padded on the left if the class takes a mask. Classes that
  take images have two in each prompt, of several sizes where they take such; the logits of each token are compared
  too, and other images have to change them. **videos** and **audio** are the same with one of those in each prompt,
  **dp2 x tp2** is the same on four devices.
- **streamed**: what `model.generate` gives a streamer for one prompt: the same parts, in the same order, as
  transformers' own, and whether it is told of the end.
- An empty cell is a check that does not apply: of a class that does not generate, or has nothing but `generate`; of
  videos and audio where it takes none; of four devices where it takes text alone.
- **new programs**: how many programs the second call of the same shapes compiled, which should be none. "Once": a
  model that keeps something of its first call, as Qwen2-VL the offset of positions, has another state from then on;
  the third call compiled nothing.
- Classes that read images with a model of timm, or sound with torchaudio, run where these are installed apart:
  `pip install --target DIRECTORY --no-deps timm torchvision`, and `PYTHONPATH=DIRECTORY` before the command. Classes
  without a `forward` only generate.
- **tpuport of**: the day of the last change of the package that the row was made with, and the versions of torch and
  of the library where they were others than above. A row without a day is from before these were recorded.
- **lint**: whether `tpuport lint` expects the class to trace, without running it and without the functions that patches
  replace. "Some calls": only those that the reason names stop, with an optional argument for instance, or a step of
  one's own loop that passes no mask. "Stops": it reads the code for all options of the class; a model with
  other options may not reach the line that it names.

`tpuport doctor --model llama` prints the rows of a type, and `tpuport.port` warns of a class that is known to fail.
"""
_WAITING = "it has not been run yet"
_CLASS_GROUPS = (
    (re.compile(r"ForCausalLM|LMHeadModel"), "Causal language models"),
    (
        re.compile(r"ConditionalGeneration|Seq2SeqLM|SpeechSeq2Seq|ImageTextToText"),
        "Models that generate from more than text",
    ),
    (re.compile(r""), "Other models of transformers"),
)  # fmt: skip


def results(records: Iterable[Record], versions: dict[str, str], modules: dict[str, str]) -> dict[str, Any]:
    """What `tpuport.libraries.model_results` reads: the verdicts without their measures.

    Args:
        modules: by class the module that defines it, below its library.
    """
    models = []
    for record in records:
        library, _, class_name = record["name"].partition(":")
        verdicts = {check: verdict(record, check) for check in CHECKS if verdict(record, check)}
        version = record.get("made_with", {}).get(library, versions[library])
        models.append(
            {
                "library": library,
                "class_name": class_name,
                "module": modules.get(class_name, ""),
                "verdicts": verdicts,
                "reason": _worst_reason(record),
                **({"version": version} if version != versions[library] else {}),
            }
        )
    return {"versions": {name: versions[name] for name in ("transformers", "diffusers")}, "models": models}


def page(
    records: Sequence[Record], versions: dict[str, str], new_tokens: int, waiting: Sequence[str] = ()
) -> str:
    """The page, in Markdown.

    Args:
        waiting: names of classes without a record.
    """
    unbuilt = [record for record in records if record["status"] == "not built"]
    built = [record for record in records if record["status"] != "not built"]
    counts = {
        "count": len(built),
        "unbuilt_count": len(unbuilt) + len(waiting),
        "exported_count": len(records) + len(waiting),
    }
    lines = [_HEADER.format(new_tokens=new_tokens, older=_older(built, versions), **counts, **versions)]
    groups: dict[str, list[Record]] = {}
    for record in sorted(built, key=lambda record: record["name"]):
        groups.setdefault(group(record["name"]), []).append(record)
    for title in sorted(groups, key=_group_order):
        lines += [f"## {title}", "", *_counts(groups[title]), "", *_rows(groups[title], versions), ""]
    lines += ["## Not run", "", *_unbuilt_rows(unbuilt, waiting)]
    return "\n".join(lines).rstrip() + "\n"


def _older(records: Sequence[Record], versions: dict[str, str]) -> str:
    """How many were compared with other versions of the libraries, if any."""
    others = Counter(
        f"{library} {version}"
        for record in records
        for library, version in record.get("made_with", {}).items()
        if versions.get(library, version) != version
    )
    return "".join(f" {count} of them were compared with {other}." for other, count in sorted(others.items()))


def group(name: str) -> str:
    """The section of a model."""
    library, _, class_name = name.partition(":")
    if library == "diffusers":
        return "Models of diffusers"
    return next(title for pattern, title in _CLASS_GROUPS if pattern.search(class_name))


def _group_order(title: str) -> int:
    titles = [known for _, known in _CLASS_GROUPS]
    return titles.index(title) if title in titles else len(titles)


def verdict(record: Record, check: str) -> str:
    """The verdict of a check; "" if it does not apply, and "crashed" if the process ended before it."""
    if check in record:
        return str(record[check]["verdict"])
    if record["status"] == "crashed" and check == "forward":
        return "crashed"
    return ""


def _counts(records: Sequence[Record]) -> Iterator[str]:
    checks = [check for check in CHECKS if any(verdict(record, check) for record in records)]
    yield f"| models | {' | '.join(CHECKS[check] for check in checks)} | meaning |"
    yield f"| --- |{' ---: |' * len(checks)} --- |"
    for name in reversed(ORDER):
        counts = [Counter(verdict(record, check) for record in records)[name] for check in checks]
        if any(counts):
            yield f"| {name} | {' | '.join(map(str, counts))} | {_MEANING[name]} |"


def _rows(records: Sequence[Record], versions: dict[str, str]) -> Iterator[str]:
    checks = [check for check in CHECKS if any(verdict(record, check) for record in records)]
    titles = " | ".join(CHECKS[check] for check in checks)
    yield f"| class | {titles} | largest error | new programs | tpuport of | lint | reason |"
    yield f"| --- |{' --- |' * len(checks)} ---: | ---: | --- | --- | --- |"
    for record in records:
        cells = [verdict(record, check) for check in checks]
        error = record.get("forward", {}).get("error")
        yield (
            f"| `{record['name'].partition(':')[2]}` | {' | '.join(cells)} | {'' if error is None else f'{error:.0e}'} "
            f"| {new_programs(record)} | {age(record, versions)} "
            f"| {record.get('lint', {}).get('verdict', '')} "
            f"| {_cell(_worst_reason(record) or record.get('lint', {}).get('reason', ''))} |"
        )


def new_programs(record: Record) -> str:
    """How many programs calls compiled that had been called before; "" where that is not known."""
    forward = record.get("forward", {})
    second, third = forward.get("recompilations"), forward.get("later_recompilations")
    if second and third == 0:
        return f"{second}, once"
    if third:
        return f"{second + third}, again and again"
    return "" if second is None else str(second)


def age(record: Record, versions: dict[str, str]) -> str:
    """The day of the package, and the versions of libraries that are not those of the page."""
    made_with = record.get("made_with", {})
    others = [
        f"{name} {version}" for name, version in made_with.items() if versions.get(name, version) != version
    ]
    return ", ".join([made_with.get("tpuport", ""), *others])


def _worst_reason(record: Record) -> str:
    """Why a model is not equal in everything, or not one program: the reason of its worst check, or ""."""
    reasons = {
        record[check]["verdict"]: record[check].get("reason", "")
        for check in reversed(CHECKS)
        if check in record
    }
    if record["status"] == "crashed":
        reasons["crashed"] = record["reason"]
    worst = next((name for name in ORDER if name in reasons and name != "equal"), None)
    if worst is None:
        # Of a model that runs on the host.
        return " ".join(record.get("forward", {}).get("reason", "").split())
    return " ".join(reasons[worst].split())


def _unbuilt_rows(records: Sequence[Record], waiting: Sequence[str]) -> Iterator[str]:
    yield "| reason | classes |"
    yield "| --- | --- |"
    classes: dict[str, list[str]] = {}
    for record in records:
        class_name = record["name"].partition(":")[2]
        reason = coverage_unbuilt.REASONS.get(class_name) or _cell(record["reason"])
        classes.setdefault(reason, []).append(class_name)
    for name in waiting:
        classes.setdefault(_WAITING, []).append(name.partition(":")[2])
    for reason, names in sorted(classes.items()):
        yield f"| {reason} | {', '.join(f'`{name}`' for name in sorted(names))} |"


def _cell(text: str) -> str:
    """Text of one line that Markdown shows as it is."""
    if not text:
        return ""
    short = " ".join(text.split())[:200].replace("|", "\\|").replace("`", "'")
    return f"`{short}`"
