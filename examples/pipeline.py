"""Runs a small Llama on two stages of two devices each, with microbatches, on four CPU workers.

The weights are sharded over "tp" by a plan, the layers cut into stages along "pp", and a batch
is run as microbatches, so that the stages work at the same time. The result is compared with that
of the program as it was. Prints what each stage got, and when it ran.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import tvm
from distir_ext.stages import simulate
from rich.console import Console

import distir_ext as dx
from distir_ext.demo.case import normal_weights
from distir_ext.demo.llama import PLAN, SEED, TINY, export

LIMIT = 1e-5


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what the command line asks for; 0 if the result is right, else 1."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stages", type=int, default=2, help="stages (default: 2)")
    parser.add_argument("--tensor-parallel", type=int, default=2, help="devices of each (2)")
    parser.add_argument("--microbatches", type=int, default=6, help="microbatches (6)")
    parser.add_argument("--rows", type=int, default=2, help="sequences per microbatch (2)")
    parser.add_argument("--layers", type=int, default=4, help="layers of the decoder (4)")
    parser.add_argument("--interleave", type=int, default=1, help="stages per device (1)")
    parser.add_argument("--schedule", choices=("gpipe", "1f1b"), help="for one stage per device")
    parser.add_argument("--workers", choices=("threads", "processes"), default="threads")
    options = parser.parse_args(arguments)

    mesh = dx.Mesh((options.stages, options.tensor_parallel), ("pp", "tp"))
    config = replace(TINY, layers=options.layers, batch=options.rows)
    mod, shapes = export(config)
    plan = {name: dims for name, dims in PLAN.items() if name != "ids"}
    annotated = dx.annotate(mod, mesh, plan, func="forward")
    staged = dx.transform.AssignStages(mesh, "pp", interleave=options.interleave, func="forward")(
        annotated
    )
    executable = dx.build(staged)

    generator = np.random.default_rng(SEED)
    weights = normal_weights(shapes, generator)
    size = (options.microbatches * config.batch, config.sequence)
    ids = generator.integers(0, config.vocabulary, size=size, dtype=np.int32)

    console = Console()
    with dx.Session(mesh, workers=options.workers) as session:
        model = session.load(executable, weights)
        pipeline = model["forward"].pipeline(options.microbatches, schedule=options.schedule)
        pipeline(ids)  # the first call is slower
        result = pipeline(ids).numpy()
        timeline = pipeline.timeline

    error = relative_rmse(result, unpartitioned(mod, ids, weights, config.batch))
    console.print(repr(pipeline), markup=False, highlight=False, soft_wrap=True)
    console.print("\nMeasured, and as if all stages were equally fast:\n")
    console.print(timeline.text(60), markup=False, highlight=False)
    ideal = simulate(pipeline.schedule)
    console.print(ideal.text(60), markup=False, highlight=False)
    console.print(
        f"\nIdle: {timeline.bubble:.0%} of the devices' time, {ideal.bubble:.0%} if equally fast. "
        f"Relative RMSE {error:.1e}."
    )
    return 0 if error < LIMIT else 1


def unpartitioned(
    mod: tvm.IRModule, ids: np.ndarray, weights: dict[str, np.ndarray], rows: int
) -> np.ndarray:
    """Computes the results of the program on one device, microbatch by microbatch."""
    machine = tvm.relax.VirtualMachine(tvm.compile(mod, target="llvm"), tvm.cpu())
    values = [tvm.runtime.tensor(value) for value in weights.values()]
    parts = [
        machine["forward"](tvm.runtime.tensor(ids[first : first + rows]), *values).numpy()
        for first in range(0, len(ids), rows)
    ]
    return np.concatenate(parts)


def relative_rmse(actual: np.ndarray, expected: np.ndarray) -> float:
    """Root of the mean square of the error, relative to that of the expected values."""
    return float(np.sqrt(np.mean((actual - expected) ** 2) / np.mean(expected**2)))


if __name__ == "__main__":
    sys.exit(main())
