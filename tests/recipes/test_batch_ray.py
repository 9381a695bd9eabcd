"""The batch recipe on a local Ray cluster of two nodes, where Ray is installed (see the recipe's README)."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Kills the first worker that has done a chunk, once.
CLUSTER = """
import os, signal, subprocess, sys, time
from pathlib import Path
from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
for _ in range(2):
    cluster.add_node(num_cpus=1)
cluster.wait_for_nodes()
output, *words = sys.argv[1:]
command = [sys.executable, "-m", "recipes.batch.ray_data", "--address", cluster.address, "--output", output, *words]
job = subprocess.Popen(command)
while job.poll() is None and not list(Path(output).glob("part-*")):
    time.sleep(0.05)
lines = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout.splitlines()
workers = [int(line.split()[0]) for line in lines if line.split()[1].startswith("ray::MapWorker")]
os.kill(workers[0], signal.SIGKILL)
print(f"killed 1 of {len(workers)}")
code = job.wait()
cluster.shutdown()
sys.exit(code)
"""


@pytest.mark.slow  # loads a model in three processes
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not a dependency")
def test_two_workers_of_which_one_is_killed(tmp_path: Path) -> None:
    prompts, output = tmp_path / "prompts.jsonl", tmp_path / "results"
    rows = [{"id": number, "prompt": f"The harbour {number}"} for number in range(16)]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ["--prompts", str(prompts), "--chunk", "2", "--max-new-tokens", "8"]
    env = os.environ | {
        "XLA_FLAGS": re.sub(r"\S+device_count=\d+", "", os.environ["XLA_FLAGS"]),
        "PYTHONPATH": str(ROOT),
    }

    def run(*words: str) -> str:
        command = [sys.executable, *words, *options]
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    said = run("-c", CLUSTER, str(output))
    assert "killed 1 of 2" in said
    assert "chunks done: 8, on 2 nodes" in said
    run("-m", "recipes.batch", "--output", str(tmp_path / "alone"))
    run("-m", "recipes.batch", "--output", str(tmp_path / "alone"), "--collect")
    names = {path.name: path.read_bytes() for path in output.glob("part-*")}
    assert names == {path.name: path.read_bytes() for path in (tmp_path / "alone").glob("part-*")}
    results = [path / "results.jsonl" for path in (output, tmp_path / "alone")]
    assert results[0].read_bytes() == results[1].read_bytes()
