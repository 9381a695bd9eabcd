"""The same job on a Ray cluster: `python -m recipes.batch.ray_data`. Ray Data gives chunks to workers, one model each.

Results and their files are those of `python -m recipes.batch`, so that either continues the other.
"""

import argparse
from typing import Any

import ray.data  # pyright: ignore[reportMissingImports] - installed for this example alone

import tpuport
from recipes.batch.__main__ import Generator, add_job_options, plan_job
from recipes.batch.work import Job
from recipes.command import at_least, run_command


class Worker:
    """A process of the cluster with a model on the devices of its host."""

    def __init__(self, job: Job, options: dict[str, Any], arguments: argparse.Namespace) -> None:
        mesh = tpuport.create_mesh(tp=-1)
        self._job = job
        self._generator = Generator(arguments.checkpoint, mesh, arguments.dtype, options)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Do a chunk, unless a worker that has died since had done it."""
        chunk = int(row["chunk"])
        if not self._job.is_done(chunk):
            texts = self._generator.continue_rows(self._job.rows_of(chunk), self._job.batch_size, chunk)
            self._job.write(chunk, texts)
        return row | {"node": ray.get_runtime_context().get_node_id()}


def parse_arguments() -> argparse.Namespace:
    """The options of the job, and of the cluster."""
    parser = argparse.ArgumentParser(
        prog="python -m recipes.batch.ray_data",
        description="Continue every prompt of a file on a Ray cluster.",
    )
    add_job_options(parser)
    add = parser.add_argument
    add("--address", help="of a running cluster, such as auto; by default this machine becomes one")
    add("--workers", type=at_least(1), default=2, help="processes with a model (default 2)")
    add(
        "--tpus",
        type=at_least(0),
        default=0,
        help="chips of a worker, all those of its host (default 0: the CPU)",
    )
    return parser.parse_args()


def main() -> None:
    """Run the job."""
    arguments = parse_arguments()
    job, options = plan_job(arguments)
    job.open()
    pending = job.pending()
    print(f"chunks to do: {len(pending)} of {len(job.chunks)}")
    if pending:
        ray.init(address=arguments.address)
        resources = {"TPU": arguments.tpus} if arguments.tpus else None
        chunks = ray.data.from_items(
            [{"chunk": chunk} for chunk in pending], override_num_blocks=len(pending)
        )
        done = chunks.map(
            Worker,
            fn_constructor_args=(job, options, arguments),
            compute=ray.data.ActorPoolStrategy(size=arguments.workers),
            num_cpus=1,
            resources=resources,
        ).take_all()
        nodes = {row["node"] for row in done}
        print(f"chunks done: {len(done)}, on {len(nodes)} nodes")
    print(f"all results: {job.collect()}")


if __name__ == "__main__":
    run_command(main)
