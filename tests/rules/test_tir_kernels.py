"""The rules that are derived from hand-written kernels; tests/numerical has their numbers."""

from __future__ import annotations

import pytest
import tvm_ffi
from tests.rules.tir_kernels import NAMES, RULES

describe = tvm_ffi.get_global_func("distir.rules.DescribeKernel")


@pytest.mark.parametrize(("kernel", "rule"), RULES, ids=NAMES)
def test_rule(kernel, rule):
    assert describe(kernel) == rule
