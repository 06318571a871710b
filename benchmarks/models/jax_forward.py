"""Runs the Llama of ``transformers.py`` in JAX on virtual CPU devices, one forward per request.

    python benchmarks/models/jax_forward.py CONFIG PLAN ...

CONFIG is JSON of a ModelConfig. Each line read names a plan, and a file or nothing: one forward of
the plan is run, its logits are saved to the file, and [seconds, seconds of processor time] is
printed.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from models.jax_transformers import FORWARD  # sets the number of devices, before JAX looks
from models.plans import PLANS
from models.transformers import Llama, ModelConfig
from models.values import llama_values


def forward(name, config):
    """A function without arguments that runs one forward; its logits on the host."""
    plan = PLANS.get(name)
    axes = plan.mesh if plan else {"all": 1}
    mesh = jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))

    def put(name, value):
        spec = PartitionSpec(*plan.dims(name, value.shape)) if plan else PartitionSpec()
        return jax.device_put(value, NamedSharding(mesh, spec))

    tokens, weights = llama_values(config)
    inputs = {"tokens": put("tokens", tokens)}
    weights = {name: put(name, value) for name, value in weights.items()}
    run = jax.jit(lambda inputs, weights: FORWARD[Llama](config, inputs, weights))
    run = run.lower(inputs, weights).compile()
    return lambda: np.asarray(run(inputs, weights))


def main():
    """Answers requests until there are no more."""
    config = ModelConfig(**json.loads(sys.argv[1]))
    runs = {name: forward(name, config) for name in sys.argv[2:]}
    for line in sys.stdin:
        name, _, file = line.strip().partition(" ")
        wall, processor = time.perf_counter(), time.process_time()
        logits = runs[name]()
        times = [time.perf_counter() - wall, time.process_time() - processor]
        if file:
            np.save(file, logits)
        print(json.dumps(times), flush=True)


if __name__ == "__main__":
    main()
