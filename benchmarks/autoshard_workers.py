"""Times searched plans on CPU workers, beside plans that are written by hand.

    python benchmarks/autoshard_workers.py [--models wide tall experts] [--workers 2 4] [--calls 15]

Each model is searched for the speeds that ``Cluster.measure()`` finds of this host, and run with
the searched plan and with those by hand: tensor parallel (whole experts), the batch divided, and
fully sharded; on two axes also data by tensor parallel. All plans of a model and a mesh are loaded
at once and called in turn. A time is the median of the calls, in processor time of the whole
process divided by the workers, which other work on the machine changes least.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from models.plans import by_expert, megatron
from models.transformers import Llama, MixtureOfExperts, ModelConfig, build
from rich.console import Console
from rich.table import Table

import distir_ext as dx

Dims = tuple[Any, ...]
Axes = str | tuple[str, ...]

SMALL = {"layers": 2, "heads": 4, "kv_heads": 4, "vocabulary": 512}
MODELS: dict[str, tuple[Any, ModelConfig]] = {
    "wide": (
        Llama,
        ModelConfig(**SMALL, hidden=512, feed_forward=1024, batch=4, sequence=16),
    ),
    "tall": (
        Llama,
        ModelConfig(**SMALL, hidden=128, feed_forward=256, batch=16, sequence=64),
    ),
    "experts": (
        MixtureOfExperts,
        ModelConfig(**SMALL, hidden=128, feed_forward=256, batch=8, sequence=64, experts=4),
    ),
}


def by_hand(model: Any, mesh: dx.Mesh) -> Iterator[tuple[str, dict[str, Any]]]:
    """Plans by name: the axis of the inputs' batch, and the rule for weights with its axes."""
    every: Axes = mesh.axis_names if len(mesh.axis_names) > 1 else mesh.axis_names[0]
    sharded = megatron if model is Llama else by_expert
    yield "tensor", {"batch": None, "rule": sharded, "axes": every}
    yield "data", {"batch": every, "rule": None, "axes": every}
    yield "fully sharded", {"batch": every, "rule": largest_even, "axes": every}
    if len(mesh.axis_names) > 1:
        yield (
            "data x tensor",
            {"batch": mesh.axis_names[0], "rule": sharded, "axes": mesh.axis_names[1]},
        )


def largest_even(name: str, shape: tuple[int, ...]) -> Dims:
    """The largest dimension."""
    del name
    dim = max(range(len(shape)), key=lambda d: (shape[d], -d))
    return tuple("fsdp" if d == dim else None for d in range(len(shape)))


def stated(
    inputs: Mapping[str, tuple[int, ...]],
    weights: Mapping[str, tuple[int, ...]],
    *,
    batch: Axes | None,
    rule: Any,
    axes: Axes,
) -> dict[str, Dims]:
    """A plan by the names of all parameters."""
    plan: dict[str, Dims] = {
        name: (batch, *[None] * (len(shape) - 1)) for name, shape in inputs.items()
    }
    for name, shape in weights.items():
        dims = (None,) * len(shape) if rule is None else rule(name.rsplit(".", 1)[-1], shape)
        plan[name] = tuple(None if each is None else axes for each in dims)
    return plan


def values(mod: Any) -> tuple[list[Any], list[Any]]:
    """Random inputs and weights for ``main``."""
    rng = np.random.default_rng(0)
    found: list[Any] = []
    for param in mod["main"].params:
        shape = [int(size) for size in param.ty.shape.values]
        if "int" in str(param.ty.dtype):
            found.append(rng.integers(0, SMALL["vocabulary"], shape).astype(str(param.ty.dtype)))
        else:
            found.append((rng.standard_normal(shape) / shape[-1] ** 0.5).astype("float32"))
    count = int(mod["main"].attrs["num_input"])
    return found[:count], found[count:]


def timed(name: str, mesh: dx.Mesh, cluster: dx.Cluster, calls: int) -> dict[str, float]:
    """Milliseconds of a call by the name of the plan, ``"auto"`` among them."""
    model, config = MODELS[name]
    mod = build(model, config)
    emitter = model(None, config)
    inputs = {each: shape for each, (shape, _) in emitter.inputs().items()}
    modules = {"auto": dx.autoshard(mod, mesh, cluster).mod}
    for plan, options in by_hand(model, mesh):
        modules[plan] = dx.annotate(mod, mesh, stated(inputs, emitter.weights(), **options))
    given, weights = values(mod)
    with dx.Session(mesh) as session:
        run = {
            plan: session.load(dx.build(each), params=weights)["main"]
            for plan, each in modules.items()
        }
        taken: dict[str, list[float]] = {plan: [] for plan in run}
        expected = None
        for _ in range(calls + 1):
            for plan, function in run.items():
                begin = time.process_time()
                result = np.asarray(function(*given))
                taken[plan].append((time.process_time() - begin) / mesh.size)
                expected = result if expected is None else expected
                np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-4)
    return {plan: 1e3 * statistics.median(each[1:]) for plan, each in taken.items()}


def main() -> None:
    """Prints a row for each model, mesh and plan by hand."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--workers", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--calls", type=int, default=15)
    options = parser.parse_args()
    table = Table("model", "mesh", "plan", "by hand, ms", "searched, ms", "ratio")
    cases = within = 0
    for workers in options.workers:
        cluster = dx.Cluster.measure(workers)
        meshes = [dx.Mesh(x=workers)]
        meshes += [dx.Mesh(x=2, y=workers // 2)] if workers > 3 and workers % 2 == 0 else []
        for mesh in meshes:
            for name in options.models:
                found = timed(name, mesh, cluster, options.calls)
                searched = found.pop("auto")
                for plan, taken in found.items():
                    cases += 1
                    within += searched <= 1.05 * taken
                    shape = "x".join(map(str, mesh.shape))
                    ratio = f"{searched / taken:.2f}"
                    table.add_row(name, shape, plan, f"{taken:.2f}", f"{searched:.2f}", ratio)
    console = Console(width=100)
    console.print(table)
    console.print(f"{cases} cases; the searched plan is at most 5 % slower in {within}")


if __name__ == "__main__":
    main()
