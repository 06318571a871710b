"""The stack that the compile-time benchmark times is a program that computes something."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax

import distir_ext as dx

SOURCE = Path(__file__).resolve().parents[2] / "benchmarks" / "models" / "llama_stack.py"


@pytest.fixture(scope="module")
def stack():
    spec = importlib.util.spec_from_file_location("llama_stack", SOURCE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look up their module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def config(stack):
    return stack.StackConfig(
        hidden=64, heads=16, kv_heads=8, feed_forward=96, batch=2, sequence=6, dtype="float32"
    )


def arguments(mod):
    generator = np.random.default_rng(3)
    values = []
    for param in mod["main"].params:
        shape = tuple(int(size) for size in param.ty.shape.values)
        values.append((generator.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32))
    return values


def unpartitioned(mod):
    machine = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, arguments(mod))).numpy()


def partitioned(mod):
    with dx.Session(8) as session:
        return session.load(dx.build(mod))["main"](*arguments(mod)).numpy()


@pytest.mark.large
def test_partitioned_stack_and_calls_agree_with_the_plain_stack(stack, config):
    plain = stack.build_stack(2, config)
    calls = stack.build_calls(2, config)
    expected = unpartitioned(plain)
    scale = np.sqrt(np.mean(expected**2))
    assert scale > 0.1
    for mod in (calls, stack.annotated(plain), stack.annotated(calls)):
        actual = unpartitioned(mod) if mod is calls else partitioned(mod)
        assert np.sqrt(np.mean((actual - expected) ** 2)) < 1e-5 * scale


def test_sizes_grow_by_one_layer(stack):
    one, two, three = (stack.build_stack(count) for count in (1, 2, 3))
    for count in (stack.count_operators, stack.count_variables):
        assert count(three) - count(two) == count(two) - count(one) > 0
    calls = [stack.build_calls(count) for count in (1, 2)]
    assert stack.count_operators(calls[1]) - stack.count_operators(calls[0]) == 1
