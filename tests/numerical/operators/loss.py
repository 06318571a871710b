"""Losses and their gradients."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from tvm.relax.op import nn
from tvm.relax.op.grad import nll_loss_backward

from ..case import Case, Operand

# Predictions, their letters, targets.
SHAPES = [
    ((8, 5), "n.", (8,)),
    ((4, 3, 6), "n.a", (4, 6)),
    ((2, 4, 3, 8), "n.ab", (2, 3, 8)),
]


def cases() -> Iterator[Case]:
    for shape, letters, target in SHAPES:
        classes = shape[1]
        positions = letters.replace(".", "")
        for reduction in ("none", "sum", "mean"):
            names, kept = letters, positions
            if reduction == "mean":
                names, kept = "." * len(shape), "." * len(target)
            for weighted in (False, True):
                weights = (Operand((classes,), ".", values="positive"),) if weighted else ()
                predictions = Operand(shape, names)
                targets = Operand(target, kept, "int64", f"index {classes}")
                label = f"{reduction} weighted={weighted} "
                yield Case(
                    "relax.nn.nll_loss",
                    label,
                    (predictions, targets, *weights),
                    (kept if reduction == "none" else "",),
                    lambda *xs, r=reduction: nn.nll_loss(*xs, reduction=r, ignore_index=1),
                    combined=kept if reduction == "sum" else "",
                )
                gradient = Operand(target if reduction == "none" else (), kept)
                if reduction != "none":
                    gradient = Operand((), "")
                yield Case(
                    "relax.grad.nll_loss_backward",
                    label,
                    (gradient, predictions, targets, *weights),
                    (names,),
                    lambda *xs, r=reduction: nll_loss_backward(*xs, reduction=r),
                )
    for shape in ((24,), (8, 6), (4, 2, 5)):
        letters = "a" + "." * (len(shape) - 1)
        yield Case(
            "relax.nn.cross_entropy_with_logits",
            "",
            (Operand(shape, letters, values="positive"), Operand(shape, letters)),
            ("",),
            nn.cross_entropy_with_logits,
            combined="a",
            numpy=lambda x, y: -np.sum(x * y) / (len(x) if x.ndim > 1 else 1),
        )
