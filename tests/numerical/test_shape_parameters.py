"""Sizes that shapes, numbers and several arguments state, compared with the unsharded program."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tests.targets import QUICK
from tvm import relax, tirx
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import distir_ext as dx

DP2 = dx.Mesh((2,), ("dp",))
DP3 = dx.Mesh((3,), ("dp",))
GRID = dx.Mesh((3, 2), ("dp", "tp"))


def array(*shape):
    return np.random.default_rng(len(shape)).standard_normal(shape, "float32")


def unsharded(mod):
    machine = relax.VirtualMachine(tvm.compile(mod, QUICK), tvm.cpu())

    def taken(value):
        if isinstance(value, np.ndarray):
            return tvm.runtime.tensor(value)
        if isinstance(value, list):
            return [taken(each) for each in value]
        return tvm.runtime.ShapeTuple(value) if isinstance(value, tuple) else value

    return lambda *arguments: machine["main"](*map(taken, arguments))


def leaves(result):
    """Tensors as arrays, shapes and numbers as they are."""
    if hasattr(result, "numpy"):
        return [result.numpy()]
    if isinstance(result, tvm.runtime.ShapeTuple):
        return [np.array(list(result))]
    if isinstance(result, bool | int | float):
        return [np.array(result)]
    return [leaf for each in result for leaf in leaves(each)]


def compared(mod, plan, mesh, session, arguments):
    model = session.load(dx.build(dx.annotate(mod, mesh, plan), QUICK))
    reference = unsharded(mod)
    for each in arguments:
        wanted, found = leaves(reference(*each)), leaves(model["main"](*each))
        assert len(found) == len(wanted)
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-6)
    return model["main"]


@I.ir_module
class Wide:
    @R.function
    def main(x: R.Tensor((1, 4), "float32"), sh: R.Shape(["n"])):
        n = T.int64()
        y = R.negative(R.broadcast_to(x, (n, 4)))
        return y


@I.ir_module
class Counted:
    """A number is a size, and a result."""

    @R.function
    def main(x: R.Tensor((1, 4), "float32"), n: R.Prim("int64"), scale: R.Prim("float32")):
        y = R.exp(R.broadcast_to(x, (n, 4)))
        return (y, n, scale)


@I.ir_module
class Several:
    """Sizes of a shape in a tuple, of which one is that of a tensor."""

    @R.function
    def main(t: R.Tuple(R.Shape(["n", "m"]), R.Tensor(("n", 4), "float32")), sh: R.Shape(["k"])):
        n = T.int64()
        m = T.int64()
        k = T.int64()
        x = t[1]
        y = R.exp(x)
        z = R.add(
            R.broadcast_to(R.reshape(y, (n, 1, 4)), (n, m, 4)), R.ones((k, 1, m, 4), "float32")
        )
        return (z, R.shape([n * 2, k]))


@I.ir_module
class Called:
    """A private function that takes a shape and a number of its own."""

    @R.function(private=True)
    def wide(x: R.Tensor((1, 4), "float32"), sh: R.Shape(["a"])):
        a = T.int64()
        y = R.negative(R.broadcast_to(x, (a, 4)))
        return y

    @R.function
    def main(x: R.Tensor((1, 4), "float32"), sh: R.Shape(["n"])):
        cls = Called
        n = T.int64()
        y = cls.wide(x, sh)
        z = R.exp(y)
        return z


def later(factor):
    """The size of the first argument is computed from that of the second one."""
    n = tvm.tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((n * factor, 4), "float32"))
    y = relax.Var("y", relax.TensorType((n, 4), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, y]):
        z = builder.emit(relax.op.reshape(relax.op.exp(x), (n, factor, 4)))
        total = builder.emit(relax.op.sum(z, axis=[1]))
        builder.emit_func_output(builder.emit(relax.op.add(total, y)))
    return builder.get()


ROWS, COLUMNS = {"z": ("dp", None, None, None)}, {"z": (None, None, "dp", None)}


def test_sizes_of_shapes_and_numbers(session_of):
    x = array(1, 4)
    for mesh in (DP2, DP3):
        session = session_of(mesh.shape)
        sizes = [(x, (n,)) for n in (5, 1, 6)]
        compared(Wide, {"return": ("dp", None)}, mesh, session, sizes)
        compared(Called, {"y": ("dp", None)}, mesh, session, sizes)
        compared(Counted, {"y": ("dp", None)}, mesh, session, [(x, 5, 0.5), (x, 4, np.inf)])
        several = [([(n, m), array(n, 4)], (k,)) for n, m, k in ((5, 3, 2), (2, 2, 1))]
        for plan in (
            {"t.1": ("dp", None)},
            ROWS,
            COLUMNS,
        ):
            compared(Several, plan, mesh, session, several)


def test_sizes_of_arguments_behind_the_one_that_is_cut(session_of):
    for mesh, factor in ((DP3, 4), (DP2, 3), (GRID, 5)):
        sizes = [(array(n * factor, 4), array(n, 4)) for n in (5, 1, 6)]
        main = compared(later(factor), {"x": ("dp", None)}, mesh, session_of(mesh.shape), sizes)
        with pytest.raises(ValueError, match=r'has size 7, but n \* \d is .*"y" .*has n = 3'):
            main(array(7, 4), array(3, 4))
    mod = dx.annotate(later(4), DP3, {"x": ("dp", None)}, inputs=[])
    session = session_of(DP3.shape)
    x, y = array(20, 4), array(5, 4)
    model = session.load(dx.build(mod, QUICK), params={"x": x, "y": y})
    np.testing.assert_allclose(model().numpy(), leaves(unsharded(later(4))(x, y))[0], rtol=2e-6)
    np.testing.assert_array_equal(model.weights()["x"].numpy(), x)


def test_what_contradicts_is_refused(session_of):
    session = session_of(DP2.shape)
    x = array(1, 4)
    wide = compared(Wide, {"return": ("dp", None)}, DP2, session, [(x, (5,))])
    assert "sh: shape[n]" in repr(wide)
    for value, error, text in (
        ((5, 2), ValueError, r'input "sh" of "main" has 2 sizes \[5, 2\], expected 1: shape\[n\]'),
        ((-1,), ValueError, 'entry 0 of input "sh" of "main" is n = -1, which is no size'),
        ((2**70,), ValueError, 'input "sh" of "main" has the size .*, which is no int64'),
        ((1.5,), TypeError, 'input "sh" of "main" is tuple, expected shape'),
        (5, TypeError, 'input "sh" of "main" is int, expected shape'),
    ):
        with pytest.raises(error, match=text):
            wide(x, value)
    several = compared(Several, ROWS, DP2, session, [([(5, 3), array(5, 4)], (2,))])
    with pytest.raises(
        ValueError, match=r"dimension 0 of .*\[1\] .*has n = 4, but entry 0 of .*n = 5"
    ):
        several([(5, 3), array(4, 4)], (2,))
    counted = compared(Counted, {"y": ("dp", None)}, DP2, session, [(x, 5, 0.5)])
    for n, scale, error, text in (
        (2**70, 0.5, ValueError, 'input "n" of "main" is .*, which is no int64'),
        (-1, 0.5, ValueError, 'input "n" of "main" is -1, which is no size'),
        (1.5, 0.5, TypeError, 'input "n" of "main" is float, expected a number: int64'),
        (5, "a", TypeError, 'input "scale" of "main" is str, expected a number: float32'),
    ):
        with pytest.raises(error, match=text):
            counted(x, n, scale)


def test_a_weight_whose_size_an_input_states(session_of):
    """It is n * 2, as each call has n."""
    builder, n = relax.BlockBuilder(), tirx.Var("n", "int64")
    x, w = (
        relax.Var(name, R.Tensor((rows, 4), "float32")) for name, rows in (("x", n), ("w", n * 2))
    )
    with builder.function("main", [x, w], attrs={"num_input": 1}):
        with builder.dataflow():
            result = builder.emit_output(relax.op.concat([x, w], 0))
        builder.emit_func_output(result)
    mesh = dx.Mesh((4,), ("dp",))
    for plan in ({"x": ("dp", None), "w": ("dp", None)}, {"x": ("dp", None)}):
        exe = dx.build(dx.annotate(builder.get(), mesh, plan), QUICK)
        loaded = session_of(mesh.shape).load(exe, params={"w": array(6, 4)})["main"]
        given = array(3, 4)
        np.testing.assert_array_equal(loaded(given), np.concatenate([given, array(6, 4)]))
        with pytest.raises(ValueError, match=r"has size 6, but n \* 2 is 8: .* has n = 4"):
            loaded(array(4, 4))


def test_in_processes():
    with dx.Session(2, workers="processes") as session:
        x = array(1, 4)
        compared(Wide, {"return": ("dp", None)}, DP2, session, [(x, (5,))])
        compared(Counted, {"y": ("dp", None)}, DP2, session, [(x, 5, 0.5), (x, 4, np.inf)])


N, M = tvm.tirx.Var("n", "int64"), tvm.tirx.Var("m", "int64")


def cast(stated, size, back):
    """x of n rows cast to a size that another parameter states, and perhaps back."""
    x = relax.Var("x", relax.TensorType((N, 4), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, relax.Var("s", stated)]):
        y = builder.match_cast(x, relax.TensorType((size, 4), "float32"))
        z = builder.emit(relax.op.add(y, relax.op.ones((size, 4), "float32")))
        if back:
            z = builder.match_cast(z, relax.TensorType((N, 4), "float32"))
            z = builder.emit(relax.op.multiply(z, x))
        builder.emit_func_output(z)
    return builder.get()


def test_casts_to_sizes_that_parameters_state(session_of):
    session = session_of(DP2.shape)
    shape, tensor = relax.ShapeType([M]), relax.TensorType((M,), "float32")
    for stated, size, given in (
        (shape, M, (6,)),
        (tensor, M, array(6)),
        (shape, M * 2, (3,)),
        (tensor, M + 1, array(5)),
    ):
        for back in (False, True):
            for plan in ({"x": ("dp", None)}, {"x": (None, "dp")}):
                compared(cast(stated, size, back), plan, DP2, session, [(array(6, 4), given)])
