"""Training steps of a small GPT beside JAX and torch: step time, bytes sent, memory, error.

    python benchmarks/train.py --width 256 --layers 4 --repeats 5

JAX has virtual CPU devices and the same plans as NamedShardings, torch one device. Steps of all
three are timed in turns; times are the least of the repeats, wall and of the processor, and the
ratio of processor times is the median of neighbouring steps.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.sharding import NamedSharding, PartitionSpec
from xla_collectives import collectives as xla_collectives

import distir_ext as dx
from small_gpt import gpt, text

RATE = 1e-3
BETAS = (0.9, 0.999)
DECAY = 0.01
SCALARS = 64  # bytes; collectives that send less are of the loss and of the norm


def jax_loss(config: gpt.Config, weights: dict[str, Any], x: Any, target: Any) -> Any:
    """The model of ``small_gpt`` in JAX."""

    def norm(value: Any, name: str) -> Any:
        mean = value.mean(-1, keepdims=True)
        spread = ((value - mean) ** 2).mean(-1, keepdims=True)
        value = (value - mean) * jax.lax.rsqrt(spread + 1e-5)
        return value * weights[f"{name}.scale"] + weights[f"{name}.shift"]

    h = jnp.take(weights["tokens"], x, axis=0, mode="clip") + weights["positions"]
    split = (*x.shape, config.heads, config.width // config.heads)
    seen = jnp.tril(jnp.ones((config.length, config.length), bool))
    for at in range(config.layers):
        own = lambda name, at=at: weights[f"block{at}.{name}"]  # noqa: E731
        n = norm(h, f"block{at}.norm1")
        q, k, v = ((n @ own(name)).reshape(split) for name in ("query", "key", "value"))
        scores = jnp.einsum("bshd,bthd->bhst", q, k) * split[-1] ** -0.5
        shares = jax.nn.softmax(jnp.where(seen, scores, -1e30), -1)
        attended = jnp.einsum("bhst,bthd->bshd", shares, v).reshape(h.shape)
        h = h + attended @ own("out")
        wide = jax.nn.gelu(norm(h, f"block{at}.norm2") @ own("up"), approximate=False)
        h = h + wide @ own("down")
    logits = jax.nn.log_softmax(norm(h, "norm") @ weights["head"])
    return -jnp.take_along_axis(logits, target[..., None], -1).mean()


def jax_step(config: gpt.Config, plan: str, batch: int) -> tuple[Any, Any, Any]:
    """A compiled step, its state and the sharding of batches."""
    axes, entries = gpt.PLANS[plan]
    devices = np.asarray(jax.devices()[: int(np.prod(list(axes.values())))])
    mesh = jax.sharding.Mesh(devices.reshape(list(axes.values())), tuple(axes))
    step = dx.train_step(gpt.forward(config, batch), "cross_entropy", "adamw", clip=1.0)
    shardings = {
        str(param.name): NamedSharding(mesh, PartitionSpec(*_dims(str(param.name), entries)))
        for param in step["main"].params
    }
    state = {
        name: jax.device_put(value, shardings[name])
        for name, value in dx.training.initial_state(step, gpt.initial_weights(config)).items()
    }

    def run(state: dict[str, Any], x: Any, target: Any) -> tuple[dict[str, Any], Any]:
        names = list(gpt.shapes(config))
        weights = {name: state[f"state.params.{name}"] for name in names}
        loss, gradients = jax.value_and_grad(lambda w: jax_loss(config, w, x, target))(weights)
        total = jnp.sqrt(sum(jnp.sum(each * each) for each in gradients.values()))
        factor = jnp.minimum(1.0, 1.0 / (total + 1e-6))
        new = dict(state)
        for key, beta in zip(("mean_correction", "square_correction"), BETAS, strict=True):
            new[f"state.{key}"] = beta * state[f"state.{key}"] + (1 - beta)
        for name in names:
            g, w = gradients[name] * factor, weights[name]
            mean = BETAS[0] * state[f"state.mean.{name}"] + (1 - BETAS[0]) * g
            square = BETAS[1] * state[f"state.square.{name}"] + (1 - BETAS[1]) * g * g
            root = jnp.sqrt(square / new["state.square_correction"]) + 1e-8
            moved = mean / new["state.mean_correction"] / root
            new[f"state.params.{name}"] = w * (1 - RATE * DECAY) - RATE * moved
            new[f"state.mean.{name}"], new[f"state.square.{name}"] = mean, square
        return new, loss

    kept = {name: shardings[name] for name in state}
    replicated = NamedSharding(mesh, PartitionSpec())
    compiled = jax.jit(
        run,
        in_shardings=(kept, shardings["x"], shardings["target"]),
        out_shardings=(kept, replicated),
        donate_argnums=0,
    )
    like = jax.ShapeDtypeStruct((batch, config.length), jnp.int32)
    return compiled.lower(state, like, like).compile(), state, shardings["x"]


def _dims(name: str, entries: dict[str, Any]) -> tuple[str | None, ...]:
    import re

    for wanted in (name, re.sub(r"state\.(mean|square)\.", "state.params.", name)):
        for pattern, dims in entries.items():
            if re.fullmatch(pattern, wanted):
                return tuple(dims)
    return ()


def measure(config: gpt.Config, plan: str, batch: int, repeats: int) -> dict[str, Any]:
    """The figures of a plan."""
    axes, entries = gpt.PLANS[plan]
    mesh = dx.Mesh(**axes)
    step = dx.train_step(gpt.forward(config, batch), "cross_entropy", "adamw", clip=1.0)
    mod = dx.annotate(step, mesh, entries)
    lowered = dx.lower(mod)
    estimate = dx.analysis.estimate(lowered, dx.Cluster.preset("H100"))
    ours_sent = sum(
        each.count * each.bytes_per_device
        for each in dx.analysis.collectives(lowered)
        if each.count * each.bytes_per_device > SCALARS
    )
    compiled, theirs, sharding = jax_step(config, plan, batch)
    jax_sent = sum(each.sent for each in xla_collectives(compiled.as_text()) if each.sent > SCALARS)
    weights = {
        name: torch.nn.Parameter(torch.tensor(value))
        for name, value in gpt.initial_weights(config).items()
    }
    optimizer = torch.optim.AdamW(weights.values(), RATE, weight_decay=DECAY)
    times: dict[str, list[float]] = {"distir": [], "jax": [], "torch": []}
    processor: dict[str, list[float]] = {name: [] for name in times}
    losses: dict[str, float] = {}

    def timed(name: str, run: Callable[[], float]) -> None:
        begin, used = time.perf_counter(), time.process_time()
        losses[name] = run()
        times[name].append(time.perf_counter() - begin)
        processor[name].append(time.process_time() - used)

    with dx.Session(mesh) as session:
        train = dx.training.Trainer(session.load(dx.build(mod)))
        ours = dx.training.initial_state(step, gpt.initial_weights(config))
        for at in range(repeats + 1):
            x, target = text.batch(at, batch, config.length)

            def run_ours(x: Any = x, target: Any = target) -> float:
                nonlocal ours
                ours, metrics = train(ours, {"x": x, "target": target, "learning_rate": RATE})
                return float(metrics["loss"].numpy())

            def run_jax(x: Any = x, target: Any = target) -> float:
                nonlocal theirs
                placed = (jax.device_put(each.astype("int32"), sharding) for each in (x, target))
                theirs, loss = compiled(theirs, *placed)
                return float(loss)

            def run_torch(x: Any = x, target: Any = target) -> float:
                optimizer.zero_grad()
                loss = gpt.torch_loss(config, weights, torch.tensor(x), torch.tensor(target))
                loss.backward()
                torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
                optimizer.step()
                return float(loss.detach())

            timed("distir", run_ours)
            timed("jax", run_jax)
            timed("torch", run_torch)
    return {
        "plan": plan,
        **{f"{name} ms": 1e3 * min(each[1:]) for name, each in times.items()},
        **{f"{name} CPU ms": 1e3 * min(each[1:]) for name, each in processor.items()},
        "CPU / JAX's": median(
            own / other
            for own, other in zip(processor["distir"][1:], processor["jax"][1:], strict=True)
        ),
        "sent kB": ours_sent / 1e3,
        "JAX sends kB": jax_sent / 1e3,
        "peak kB": estimate.peak_memory / 1e3,
        "error": abs(losses["distir"] / losses["torch"] - 1),
    }


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--plans", nargs="+", choices=gpt.PLANS, default=list(gpt.PLANS))
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    config = gpt.Config(width=arguments.width, layers=arguments.layers)
    for at, plan in enumerate(arguments.plans):
        row = measure(config, plan, arguments.batch, arguments.repeats)
        if at == 0:
            print(f"| {' | '.join(row)} |\n|{'---|' * len(row)}")
        cells = [each if isinstance(each, str) else f"{each:.4g}" for each in row.values()]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
