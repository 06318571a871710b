"""Programs with uneven shards give what they give on one device."""

import ml_dtypes
import numpy as np
import pytest
from tests.padding.programs import FOUR, PAIR, RUNS, SQUARE, TALL, Program
from tests.targets import QUICK
from tvm import relax
from tvm.relax.distributed import Placement
from tvm.relax.op.distributed import annotate_sharding
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx

from .checks import assert_same_numbers, whole, without_masks


@pytest.mark.parametrize("name", RUNS)
def test_program(name, session_of):
    program, mesh, plan = RUNS[name]
    assert_same_numbers(program.module(), mesh, plan, program.inputs(), session_of(mesh.shape))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_reductions_of_other_types(dtype, session_of):
    def build(emit, x):
        e = emit(relax.op.exp(x))
        return tuple(
            emit(reduce(e, axis=[0]))
            for reduce in (relax.op.sum, relax.op.mean, relax.op.max, relax.op.min, relax.op.prod)
        )

    program = Program({"x": (7, 3)}, build, dtype)
    inputs = [np.random.default_rng(0).uniform(-0.5, 0.5, (7, 3)).astype(_numpy(dtype))]
    assert_same_numbers(program.module(), FOUR, {"x": ("a", None)}, inputs, session_of(FOUR.shape))


def _numpy(dtype):
    return getattr(ml_dtypes, dtype, dtype)


@pytest.mark.parametrize(
    ("write", "wanted"),
    [
        (lambda table, i: relax.op.take(table, i, 0), {"all_reduce"}),
        (lambda table, i: relax.op.index_tensor(table, [i]), {"all_reduce"}),
        (lambda table, i: relax.op.gather_nd(table, relax.op.expand_dims(i, 1)), {"all_reduce"}),
        (
            lambda table, i: relax.op.grad.take_backward(relax.op.take(table, i, 0), table, i, 0),
            {"all_reduce"},
        ),
        # What lies behind the end is brought within the table's true size.
        (lambda table, i: relax.op.take(table, relax.op.add(i, i), 0, "clip"), {"all_reduce"}),
    ],
)
def test_lookups_in_shards_that_do_not_divide(write, wanted, session_of):
    program = Program({"table": (11, 6), "indices": (9,)}, lambda emit, *args: emit(write(*args)))
    plan = {"table": ("a", None)}
    lowered = dx.lower(dx.annotate(program.module(), FOUR, plan))
    assert {each.kind for each in dx.analysis.collectives(lowered)} == wanted
    assert_same_numbers(program.module(), FOUR, plan, program.inputs(), session_of(FOUR.shape))


@pytest.mark.parametrize("mesh", [PAIR, FOUR, SQUARE, TALL], ids=str)
@pytest.mark.parametrize("size", [7, 10, 13])
def test_redistributions_between_paddings(mesh, size, session_of):
    """Through every placement of a matrix, in a chain."""
    axes = range(-1, 2)
    places = [(i, j) for i in axes for j in axes] if len(mesh.shape) == 2 else [(i,) for i in axes]
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((size, 13), "float32"))
    with builder.function("main", [x]):
        value = x
        for place in places + places[::-2] + places[::3]:
            text = ", ".join("R" if dim < 0 else f"S[{dim}]" for dim in place)
            target = Placement.from_text(text)
            value = builder.emit(annotate_sharding(value, mesh.device_mesh, target))
            value = builder.emit(relax.op.add(value, relax.const(1.0)))
        builder.emit_func_output(value)
    mod = builder.get()
    mod.update_global_info("mesh", [mesh.device_mesh])
    data = np.arange(size * 13, dtype="float32").reshape(size, 13)
    model = session_of(mesh.shape).load(dx.build(mod, QUICK))
    steps = len(places + places[::-2] + places[::3])
    np.testing.assert_array_equal(model["main"](data).numpy(), data + steps)


def test_redistribution_to_another_mesh(session_of):
    left, right = dx.Mesh((2,), ("a",)), dx.Mesh((3,), ("a",), [2, 3, 4])
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((7, 5), "float32"))
    with builder.function("main", [x]):
        y = builder.emit(annotate_sharding(x, left.device_mesh, left.placement("a", None)))
        y = builder.emit(relax.op.exp(y))
        y = builder.emit(annotate_sharding(y, right.device_mesh, right.placement("a", None)))
        builder.emit_func_output(builder.emit(relax.op.sum(builder.emit(relax.op.exp(y)), axis=0)))
    mod = builder.get()
    mod.update_global_info("mesh", [left.device_mesh, right.device_mesh])
    data = np.random.default_rng(0).standard_normal((7, 5)).astype("float32") / 2
    with dx.Session(5) as session:
        got = session.load(dx.build(mod, QUICK))["main"](data).numpy()
    np.testing.assert_allclose(got, np.exp(np.exp(data)).sum(0), rtol=1e-5)


@I.ir_module
class Calls:
    """Functions that are called with tuples, in branches, and that reduce over what is uneven."""

    @R.function(private=True)
    def gate(
        pair: R.Tuple(R.Tensor((7, 5), "float32"), R.Tensor((7, 5), "float32")),
    ) -> R.Tuple(R.Tensor((7, 5), "float32"), R.Tensor((5,), "float32")):
        a = pair[0]
        b = pair[1]
        g = R.multiply(R.cos(a), R.exp(b))
        s = R.sum(g, axis=[0])
        return (g, s)

    @R.function(private=True)
    def scale(x: R.Tensor((7, 5), "float32")) -> R.Tensor((7, 5), "float32"):
        m = R.max(R.exp(x), axis=[0], keepdims=True)
        y = R.divide(R.exp(x), m)
        return y

    @R.function
    def main(c: R.Tensor((), "bool"), x: R.Tensor((7, 5), "float32")):
        cls = Calls
        e = R.exp(x)
        first = cls.gate((x, e))
        g = first[0]
        h = cls.scale(g)
        if c:
            y = R.exp(h)
        else:
            t = cls.gate((h, g))
            y = t[0]
        m = R.mean(y, axis=[0])
        second = cls.gate((y, h))
        return (y, m, first, second)


@pytest.mark.parametrize("flag", [False, True])
@pytest.mark.parametrize(
    ("mesh", "plan"),
    [(FOUR, {"x": ("a", None)}), (TALL, {"x": ("a", "b")}), (SQUARE, {"x": (("a", "b"), None)})],
    ids=["4", "3x2", "2x2"],
)
def test_functions(mesh, plan, flag, session_of):
    # Of larger numbers the exponentials have cosines that no float32 knows.
    x = np.random.default_rng(0).uniform(-1, 0, (7, 5)).astype("float32")
    inputs = [np.array(flag), x]
    assert_same_numbers(Calls, mesh, plan, inputs, session_of(mesh.shape))


@I.ir_module
class Recursive:
    @R.function(private=True)
    def loop(x: R.Tensor((7,), "float32"), n: R.Tensor((), "int32")) -> R.Tensor((7,), "float32"):
        cls = Recursive
        c = R.less(n, R.const(1, "int32"))
        if c:
            y = R.exp(x)
        else:
            s = R.sum(R.exp(R.negative(x)), axis=[0], keepdims=True)
            z = R.divide(R.cos(x), s)
            m = R.subtract(n, R.const(1, "int32"))
            y = cls.loop(z, m)
        return y

    @R.function
    def main(x: R.Tensor((7,), "float32"), n: R.Tensor((), "int32")):
        cls = Recursive
        y = cls.loop(x, n)
        return y


def test_recursion(session_of):
    inputs = [np.linspace(-1, 1, 7).astype("float32"), np.array(3, "int32")]
    assert_same_numbers(Recursive, FOUR, {"x": ("a",)}, inputs, session_of(FOUR.shape))


# ---- arguments and results


def test_weights_are_padded_when_they_are_loaded(session_of):
    program, mesh, plan = RUNS["three and two"]
    mod = program.module()
    mod["main"] = mod["main"].with_attr("num_input", 1)
    assert_same_numbers(mod, mesh, plan, program.inputs(), session_of(mesh.shape))


def test_input_must_have_the_true_size(session_of):
    program, mesh, plan = RUNS["batch"]
    model = session_of(mesh.shape).load(dx.build(dx.annotate(program.module(), mesh, plan), QUICK))
    x, *weights = program.inputs()
    with pytest.raises(ValueError, match='dimension 0 of input "x" of "main" has size 8, expected'):
        model["main"](np.zeros((8, 10), "float32"), *weights)
    model["main"](x, *weights)


def test_strided_inputs_and_results_as_inputs(session_of):
    program, mesh, plan = RUNS["batch"]
    mod = program.module()
    model = session_of(mesh.shape).load(dx.build(dx.annotate(mod, mesh, plan), QUICK))
    x, *weights = program.inputs()
    wide = np.repeat(np.repeat(x, 2, axis=0), 3, axis=1)
    once = model["main"](wide[::2, ::3], *weights)
    twice = model["main"](once, *weights)
    (wanted,) = whole(mod, whole(mod, [x, *weights]) + weights)
    np.testing.assert_allclose(twice.numpy(), wanted, rtol=1e-3, atol=1e-4)


# ---- sabotage


@pytest.mark.parametrize("index", range(6))
def test_reduction_without_its_mask_fails(index, session_of):
    names = ("sum", "mean", "max", "min", "prod", "matmul")

    def build(emit, x, y):
        # Tails become exp(0) - 2, or 2 where zero would not be noticed.
        e = emit(relax.op.subtract(emit(relax.op.exp(x)), relax.const(2.0)))
        high = emit(relax.op.add(emit(relax.op.square(x)), relax.const(2.0)))
        low = emit(relax.op.negative(high))
        name = names[index]
        if name == "matmul":
            left = emit(relax.op.permute_dims(e, [1, 0]))
            return emit(relax.op.matmul(left, emit(relax.op.exp(y))))
        value = {"max": low, "min": high}.get(name, e)
        return emit(getattr(relax.op, name)(value, axis=[0]))

    program = Program({"x": (7, 3), "y": (7, 2)}, build)
    inputs = [1 + np.abs(each) for each in program.inputs()]
    run = (program.module(), FOUR, {"x": ("a", None)}, inputs, session_of(FOUR.shape))
    assert_same_numbers(*run)
    with pytest.raises(AssertionError):
        assert_same_numbers(*run, change=without_masks)


def test_unknown_tail_of_an_argument_is_noticed(session_of):
    """Without masks a callee sums what stands behind its argument."""
    inputs = [np.array(True), np.random.default_rng(0).standard_normal((7, 5)).astype("float32")]
    run = (Calls, FOUR, {"x": ("a", None)}, inputs, session_of(FOUR.shape))
    with pytest.raises(AssertionError):
        assert_same_numbers(*run, change=without_masks)
