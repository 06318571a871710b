"""The cases of every operator of the rule table, by family."""

from __future__ import annotations

from ..case import Case
from . import (
    attention,
    channel,
    contraction,
    convolution,
    create,
    elementwise,
    gather,
    image,
    indexing,
    loss,
    norms,
    ordering,
    reduction,
    scatter,
    shape,
)

FAMILIES = (
    elementwise,
    create,
    contraction,
    reduction,
    ordering,
    shape,
    indexing,
    gather,
    scatter,
    channel,
    norms,
    convolution,
    image,
    attention,
    loss,
)

CASES: dict[str, list[Case]] = {}
for family in FAMILIES:
    for case in family.cases():
        CASES.setdefault(case.op, []).append(case)
