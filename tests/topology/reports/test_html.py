"""The page in a real browser: at a phone's width and at a desk's, light and dark.

Chromium is driven over its own protocol on a pipe. It is found as $CHROMIUM, or by name on the path.
"""

import json
import os
import re
import select
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tpuport.topology.reports import document
from tpuport.topology.reports.html import page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-extensions", "--remote-debugging-pipe",
)  # fmt: skip
PATIENCE = 60.0
SCREENSHOTS = os.environ.get("TPUPORT_SCREENSHOTS")  # a directory, for who wants to look


def executable() -> str | None:
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page of a headless Chromium."""

    def __init__(self, profile: str) -> None:
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # The protocol is on descriptors 3 and 4; a shell puts the pipes there.
        there = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        flags = [*FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            ["bash", "-c", there, "bash", executable() or "", *flags],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._rest, self._number, self._session = b"", 0, None
        self.events: list[dict[str, Any]] = []
        [target] = [one for one in self.call("Target.getTargets")["targetInfos"] if one["type"] == "page"]
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            assert select.select([self._in], [], [], PATIENCE)[0], "the browser does not answer"
            read = os.read(self._in, 1 << 16)
            assert read, "the browser has died"
            self._rest += read
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def open(self, file: Path, width: int, scheme: str = "light") -> None:
        self.events.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=800,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=file.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())
        assert self.read("innerWidth") == width

    def read(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def of(self, *methods: str) -> list[dict[str, Any]]:
        return [event["params"] for event in self.events if event.get("method") in methods]

    def screenshot(self, file: Path) -> None:
        import base64

        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        os.close(self._out)
        os.close(self._in)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if executable() is None:
        pytest.skip("there is no Chromium here")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(profile)
        yield browser
        browser.close()


@pytest.fixture
def file(results, splits, tmp_path: Path) -> Path:
    made = tmp_path / "page.html"
    made.write_text(page(document(results, splits)), encoding="utf-8")
    return made


@pytest.mark.parametrize(
    ("width", "scheme"), [(320, "light"), (390, "light"), (390, "dark"), (1280, "light"), (1280, "dark")]
)
def test_nothing_is_wider_than_the_screen(browser: Browser, file: Path, width: int, scheme: str) -> None:
    browser.open(file, width, scheme)
    if SCREENSHOTS:
        browser.screenshot(Path(SCREENSHOTS) / f"{width}-{scheme}.png")
    assert browser.read("document.documentElement.scrollWidth") <= width
    assert browser.read("document.body.scrollWidth") <= width
    tables = browser.read(
        "[...document.querySelectorAll('table')].map(t => { const box = t.parentElement;"
        " return [t.scrollWidth > box.clientWidth, getComputedStyle(box).overflowX] })"
    )
    assert len(tables) >= 7
    assert all(overflow == "auto" for _, overflow in tables)
    if width < 500:
        assert any(wider for wider, _ in tables), "so that the boxes are tried"
    outside = (
        "[...document.querySelectorAll('main *, header *')].filter(e => !e.closest('.scroll, svg, pre') &&"
        " e.getBoundingClientRect().right > innerWidth + 0.5).map(e => e.outerHTML.slice(0, 80))"
    )
    assert browser.read(outside) == []
    small = "[...document.querySelectorAll('.plot text')].map(e => e.getBoundingClientRect().height)"
    assert min(browser.read(small)) > 8, "the plot's labels can be read"


def test_nothing_is_fetched_nothing_runs_and_nothing_is_complained_of(browser: Browser, file: Path) -> None:
    browser.open(file, 1280)
    asked = {event["request"]["url"] for event in browser.of("Network.requestWillBeSent")}
    assert asked == {file.as_uri()}
    assert browser.of("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown") == []
    assert browser.read("document.querySelectorAll('script, img, link, iframe, object').length") == 0
    assert "ran" not in browser.read("document.title").split()


def test_a_fetch_and_an_error_would_be_seen(browser: Browser, tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text('<img src="missing.png"><script>console.error("x"); throw Error("y")</script>')
    browser.open(bad, 1280)
    assert len({event["request"]["url"] for event in browser.of("Network.requestWillBeSent")}) == 2
    assert browser.of("Runtime.consoleAPICalled")
    assert browser.of("Runtime.exceptionThrown")


@pytest.mark.parametrize("width", [390, 1280])
def test_bars_are_as_wide_as_their_figures(browser: Browser, file: Path, results, width: int) -> None:
    browser.open(file, width)
    bars = browser.read(
        "[...document.querySelectorAll('.bar')].map(bar => ({width: bar.getBoundingClientRect().width,"
        " parts: [...bar.querySelectorAll('span')].map(s => s.getBoundingClientRect().width),"
        " limit: bar.querySelector('.limit') ? bar.querySelector('.limit').getBoundingClientRect().right"
        " - bar.getBoundingClientRect().left : null}))"
    )
    reports = [result.report for result in results if result.report is not None]
    assert len(bars) == len(reports) == 2
    names = ("weights", "cache", "arguments", "outputs", "temporaries", "code")
    for bar, report in zip(bars, reports, strict=True):
        memory = report["memory"]
        whole = max(memory["capacity"], sum(memory[name] for name in names))
        expected = [memory[name] / whole * bar["width"] for name in names]
        assert bar["parts"] == pytest.approx(expected, abs=0.3)
        if report["fits"]:
            assert bar["limit"] is None
        else:
            assert bar["limit"] == pytest.approx(memory["capacity"] / whole * bar["width"], abs=0.3)
    tracks = browser.read(
        "[...document.querySelectorAll('.time:not(.kinds) .track')].map(t =>"
        " t.firstChild.getBoundingClientRect().width / t.getBoundingClientRect().width)"
    )
    estimate = reports[0]["estimate"]
    longest = max(estimate[name] for name in ("compute", "memory", "interconnect"))
    assert tracks == pytest.approx(
        [estimate[name] / longest for name in ("compute", "memory", "interconnect")], abs=0.02
    )


@pytest.mark.parametrize("width", [390, 1280])
def test_the_bars_of_the_profile_are_as_wide_as_their_seconds(
    browser: Browser, file: Path, results, width: int
) -> None:
    browser.open(file, width)
    charts = {".kinds .track": 0.002, ".flame": 0.003, ".lane": 0.0006}
    for chart, whole in charts.items():
        bars = browser.read(
            f"[...document.querySelectorAll('{chart} > span')].map(bar => [Number(bar.dataset.seconds),"
            " bar.getBoundingClientRect().width / bar.parentElement.getBoundingClientRect().width,"
            " bar.getBoundingClientRect().right - bar.parentElement.getBoundingClientRect().right])"
        )
        assert len(bars) >= 3, chart
        for seconds, share, beyond in bars:
            assert share == pytest.approx(seconds / whole, abs=0.004), chart
            assert beyond < 0.5, chart


def test_the_point_is_on_the_roof_where_the_figures_put_it(browser: Browser, file: Path, results) -> None:
    browser.open(file, 1280)
    costs, estimate = results[0].report["costs"], results[0].report["estimate"]
    point = browser.read(
        "(() => { const c = document.querySelector('.point'); return [c.cx.baseVal.value, c.cy.baseVal.value] })()"
    )
    roof = browser.read("[...document.querySelector('.roof').points].map(p => [p.x, p.y])")
    (x0, y0), (x1, y1), _ = roof
    # Bound by memory: the point is on the slope, to the left of the ridge.
    assert x0 < point[0] < x1
    assert point[1] == pytest.approx(y0 + (point[0] - x0) / (x1 - x0) * (y1 - y0), abs=0.1)
    said = browser.read("({...document.querySelector('.plot').dataset})")
    assert float(said["intensity"]) == pytest.approx(costs["flops"] / costs["hbm_bytes"], rel=1e-5)
    assert float(said["peak"]) == pytest.approx(costs["flops"] / estimate["compute"], rel=1e-5)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_paper(browser: Browser, file: Path, scheme: str) -> None:
    """WCAG AA: a contrast of 4.5 for each colour of text that the page uses."""
    browser.open(file, 1280, scheme)
    pairs = browser.read(
        "[...document.querySelectorAll('p, td, th, h2, h3, h4, dt, dd, .badge, .rule, a, summary')].map(e => {"
        " let paper = e; while (getComputedStyle(paper).backgroundColor === 'rgba(0, 0, 0, 0)')"
        " paper = paper.parentElement;"
        " return [getComputedStyle(e).color, getComputedStyle(paper).backgroundColor] })"
    )
    seen = {tuple(pair) for pair in pairs}
    assert len(seen) > 4
    for ink, paper in seen:
        assert contrast(ink, paper) >= 4.5, (ink, paper)


def contrast(first: str, second: str) -> float:
    dark, light = sorted(map(luminance, (first, second)))
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


class Elements(HTMLParser):
    """Counts elements, and keeps text and where attributes lead."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.leads: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.leads += [value or "" for name, value in attrs if name in ("src", "href")]
        assert not [name for name, _ in attrs if name.startswith("on")]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_what_comes_from_the_users_code_is_text(file: Path, hostile: str) -> None:
    found = Elements()
    found.feed(file.read_text(encoding="utf-8"))
    assert not {"script", "img"} & set(found.tags)
    assert all(re.fullmatch(r"#result-\d", lead) for lead in found.leads)
    assert hostile in found.text
    assert found.text.count(hostile) >= 6, "in the model, inputs, target, message, code and traceback"


def test_every_text_of_a_report_is_escaped(results, splits, hostile: str) -> None:
    count = 0

    def soiled(value: Any, key: str = "") -> Any:
        nonlocal count
        if isinstance(value, dict):
            return {name: soiled(one, name) for name, one in value.items()}
        if isinstance(value, list):
            return [soiled(one, key) for one in value]
        # What other parts of a document are found by.
        if not isinstance(value, str) or key in ("generation", "entry", "calls"):
            return value
        count += 1
        return f"{hostile}{value}"

    found = Elements()
    found.feed(page(soiled(document(results, splits))))
    assert count > 80
    assert not {"script", "img"} & set(found.tags)


def test_the_page_says_what_the_report_does(file: Path) -> None:
    found = Elements()
    found.feed(file.read_text(encoding="utf-8"))
    for said in (
        "10.12 of 15.75 GiB a chip",
        "21.50 of 15.75 GiB a chip",
        "cannot be compiled",
        "TPC001",
        "LlamaAttention.forward",
        "14,815 tokens",
        "estimate",
        "TPU101",
        "model.layers (32 blocks)",
        "3.00 ms, 1.39 x the roofline",
        "One round of a loop of 4",
        "600 µs, of which the core waits 150 µs",
        "down_proj",
    ):
        assert said in found.text, said


def test_a_page_is_the_same_for_two_runs(results, splits) -> None:
    assert page(document(results, splits)) == page(document(results, splits))


def test_a_traceback_is_shown_if_there_is_one(results, quiet_results) -> None:
    assert "RESOURCE_EXHAUSTED" not in page(document(quiet_results))
    assert "RESOURCE_EXHAUSTED" in page(document(results))


def test_backticks_are_code(results) -> None:
    results[2].failure["remedy"] = "`torch.where` in place of `<if>`"
    assert "<code>torch.where</code> in place of <code>&lt;if&gt;</code>" in page(document(results))
