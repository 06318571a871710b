"""The rules that are derived from hand-written kernels; tests/numerical has their numbers."""

from __future__ import annotations

import pytest
from tests.rules.tir_kernels import NAMES, RULES

from distir_ext.explain.rules import describe_kernel


@pytest.mark.parametrize(("kernel", "rule"), RULES, ids=NAMES)
def test_rule(kernel, rule):
    assert describe_kernel(kernel) == rule
