"""Kernels on shards against the unpartitioned kernel, on CPU workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import tvm
from tests.targets import QUICK
from tvm import relax
from tvm.relax import op
from tvm.script.parser import relax as R

import distir_ext as dx

from ..partitioned import to_arrays
from ..plans import MESHES, plans_of


class Case(NamedTuple):
    make: Callable[..., Any]
    shapes: Sequence[tuple[int, ...]]
    integer: Sequence[int] = ()  # parameters that are indices below 6


# Sizes that 2, 3, 4 and 6 shards divide.
CASES = {
    "matmul": Case(op.matmul, [(12, 24), (24, 12)]),
    "batched_matmul": Case(op.matmul, [(6, 12, 4), (4, 12)]),
    "add": Case(op.add, [(12, 24), (24,)]),
    "relu": Case(op.nn.relu, [(12, 24)]),
    "softmax": Case(lambda x: op.nn.softmax(x, -1), [(12, 24)]),
    "rms_norm": Case(lambda x, w: op.nn.rms_norm(x, w, [-1]), [(12, 24), (24,)]),
    "layer_norm": Case(lambda x, w, b: op.nn.layer_norm(x, w, b, [-1]), [(12, 6), (6,), (6,)]),
    "sum": Case(lambda x: op.sum(x, [1]), [(12, 24)]),
    "sum_of_all": Case(lambda x: op.sum(x), [(12, 24)]),
    "mean": Case(lambda x: op.mean(x, [0]), [(12, 24)]),
    "max": Case(lambda x: op.max(x, [1], keepdims=True), [(12, 24)]),
    "prod": Case(lambda x: op.prod(x, [1]), [(12, 12)]),
    "variance": Case(lambda x: op.variance(x, [0]), [(12, 24)]),
    "transpose": Case(lambda x: op.permute_dims(x, [1, 2, 0]), [(12, 6, 12)]),
    "split_dim": Case(lambda x: op.reshape(x, (12, 6, 4)), [(12, 24)]),
    "merge_dims": Case(lambda x: op.reshape(x, (12, 24)), [(12, 6, 4)]),
    "move_digit": Case(lambda x: op.reshape(x, (6, 24)), [(12, 12)]),
    "reshape_unaligned": Case(lambda x: op.reshape(x, (9, 16)), [(12, 12)]),
    "concat": Case(lambda x, y: op.concat([x, y], 1), [(12, 6), (12, 12)]),
    "split": Case(lambda x: op.split(x, 2, 1), [(12, 24)]),
    "take": Case(lambda x, i: op.take(x, i, 0, mode="clip"), [(6, 12), (12,)], integer=[1]),
    "strided_slice": Case(lambda x: op.strided_slice(x, [1], [0], [24], [2]), [(12, 24)]),
    "repeat": Case(lambda x: op.repeat(x, 3, 1), [(12, 12)]),
    "tril": Case(op.tril, [(12, 12)]),
    "group_norm": Case(
        lambda x, w, b: op.nn.group_norm(x, w, b, 6, 1, [2]), [(6, 12, 4), (12,), (12,)]
    ),
    "conv2d": Case(lambda x, w: op.nn.conv2d(x, w, padding=1), [(6, 12, 4, 4), (12, 12, 3, 3)]),
}


def kernel_module(case: Case, names: Sequence[str]) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    for name in names:
        params = [
            relax.Var(f"p{i}", R.Tensor(shape, "int64" if i in case.integer else "float32"))
            for i, shape in enumerate(case.shapes)
        ]
        with builder.function(name, params):
            with builder.dataflow():
                result = builder.emit_output(builder.emit(case.make(*params)))
            builder.emit_func_output(result)
    return relax.transform.LegalizeOps()(builder.get())


def values(case: Case) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [
        rng.integers(0, 6, shape) if i in case.integer else rng.uniform(0.5, 1.5, shape).astype("f")
        for i, shape in enumerate(case.shapes)
    ]


def run_alone(mod: tvm.IRModule, name: str, arguments: list[np.ndarray]) -> list[np.ndarray]:
    machine = relax.VirtualMachine(tvm.compile(mod, QUICK), tvm.cpu())
    return to_arrays(machine[name](*map(tvm.runtime.tensor, arguments)))


@pytest.mark.parametrize("mesh", MESHES.values(), ids=MESHES)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_kernel_on_shards(case, mesh, sample, session_of):
    plans = list(plans_of(case.shapes, mesh))[:: sample(5, 1, 1)]
    mod = kernel_module(case, [f"f{i}" for i in range(len(plans))])
    arguments = values(case)
    expected = run_alone(kernel_module(case, ["f0"]), "f0", arguments)
    for i, plan in enumerate(plans):
        mod = dx.annotate(mod, mesh, plan, func=f"f{i}")
    model = session_of(mesh.shape).load(dx.build(mod, QUICK))
    for i, plan in enumerate(plans):
        actual = to_arrays(model[f"f{i}"](*arguments))
        for ours, theirs in zip(actual, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5, err_msg=str(plan))
