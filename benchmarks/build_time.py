"""Times dx.build: first, from the cache, beside TVM's own build, and JAX.

    python benchmarks/build_time.py [--programs NAME ...] [--repeats 3]

Each build is one of a process of its own, which has imported what it needs; figures are seconds of
processor time of the process, the best of several. "first" fills an empty cache, "second" is the
same program in another process, with that cache. "relax.build" is ``tvm.compile`` of the program
without annotations, for one device, with all default passes of TVM; "JAX" is ``jit(..).lower(..)``
and ``compile()`` of the same model with the same shardings.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

PLAN = "tp8"
STEPS = 64
LAYERS = 80


def _llama() -> tuple[Any, Any]:
    from models.plans import PLANS
    from models.transformers import Llama, build
    from run_time import CONFIG

    import distir_ext as dx

    plan = PLANS[PLAN]
    mesh = dx.Mesh(tuple(plan.mesh.values()), tuple(plan.mesh))
    model = Llama(None, CONFIG)
    shapes = {name: shape for name, (shape, _) in model.inputs().items()} | model.weights()
    dims = {re.escape(name): plan.dims(name, shape) for name, shape in shapes.items()}
    mod = build(Llama, CONFIG)
    return mod, dx.annotate(mod, mesh, dims)


def _stack() -> tuple[Any, Any]:
    from models.llama_stack import annotated, build_stack

    mod = build_stack(LAYERS)
    return mod, annotated(mod)


def _scan() -> tuple[Any, Any]:
    from models.state_space import annotated, build_scan

    mod = build_scan(STEPS)
    return mod, annotated(mod)


PROGRAMS: dict[str, Callable[[], tuple[Any, Any]]] = {
    f"llama {PLAN}": _llama,
    f"{LAYERS} layers of 70B": _stack,
    f"scan of {STEPS} steps": _scan,
}
"""The module without and with annotations, by name."""


def _build(name: str) -> Callable[[], Any]:
    import distir_ext as dx

    annotated = PROGRAMS[name]()[1]
    return lambda: dx.build(annotated)


def _relax(name: str) -> Callable[[], Any]:
    import tvm

    import distir_ext  # noqa: F401 - operators of the module

    mod = PROGRAMS[name]()[0]
    return lambda: tvm.compile(mod, "llvm")


def _jax(name: str) -> Callable[[], Any]:
    import jax
    from jax.sharding import AxisType, NamedSharding, PartitionSpec
    from models.jax_transformers import FORWARD
    from models.plans import PLANS
    from models.transformers import Llama
    from models.values import llama_values
    from run_time import CONFIG

    assert name == f"llama {PLAN}"
    plan = PLANS[PLAN]
    axes = plan.mesh
    mesh = jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))

    def put(key: str, value: Any) -> Any:
        return jax.device_put(
            value, NamedSharding(mesh, PartitionSpec(*plan.dims(key, value.shape)))
        )

    tokens, weights = llama_values(CONFIG)
    weights = {key: put(key, value) for key, value in weights.items()}
    run = jax.jit(lambda inputs, weights: FORWARD[Llama](CONFIG, inputs, weights))
    inputs = {"tokens": put("tokens", tokens)}
    return lambda: run.lower(inputs, weights).compile()


BUILDS = {"first": _build, "second": _build, "relax.build": _relax, "JAX": _jax}


def measure(name: str, kind: str, cache: str) -> float:
    """Seconds of processor time that a build takes in a process of its own."""
    environment = {**os.environ, "DISTIR_EXT_CACHE": cache}
    command = [sys.executable, __file__, "--one", json.dumps([name, kind])]
    return float(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)


def main() -> None:
    """Runs the benchmark and prints its table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, kind = json.loads(options.one)
        build = BUILDS[kind](name)
        begin = time.process_time()
        build()
        print(time.process_time() - begin)
        return
    table = Table("program", *BUILDS, "second / first", box=SIMPLE_HEAD)
    for name in options.programs:
        best: dict[str, float] = {}
        for _ in range(options.repeats):
            with tempfile.TemporaryDirectory() as cache:
                for kind in BUILDS:
                    if kind != "JAX" or name == f"llama {PLAN}":
                        seconds = measure(name, kind, cache)
                        best[kind] = min(seconds, best.get(kind, seconds))
        row = [f"{best[kind]:.3f}" if kind in best else "" for kind in BUILDS]
        table.add_row(name, *row, f"{best['second'] / best['first']:.3f}")
    Console().print(table)


if __name__ == "__main__":
    main()
