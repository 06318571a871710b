"""Partitioned programs on GPUs compute what the originals compute on the host."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

import distir_ext as dx
from distir_ext.demo import forum, llama


def on_host(mod, function, arguments):
    machine = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    return machine[function](*[tvm.runtime.tensor(each) for each in arguments]).numpy()


@I.ir_module
class MLP:
    @R.function
    def main(
        x: R.Tensor(("n", 16), "float32"),
        up: R.Tensor((16, 32), "float32"),
        down: R.Tensor((32, 16), "float32"),
    ) -> R.Tensor(("n", 16), "float32"):
        R.func_attr({"num_input": 1})
        h = R.nn.silu(R.matmul(x, up))
        return R.nn.softmax(R.matmul(h, down), axis=-1)


def mlp(x, up, down):
    hidden = x @ up
    scores = (hidden / (1 + np.exp(-hidden))) @ down
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (2, 2)], ids=str)
def test_symbolic_batch(target, need, shape):
    need(int(np.prod(shape)))
    mesh = dx.Mesh(shape, ("dp", "tp"))
    plan = {"x": ("dp", None), "up": (None, "tp"), "down": ("tp", None)}
    exe = dx.build(dx.annotate(MLP, mesh, plan), target=target)
    rng = np.random.default_rng(0)
    up, down = (rng.standard_normal(s, "float32") for s in ((16, 32), (32, 16)))
    with dx.Session(mesh, ccl="nccl") as session:
        model = session.load(exe, params=[up, down])
        for rows in (4, 12, 4):
            x = rng.standard_normal((rows, 16), "float32")
            actual = model["main"](x)
            np.testing.assert_allclose(actual.numpy(), mlp(x, up, down), rtol=1e-3, atol=1e-5)
            assert {str(each.device) for each in actual.shards.values()} == {
                f"cuda:{device}" for device in mesh.device_ids
            }
        again = model["main"](actual)  # from the GPUs, where it is
        expected = mlp(actual.numpy(), up, down)
        np.testing.assert_allclose(again.numpy(), expected, rtol=1e-3, atol=1e-5)


CASES = [
    pytest.param(forum.forum_case(), id="forum"),
    pytest.param(llama.llama_case(), id="llama", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("case", CASES)
def test_demonstrations(target, need, case):
    need(case.workers)
    exe = dx.build(case.annotate(case.module), target=target)
    with dx.Session(case.workers, ccl="nccl") as session:
        model = session.load(exe, params=dict(case.weights))
        expected = on_host(case.module, case.function, case.arguments)
        for _ in range(2):
            actual = model[case.function](*case.inputs.values()).numpy()
            np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-4)


MOVES = {
    "gather": ((None, "x"), (None, None)),
    "slice and gather": (("x", None), (None, "y")),
    "all to all": (("x", None), (None, "x")),
    "permute": (("x", "y"), ("y", "x")),
    "exchange": ((("x", "y"), None), (None, ("x", "y"))),
    "nothing but slices": ((None, None), ("y", "x")),
}


@pytest.mark.parametrize(("before", "after"), MOVES.values(), ids=MOVES.keys())
def test_redistribution_on_a_mesh(target, need, before, after):
    need(4)
    mesh = dx.Mesh((2, 2), ("x", "y"))
    check_move(target, mesh, before, mesh, after)


@pytest.mark.parametrize("ids", [[4, 5, 6, 7], [2, 3, 6, 7], [3, 2, 1, 0]], ids=str)
@pytest.mark.parametrize("move", ["all to all", "exchange", "gather"])
def test_transfer_between_meshes(target, need, move, ids):
    need(1 + max(ids))
    first = dx.Mesh((2, 2), ("x", "y"))
    second = dx.Mesh((2, 2), ("x", "y"), device_ids=ids)
    before, after = MOVES[move]
    check_move(target, first, before, second, after)


@I.ir_module
class Move:
    @R.function
    def main(x: R.Tensor((8, 12), "float32")) -> R.Tensor((8, 12), "float32"):
        R.func_attr({"num_input": 1})
        y = R.add(x, x)
        return R.negative(y)


class Places(dx.ShardingMutator):
    """Annotates what the sum gives and what the negation takes."""

    def __init__(self, before, after):
        super().__init__()
        self.places = {
            "relax.add": {0: before, "out": before},
            "relax.negative": {0: after, "out": after},
        }

    def place(self, call):
        return self.places.get(call.op.name)


def check_move(target, first, before, second, after):
    exe = dx.build(Places((first, before), (second, after))(Move), target=target)
    value = np.arange(96, dtype="float32").reshape(8, 12)
    num_workers = 1 + max(*first.device_ids, *second.device_ids)
    with dx.Session(num_workers, ccl="nccl") as session:
        actual = session.load(exe)["main"](value).numpy()
    np.testing.assert_array_equal(actual, -2 * value)


@I.ir_module
class Convolution:
    @R.function
    def main(x: R.Tensor((2, 3, 16), "float32"), w: R.Tensor((4, 3, 3), "float32")) -> R.Tensor(
        (2, 4, 16), "float32"
    ):
        return R.nn.relu(R.nn.conv1d(x, w, padding=1))


def test_halo_of_a_convolution(target, need):
    need(4)
    mesh = dx.Mesh((4,), ("sp",))
    exe = dx.build(dx.annotate(Convolution, mesh, {"x": (None, None, "sp")}), target=target)
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape, "float32") for shape in ((2, 3, 16), (4, 3, 3)))
    with dx.Session(mesh, ccl="nccl") as session:
        actual = session.load(exe)["main"](x, w).numpy()
    np.testing.assert_allclose(actual, on_host(Convolution, "main", (x, w)), rtol=1e-4, atol=1e-5)
