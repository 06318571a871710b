"""Kernels that are already scheduled for a GPU: shards have fewer blocks of the grid."""

import pytest
from tests.rules.scheduled_kernels import module

from distir_ext import rules

describe = rules.describe_kernel


@pytest.mark.parametrize(
    ("block", "second", "rule"),
    [
        ("blockIdx.x", "blockIdx.y", "A[0 -][-] C[0 -][-]; 0: 8 parallel"),
        # One of two loops over the same blocks cannot have fewer of them.
        ("blockIdx.x", "blockIdx.x", "A[- -][-] C[- -][-]"),
        ("threadIdx.y", "threadIdx.y", "A[- -][-] C[- -][-]"),
    ],
)
def test_blocks_are_shared_out_and_threads_are_not(block, second, rule):
    assert describe(module(block, second)["kernel"]) == rule
