"""Attention in whole heads on any number of devices, against one device."""

import numpy as np
import pytest
from tests.meshes import meshes
from tests.padding.heads import PLAN, Attention
from tests.padding.programs import TALL
from tests.targets import QUICK
from tvm.script import ir as I
from tvm.script import relax as R

import distir_ext as dx

from .checks import assert_same_numbers, whole

GROUPED = Attention()
FEW = Attention(heads=8, kv_heads=2)
ALL_ON_BOTH = {
    name: tuple(("a", "b") if axis else None for axis in dims) for name, dims in PLAN.items()
}


@pytest.mark.parametrize("devices", [3, 5, 6, 7])
@pytest.mark.parametrize(
    "attention", [GROUPED, FEW, Attention(heads=8, repeats=True)], ids=["8 keys", "2 keys", "8"]
)
def test_numbers(attention, devices, session_of):
    program = attention.program()
    mesh = dx.Mesh(tp=devices)
    assert_same_numbers(program.module(), mesh, PLAN, program.inputs(), session_of((devices,)))


@pytest.mark.parametrize("attention", [GROUPED, FEW], ids=["8 keys", "2 keys"])
def test_three_by_two(attention, session_of):
    program = attention.program()
    assert_same_numbers(program.module(), TALL, ALL_ON_BOTH, program.inputs(), session_of((3, 2)))


def test_float16(session_of):
    program = Attention(dtype="float16").program()
    assert_same_numbers(program.module(), dx.Mesh(tp=5), PLAN, program.inputs(), session_of((5,)))


@I.ir_module
class Conflicts:
    """6 heads of 4 on 4 devices: a norm of the columns, which must divide; other groups of them."""

    @R.function(private=True)
    def gain(x: R.Tensor((5, 24), "float32")) -> R.Tensor((5, 8, 3), "float32"):
        y = R.exp(R.tanh(x))
        z = R.reshape(y, R.shape([5, 8, 3]))
        return z

    @R.function
    def main(
        x: R.Tensor((5, 10), "float32"),
        w: R.Tensor((10, 24), "float32"),
        gamma: R.Tensor((24,), "float32"),
        flag: R.Tensor((), "bool"),
    ):
        h = R.matmul(x, w)
        n = R.nn.rms_norm(h, gamma, axes=[-1])
        a = R.reshape(h, R.shape([5, 6, 4]))
        b = R.reshape(n, R.shape([5, 6, 4]))
        c = R.add(R.exp(R.tanh(a)), b)
        d = R.reshape(c, R.shape([5, 24]))
        e = Conflicts.gain(d)
        if flag:  # noqa: SIM108
            y = R.exp(R.tanh(d))
        else:
            y = R.add(h, d)
        return (c, e, y, R.sum(d, axis=[1]))


@pytest.mark.large
@pytest.mark.parametrize("devices", [3, 4, 5])
@pytest.mark.parametrize("flag", [False, True])
def test_grains_that_have_nothing_in_common(devices, flag, session_of):
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(s).astype("float32") for s in ((5, 10), (10, 24), (24,))]
    assert_same_numbers(
        Conflicts,
        dx.Mesh(tp=devices),
        {"w": (None, "tp")},
        [*inputs, np.array(flag)],
        session_of((devices,)),
    )


def test_weights_from_files_are_cut_at_heads(tmp_path):
    """From safetensors, and from shards that a session wrote, also on other devices."""
    from safetensors.numpy import save_file

    program = GROUPED.program()
    mod = program.module().with_attr("distir.test", 1)
    mod["main"] = mod["main"].with_attr("num_input", 1)
    x, *values = program.inputs()
    weights = dict(zip(list(GROUPED.shapes())[1:], values, strict=True))
    save_file(weights, tmp_path / "weights.safetensors")
    (expected,) = whole(program.module(), [x, *values])
    source = tmp_path / "weights.safetensors"
    for devices in (3, 5, 8):
        mesh = dx.Mesh(tp=devices)
        executable = dx.build(dx.annotate(mod, mesh, PLAN), QUICK)
        with dx.Session(mesh) as session:
            model = session.load(executable, params=source)
            np.testing.assert_allclose(model["main"](x).numpy(), expected, rtol=1e-4, atol=1e-5)
            source = tmp_path / f"shards-{devices}"
            model.save_shards(source)


def test_results_are_arguments_of_other_grains(session_of):
    """Results padded to heads are arguments of a program that pads to columns, and back."""

    @I.ir_module
    class Split:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(x: R.DTensor((2, 24), "float32", "mesh[0]", "S[1]")):
            y = R.reshape(R.exp(x), R.shape([2, 6, 4]))
            z = R.reshape(R.exp(y), R.shape([2, 24]))
            return z

    @I.ir_module
    class Even:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(x: R.DTensor((2, 24), "float32", "mesh[0]", "S[1]")):
            y = R.negative(x)
            return y

    session = session_of((4,))
    split = session.load(dx.build(Split, QUICK))["main"]
    even = session.load(dx.build(Even, QUICK))["main"]
    x = np.linspace(-1, 1, 48, dtype="float32").reshape(2, 24)
    expected = -np.exp(np.exp(x))
    first = even(split(x))
    np.testing.assert_allclose(first.numpy(), expected, rtol=1e-5)
    np.testing.assert_allclose(split(first).numpy(), np.exp(np.exp(expected)), rtol=1e-5)
