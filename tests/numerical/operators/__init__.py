"""The cases of every operator of the rule table, by family."""

from __future__ import annotations

from ..case import Case
from . import contraction, create, elementwise, indexing, ordering, reduction, shape

FAMILIES = (elementwise, create, contraction, reduction, ordering, shape, indexing)

CASES: dict[str, list[Case]] = {}
for family in FAMILIES:
    for case in family.cases():
        CASES.setdefault(case.op, []).append(case)
