"""Operators that commute with reductions: every pair of the table, checked with NumPy."""

import functools
import itertools

import numpy as np
import pytest
from tests.native.library import call
from tvm import relax
from tvm.relax import op

REDUCTIONS = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min, "prod": np.prod}
commutes_with = functools.partial(call, "CommutesWith")

INDICES = np.array([2, 0, 1], "int64")
WIDE = np.array([[2, 0, 1, 1], [0, 0, 1, 2], [1, 2, 2, 0]], "int64")

# For each operator: shapes of its operands that may be partial, the call, and NumPy's.
CASES = {
    "relax.add": ([(3, 4), (3, 4)], op.add, np.add),
    "relax.subtract": ([(3, 4), (4,)], op.subtract, np.subtract),
    "relax.negative": ([(3, 4)], op.negative, np.negative),
    "relax.multiply": ([(3, 4), (3, 1)], op.multiply, np.multiply),
    "relax.divide": ([(3, 4), (3, 4)], op.divide, np.divide),
    "relax.maximum": ([(3, 4), (3, 4)], op.maximum, np.maximum),
    "relax.minimum": ([(3, 4), (3, 4)], op.minimum, np.minimum),
    "relax.matmul": ([(3, 4), (4, 2)], op.matmul, np.matmul),
    "relax.einsum": (
        [(3, 4), (3, 4, 2)],
        lambda *x: op.einsum(x, "te,ted->td"),
        lambda *x: np.einsum("te,ted->td", *x),
    ),
    "relax.sum": ([(3, 4)], lambda x: op.sum(x, 1), lambda x: x.sum(1)),
    "relax.mean": ([(3, 4)], lambda x: op.mean(x, 1), lambda x: x.mean(1)),
    "relax.max": ([(3, 4)], lambda x: op.max(x, 1), lambda x: x.max(1)),
    "relax.min": ([(3, 4)], lambda x: op.min(x, 1), lambda x: x.min(1)),
    "relax.cumsum": ([(3, 4)], lambda x: op.cumsum(x, 1), lambda x: x.cumsum(1)),
    "relax.astype": (
        [(3, 4)],
        lambda x: op.astype(x, "float16"),
        lambda x: x.astype("float16"),
    ),
    "relax.nn.relu": ([(3, 4)], op.nn.relu, lambda x: np.maximum(x, 0)),
    "relax.exp": ([(3, 4)], op.exp, np.exp),
    "relax.sigmoid": ([(3, 4)], op.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
    "relax.tanh": ([(3, 4)], op.tanh, np.tanh),
    "relax.floor": ([(3, 4)], op.floor, np.floor),
    "relax.ceil": ([(3, 4)], op.ceil, np.ceil),
    "relax.round": ([(3, 4)], op.round, np.round),
    "relax.broadcast_to": (
        [(3, 1)],
        lambda x: op.broadcast_to(x, (3, 4)),
        lambda x: np.broadcast_to(x, (3, 4)),
    ),
    "relax.builtin.stop_lift_params": (
        [(3, 4)],
        lambda x: relax.op.builtin.stop_lift_params(x),
        lambda x: x,
    ),
    "relax.concat": (
        [(3, 4), (3, 2)],
        lambda *x: op.concat(x, 1),
        lambda *x: np.concatenate(x, 1),
    ),
    "relax.expand_dims": ([(3, 4)], lambda x: op.expand_dims(x, 1), lambda x: x[:, None]),
    "relax.flip": ([(3, 4)], lambda x: op.flip(x, 1), lambda x: x[:, ::-1]),
    "relax.permute_dims": ([(3, 4)], op.permute_dims, np.transpose),
    "relax.repeat": ([(3, 4)], lambda x: op.repeat(x, 2, 1), lambda x: np.repeat(x, 2, 1)),
    "relax.reshape": ([(3, 4)], lambda x: op.reshape(x, (2, 6)), lambda x: x.reshape(2, 6)),
    "relax.split": ([(3, 4)], lambda x: op.split(x, 2, 1), lambda x: np.stack(np.split(x, 2, 1))),
    "relax.squeeze": ([(3, 1)], lambda x: op.squeeze(x, 1), lambda x: x[:, 0]),
    "relax.stack": ([(3, 4), (3, 4)], lambda *x: op.stack(x, 0), lambda *x: np.stack(x)),
    "relax.tile": ([(3, 4)], lambda x: op.tile(x, (1, 2)), lambda x: np.tile(x, (1, 2))),
    "relax.gather_elements": (
        [(3, 4)],
        lambda x: op.gather_elements(x, relax.const(WIDE), 0),
        lambda x: np.take_along_axis(x, WIDE, 0),
    ),
    "relax.nn.pad": (
        [(3, 4)],
        lambda x: op.nn.pad(x, [0, 0, 0, 2]),
        lambda x: np.pad(x, ((0, 0), (0, 2))),
    ),
    "relax.strided_slice": (
        [(3, 4)],
        lambda x: op.strided_slice(x, [1], [1], [3]),
        lambda x: x[:, 1:3],
    ),
    "relax.take": ([(3, 4)], lambda x: op.take(x, relax.const(INDICES), 0), lambda x: x[INDICES]),
}
WHOLE_OPERANDS = {"relax.gather_elements": 1, "relax.take": 1}


def infer(value):
    """The call with the type of its result."""
    builder = relax.BlockBuilder()
    with builder.function("main", []):
        bound = builder.emit(value)
        builder.emit_func_output(relax.const(0))
    del bound
    return builder.get()["main"].body.blocks[0].bindings[0].value


def test_every_operator_of_the_table_has_a_case():
    assert sorted(CASES) == sorted(call("CommutingOperators"))


def claims(name, reduction):
    """The marks of partial operands in which the table says that the operator commutes."""
    shapes, apply, _ = CASES[name]
    variables = [relax.Var("x", relax.TensorType(shape, "float32")) for shape in shapes]
    applied = infer(apply(*variables))
    whole = [False] * WHOLE_OPERANDS.get(name, 0)
    return [
        marks
        for marks in itertools.product([False, True], repeat=len(shapes))
        if any(marks) and commutes_with(applied, [*marks, *whole], reduction)
    ]


@pytest.mark.parametrize("name", sorted(CASES))
def test_what_commutes_gives_the_same_numbers(name):
    shapes, _, compute = CASES[name]
    rng = np.random.default_rng(0)
    found = 0
    for reduction, reduce in REDUCTIONS.items():
        for marks in claims(name, reduction):
            found += 1
            parts = [
                rng.normal(size=(3 if mark else 1, *shape))
                for shape, mark in zip(shapes, marks, strict=True)
            ]
            before = compute(*(reduce(part, axis=0) for part in parts))
            each = [compute(*(part[min(i, len(part) - 1)] for part in parts)) for i in range(3)]
            np.testing.assert_allclose(
                reduce(np.stack(each), axis=0), before, rtol=1e-9, err_msg=f"{reduction} {marks}"
            )
    assert found > 0


@pytest.mark.parametrize(
    ("name", "reduction", "marks"),
    [
        ("relax.add", "sum", (True, False)),
        ("relax.add", "max", (True, True)),
        ("relax.subtract", "max", (False, True)),
        ("relax.multiply", "sum", (True, True)),
        ("relax.multiply", "max", (True, False)),
        ("relax.divide", "sum", (False, True)),
        ("relax.maximum", "sum", (True, True)),
        ("relax.negative", "max", (True,)),
        ("relax.matmul", "sum", (True, True)),
        ("relax.exp", "sum", (True,)),
        ("relax.astype", "sum", (True,)),
        ("relax.concat", "sum", (True, False)),
    ],
)
def test_what_does_not_commute_is_not_claimed(name, reduction, marks):
    assert marks not in claims(name, reduction)


def test_integer_division_does_not_commute():
    x, y = (relax.Var(name, relax.TensorType((4,), "int32")) for name in "xy")
    assert not commutes_with(infer(op.divide(x, y)), [True, False], "sum")


def test_an_operator_outside_the_table_does_not_commute():
    x = relax.Var("x", relax.TensorType((4, 4), "float32"))
    assert not commutes_with(infer(op.nn.softmax(x)), [True], "sum")
