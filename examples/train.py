"""Trains a small GPT on text that it makes itself, on CPU workers.

    python examples/train.py --plan fsdp --steps 200 --checkpoint run.npz
    python examples/train.py --plan tp --steps 400 --checkpoint run.npz   # goes on

Plans are one, dp, zero1, fsdp, tp and dp_tp; all have the same loss curve, which is torch's
(``--torch`` prints both). A run that was ended goes on where its checkpoint is, on any plan.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import distir_ext as dx
from small_gpt import gpt, text

BATCH = 16
WARMUP = 10
RATE = 3e-3


def learning_rate(step: int) -> float:
    """The schedule: linear warm-up, then a cosine over 1,000 steps."""
    decay = 0.5 * (1 + math.cos(math.pi * min(step, 1000) / 1000))
    return RATE * min(1, (step + 1) / WARMUP) * decay


def losses(
    plan: str,
    steps: int,
    config: gpt.Config | None = None,
    checkpoint: Path | None = None,
    every: int = 50,
) -> Iterator[tuple[int, float]]:
    """Trains, and yields the loss of each step.

    Args:
        plan: Its name.
        steps: Where to stop.
        config: Sizes of the model.
        checkpoint: A file with the state: it is read if it exists, and written every so many steps
            and at the end.
        every: Number of steps.

    Yields:
        The step and its loss.
    """
    config = config or gpt.Config()
    axes, entries = gpt.PLANS[plan]
    mesh = dx.Mesh(**axes)
    step = dx.train_step(gpt.forward(config, BATCH), "cross_entropy", "adamw", clip=1.0)
    executable = dx.build(dx.annotate(step, mesh, entries))
    if checkpoint is not None and checkpoint.exists():
        with np.load(checkpoint) as file:
            state: dict[str, Any] = dict(file)
    else:
        state = dx.training.initial_state(step, gpt.initial_weights(config))
    first = int(state["state.step"])
    with dx.Session(mesh) as session:
        train = dx.training.Trainer(session.load(executable))
        for at in range(first, steps):
            x, target = text.batch(at, BATCH, config.length)
            batch = {"x": x, "target": target, "learning_rate": learning_rate(at)}
            state, metrics = train(state, batch)
            if checkpoint is not None and ((at + 1) % every == 0 or at + 1 == steps):
                save(checkpoint, state)
            yield at, float(metrics["loss"].numpy())


def save(path: Path, state: dict[str, Any]) -> None:
    """Writes a checkpoint; the one of before is there until the new one is complete."""
    part = path.with_suffix(".part.npz")
    np.savez(part, **{name: value.numpy() for name, value in state.items()})
    part.replace(path)


def torch_losses(steps: int, config: gpt.Config | None = None) -> Iterator[float]:
    """Trains the same model on the same text with torch, and yields the loss of each step."""
    import torch

    config = config or gpt.Config()
    weights = {
        name: torch.nn.Parameter(torch.tensor(value))
        for name, value in gpt.initial_weights(config).items()
    }
    optimizer = torch.optim.AdamW(weights.values())
    for at in range(steps):
        optimizer.param_groups[0]["lr"] = learning_rate(at)
        x, target = (torch.tensor(each) for each in text.batch(at, BATCH, config.length))
        optimizer.zero_grad()
        loss = gpt.torch_loss(config, weights, x, target)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        optimizer.step()
        yield float(loss.detach())


def plot(found: list[float], width: int = 60) -> str:
    """The curve as one line of blocks, the largest loss full."""
    blocks = " ▁▂▃▄▅▆▇█"
    picked = [found[at * len(found) // width] for at in range(width)] if found else []
    return "".join(blocks[round(8 * each / max(picked))] for each in picked)


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--plan", choices=gpt.PLANS, default="fsdp")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--torch", action="store_true", help="train with torch, too, and compare")
    arguments = parser.parse_args()
    found = []
    theirs = torch_losses(arguments.steps) if arguments.torch else None
    for at, loss in losses(arguments.plan, arguments.steps, checkpoint=arguments.checkpoint):
        found.append(loss)
        done = 30 * (at + 1) // arguments.steps
        other = f"  torch {next(theirs):.5f}" if theirs is not None else ""
        bar = f"[{'#' * done}{' ' * (30 - done)}] {at + 1} loss {loss:.5f}{other}"
        is_terminal = sys.stdout.isatty()
        if is_terminal or (at + 1) % 10 == 0:
            print(bar, end="\r" if is_terminal else "\n", flush=True)
    print(f"\n{plot(found)}")


if __name__ == "__main__":
    main()
