"""Losses and their gradients."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from tvm.relax.op import nn
from tvm.relax.op.grad import nll_loss_backward

from ..case import Case, Operand

# Predictions, their letters, targets.
SHAPES = [
    ((8, 6), "nc", (8,)),
    ((4, 5, 6), "nca", (4, 6)),
    ((2, 4, 3, 8), "ncab", (2, 3, 8)),
]


def cases() -> Iterator[Case]:
    for shape, letters, target in SHAPES:
        classes = shape[1]
        positions = letters.replace("c", "")
        for reduction in ("none", "sum", "mean"):
            for weighted in (False, True):
                weights = (Operand((classes,), "c", values="positive"),) if weighted else ()
                predictions = Operand(shape, letters)
                targets = Operand(target, positions, "int64", f"index {classes}")
                label = f"{reduction} weighted={weighted} "
                yield Case(
                    "relax.nn.nll_loss",
                    label,
                    (predictions, targets, *weights),
                    (positions if reduction == "none" else "",),
                    lambda *xs, r=reduction: nn.nll_loss(*xs, reduction=r, ignore_index=1),
                    combined=positions if reduction == "sum" else "",
                    decomposed=letters if reduction == "mean" else "c",
                )
                gradient = Operand(target, positions) if reduction == "none" else Operand((), "")
                yield Case(
                    "relax.grad.nll_loss_backward",
                    label,
                    (gradient, predictions, targets, *weights),
                    (letters,),
                    lambda *xs, r=reduction: nll_loss_backward(*xs, reduction=r, ignore_index=1),
                    # Weights are looked up, and summed for a mean.
                    decomposed=("c" if weighted else "")
                    + (positions if reduction == "mean" else ""),
                )
    for shape in ((24,), (8, 6), (4, 2, 5)):
        letters = "abc"[: len(shape)]
        yield Case(
            "relax.nn.cross_entropy_with_logits",
            "",
            (Operand(shape, letters, values="positive"), Operand(shape, letters)),
            ("",),
            nn.cross_entropy_with_logits,
            combined=letters if len(shape) == 1 else "",
            decomposed=letters if len(shape) > 1 else "",
            numpy=lambda x, y: -np.sum(x * y) / (len(x) if x.ndim > 1 else 1),
        )
