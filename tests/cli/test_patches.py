"""`tpuport patches` as a user runs it, with a distribution that brings patches of its own."""

import json
import os
import subprocess
import sys
import textwrap
from typing import Any

import pytest

PACKAGE = """
    from tpuport.patches import Patch

    def everything():
        return [
            Patch("fits", "clilib:f", "It reads a value.", "clilib_patches:f", ({digest!r},)),
            Patch("gone", "clilib.more:g", "[red] is no markup.", "clilib_patches:f", (f"{'0' * 8}-{'0' * 32}",)),
            Patch("newer", "clilib.later:g", "Why not.", "clilib_patches:f", (f"{'0' * 8}-{'0' * 32}",)),
            Patch("broken", "clilib.broken:g", "Why not.", "clilib_patches:f", (f"{'0' * 8}-{'0' * 32}",)),
            Patch("absent", "nowhere:g", "Why not.", "clilib_patches:f", (f"{'0' * 8}-{'0' * 32}",)),
        ]

    def f(x):
        return x
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Any:
    """A folder with a library and a distribution that patches it."""
    from tpuport.patches import digests

    root = tmp_path_factory.mktemp("site")
    (root / "clilib").mkdir()
    (root / "clilib/__init__.py").write_text("def f(x):\n    return float(x)\n")
    (root / "clilib/more.py").write_text("h = 1\n")
    (root / "clilib/broken.py").write_text("import no_such_dependency\n")
    sys.path.insert(0, str(root))
    try:
        digest = digests.digest("clilib:f")
    finally:
        sys.path.remove(str(root))
        sys.modules.pop("clilib", None)
    (root / "clilib_patches.py").write_text(textwrap.dedent(PACKAGE).replace("{digest!r}", repr(digest)))
    for name in ("clilib", "clilib-patches"):
        info = root / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tpuport.patches]\nclilib = clilib_patches:everything\n")
    return root


def run(site, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    code = (
        "import sys, tpuport.cli\n"
        "sys.argv[0] = 'tpuport'\n"
        "try:\n    sys.exit(tpuport.cli.main())\n"
        "finally:\n    print(*sorted({'torch', 'diffusers', 'clilib'} & set(sys.modules)), file=sys.stderr)\n"
    )
    inherited = {key: value for key, value in os.environ.items() if key != "TPUPORT_PATCHES"}
    environment = {**inherited, "PYTHONPATH": str(site), "COLUMNS": "200", **environment}
    return subprocess.run(
        [sys.executable, "-c", code, "patches", *arguments],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )


def test_the_list_imports_nothing_that_is_patched(site):
    done = run(site)
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip() == ""
    rows = {line.split("│")[1].strip(): line for line in done.stdout.splitlines() if line.startswith("│")}
    assert "waiting for import" in rows["fits"]
    assert "clilib 1.0" in rows["fits"]
    assert "clilib-patches" in rows["fits"]
    assert "not installed" in rows["absent"]
    assert "[red] is no markup." in rows["gone"]


def test_in_a_narrow_terminal_no_reason_is_broken_into_words(site):
    lines = run(site, COLUMNS="80").stdout.splitlines()
    row = lines.index("gone - waiting for import")
    assert lines[row + 1].strip() == "for clilib 1.0; places: 0; from clilib-patches"
    assert lines[row + 2].strip() == "[red] is no markup."


def test_json_and_check(site):
    ours = {status["name"]: status for status in json.loads(run(site, "--format", "json").stdout)["patches"]}
    assert {name: ours[name]["state"] for name in ("fits", "gone", "absent")} == {
        "fits": "waiting for import", "gone": "waiting for import", "absent": "not installed",
    }  # fmt: skip
    done = run(site, "--format", "json", TPUPORT_PATCHES="off")
    assert {status["state"] for status in json.loads(done.stdout)["patches"]} == {"off"}


@pytest.mark.slow
def test_check_imports_the_targets_and_compares(site):
    done = run(site, "--check", "--format", "json")
    statuses = {status["name"]: status for status in json.loads(done.stdout)["patches"]}
    assert statuses.pop("gone")["state"] == "target missing"
    assert "clilib 1.0 has no module clilib.later" in statuses.pop("newer")["detail"]
    broken = statuses.pop("broken")
    assert broken["state"] == "failed"
    assert "no_such_dependency" in broken["detail"]
    assert done.returncode == 1
    fits = statuses.pop("fits")
    assert (fits["state"], fits["places"]) == ("applied", ["clilib:f"])
    assert statuses.pop("absent")["state"] == "not installed"
    assert {status["state"] for status in statuses.values()} <= {"applied"}, statuses


def test_wrong_usage(site):
    assert run(site, "--format", "yaml").returncode == 2
    done = run(site, TPUPORT_PATCHES="perhaps")
    assert done.returncode == 1
    assert "TPUPORT_PATCHES is 'perhaps'" in done.stderr
