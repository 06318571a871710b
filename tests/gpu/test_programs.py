"""Partitioned programs on GPUs compute what the originals compute on the host."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from safetensors.numpy import save_file
from tests.pipelines.test_kv_cache import Served
from tests.stages.programs import chain, chain_result, chain_values
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
        return R.nn.silu(R.matmul(h, down))


def mlp(x, up, down):
    def silu(value):
        return value * (1 + np.tanh(value / 2)) / 2

    return silu(silu(x @ up) @ down)


@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (2, 2)], ids=str)
def test_symbolic_batch(target, worker_kind, open_session, shape):
    mesh = dx.Mesh(shape, ("dp", "tp"))
    plan = {"x": ("dp", None), "up": (None, "tp"), "down": ("tp", None)}
    exe = dx.build(dx.annotate(MLP, mesh, plan), target=target)
    rng = np.random.default_rng(0)
    up, down = (rng.standard_normal(s, "float32") for s in ((16, 32), (32, 16)))
    with open_session(int(np.prod(shape))) as session:
        model = session.load(exe, params=[up, down])
        for rows in (4, 12, 4):
            x = rng.standard_normal((rows, 16), "float32")
            actual = model["main"](x)
            np.testing.assert_allclose(actual.numpy(), mlp(x, up, down), rtol=1e-3, atol=1e-5)
            if worker_kind == "threads":
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
def test_demonstrations(target, open_session, case):
    exe = dx.build(case.annotate(case.module), target=target)
    with open_session(case.workers) as session:
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
def test_redistribution_on_a_mesh(target, open_session, before, after):
    mesh = dx.Mesh((2, 2), ("x", "y"))
    check_move(target, open_session, mesh, before, mesh, after)


@pytest.mark.parametrize(
    ("worker_kind", "ids"),
    [
        ("threads", [4, 5, 6, 7]),
        ("threads", [2, 3, 6, 7]),
        ("threads", [3, 2, 1, 0]),
        ("processes", [3, 2, 1, 0]),
    ],
    ids=str,
    indirect=["worker_kind"],
)
@pytest.mark.parametrize("move", ["all to all", "exchange", "gather"])
def test_transfer_between_meshes(target, open_session, move, ids):
    first = dx.Mesh((2, 2), ("x", "y"))
    second = dx.Mesh((2, 2), ("x", "y"), device_ids=ids)
    before, after = MOVES[move]
    check_move(target, open_session, first, before, second, after)


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


def check_move(target, open_session, first, before, second, after):
    exe = dx.build(Places((first, before), (second, after))(Move), target=target)
    value = np.arange(96, dtype="float32").reshape(8, 12)
    num_workers = 1 + max(*first.device_ids, *second.device_ids)
    with open_session(num_workers) as session:
        actual = session.load(exe)["main"](value).numpy()
    np.testing.assert_array_equal(actual, -2 * value)


@I.ir_module
class Convolution:
    @R.function
    def main(x: R.Tensor((2, 3, 16), "float32"), w: R.Tensor((4, 3, 3), "float32")) -> R.Tensor(
        (2, 4, 16), "float32"
    ):
        return R.nn.relu(R.nn.conv1d(x, w, padding=1))


def test_halo_of_a_convolution(target, open_session):
    mesh = dx.Mesh((4,), ("sp",))
    exe = dx.build(dx.annotate(Convolution, mesh, {"x": (None, None, "sp")}), target=target)
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape, "float32") for shape in ((2, 3, 16), (4, 3, 3)))
    with open_session(4) as session:
        actual = session.load(exe)["main"](x, w).numpy()
    np.testing.assert_allclose(actual, on_host(Convolution, "main", (x, w)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_microbatches_go_through_stages(target, open_session, schedule):
    mesh = dx.Mesh((2, 2), ("pp", "tp"))
    widths = [8, 16, 8, 16, 8]
    plan = {r"w[02]": (None, "tp"), r"w[13]": ("tp", None)}
    mod = dx.annotate(chain(widths, rows="n"), mesh, plan)
    exe = dx.build(dx.transform.AssignStages(mesh, "pp")(mod), target=target)
    x, weights = chain_values(widths, rows=12)
    with open_session(4) as session:
        main = session.load(exe, weights)["main"]
        actual = main.pipeline(6, schedule=schedule)(x).numpy()
        np.testing.assert_allclose(actual, chain_result(x, weights), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("form", ["exported", "built"])
def test_weights_from_a_file(target, open_session, tmp_path, form):
    """An executable that is a file, too."""
    mesh = dx.Mesh((2,), ("tp",))
    exe = dx.build(
        dx.annotate(MLP, mesh, {"up": (None, "tp"), "down": ("tp", None)}), target=target
    )
    rng = np.random.default_rng(0)
    x, up, down = (rng.standard_normal(s, "float32") for s in ((4, 16), (16, 32), (32, 16)))
    save_file({"up": up, "down": down}, tmp_path / "weights.safetensors")
    if form == "exported":
        exe.export_library(str(tmp_path / "program.so"))
        exe = tmp_path / "program.so"
    with open_session(2) as session:
        model = session.load(exe, params=tmp_path / "weights.safetensors")
        actual = model["main"](x).numpy()
        model.save_shards(tmp_path / "shards")
        again = session.load(exe, params=tmp_path / "shards")["main"](x).numpy()
    np.testing.assert_allclose(actual, mlp(x, up, down), rtol=1e-3, atol=1e-5)
    np.testing.assert_array_equal(actual, again)


def test_a_cache_stays_on_gpus_between_calls(target, open_session):
    mesh = dx.Mesh((2, 2), ("a", "b"))
    mod = Served
    for name in ("prefill", "decode"):
        mod = dx.annotate(mod, mesh, {"x": (None, "a", "b")}, func=name)
    exe = dx.build(mod, target=target)
    x = np.random.default_rng(0).standard_normal((6, 4, 6), "float32")
    with open_session(4) as session:
        model = session.load(exe)
        caches = model["prefill"](x[:2])
        for index in range(2, 6):
            y, caches = model["decode"](x[index : index + 1], caches, (index,))
            expected = np.square(x[: index + 1]).sum(0)
            np.testing.assert_allclose(y.numpy(), expected, rtol=1e-4)


def test_what_is_sent_and_how_long_it_takes(target, open_session):
    plan = {"up": (None, "tp"), "down": ("tp", None)}
    exe = dx.build(dx.annotate(MLP, dx.Mesh(tp=2), plan), target=target)
    up, down, x = (np.ones(shape, "float32") for shape in ((16, 32), (32, 16), (4, 16)))
    with open_session(2) as session:
        main = session.load(exe, params=[up, down])["main"]
        session.reset_statistics()
        found = main.profile(x, repeat=2, warmup=1)
        sent = session.statistics().of_function("main")
    assert sent.by_axis() == {"tp": 3 * 4 * 16 * 4}  # of two devices each sends its half twice
    assert set(sent.by_kind()) == {"all_reduce"}
    (reduced,) = [total for total in found.totals() if total.kind == "collective"]
    assert (reduced.callee, reduced.axes, reduced.count) == ("all_reduce", ("tp",), 1)
    assert 0 < reduced.seconds + reduced.waiting < found.seconds
    kernels = [total for total in found.totals() if total.kind == "kernel"]
    assert len(kernels) >= 2
    assert {total.devices for total in kernels} == {(0, 1)}
