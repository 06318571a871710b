"""SplitFused joins sums with one term per slice of a sharded tensor into one product and a sum."""

import pytest
from tvm import relax
from tvm.relax import op

import distir_ext as dx

from .test_sorted_rows import operators

MESH = dx.Mesh(ep=4)


def dense(experts=4, spelling="take", skip=(), start=True, shared=False, tokens=8):
    """Every expert computes all tokens: a sum over experts, in a loop."""
    shapes = {
        "x": (tokens, 6),
        "mask": (tokens, experts),
        "up": (experts, 6, 20),
        "down": (experts, 6, 10),
    }
    params = [relax.Var(name, relax.TensorType(shape, "float32")) for name, shape in shapes.items()]
    x, mask, up, down = params
    builder = relax.BlockBuilder()
    emit = builder.emit

    def element(value, i):
        if spelling == "take":
            return emit(op.take(value, relax.const(i, "int64"), axis=0))
        return emit(op.squeeze(emit(op.strided_slice(value, [0], [i], [i + 1])), [0]))

    with builder.function("main", params):
        with builder.dataflow():
            total = emit(op.zeros((tokens, 6), "float32")) if start else None
            for i in range(experts):
                if i in skip:
                    continue
                parts = emit(op.split(emit(op.matmul(x, element(up, i))), 2, axis=-1))
                first, second = (emit(relax.TupleGetItem(parts, j)) for j in range(2))
                h = emit(op.multiply(emit(op.nn.silu(first)), second))
                made = emit(op.matmul(h, emit(op.permute_dims(element(down, i)))))
                column = emit(op.strided_slice(mask, [1], [i], [i + 1]))
                made = emit(op.multiply(made, column))
                total = made if total is None else emit(op.add(total, made))
            if shared:
                total = emit(op.add(total, x))
            result = builder.emit_output(op.nn.relu(total))
        builder.emit_func_output(result)
    return builder.get()


EXPERTS = dict.fromkeys(("up", "down"), ("ep", None, None))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("spelling", ["take", "slice"])
def test_one_product_for_all(spelling, shared):
    mod = dx.transform.SplitFused()(dx.annotate(dense(4, spelling, shared=shared), MESH, EXPERTS))
    found = operators(mod)
    assert found.count("matmul") == 2
    assert found.count("sum") == 1
    assert not {"take", "strided_slice", "squeeze"} & set(found)
    assert found.count("add") == 1 + shared
    sent = dx.analysis.collectives(dx.lower(mod))
    assert [(each.kind, each.count) for each in sent] == [("all_reduce", 1)]


def test_slices_of_annotations_with_terms():
    """Open dimensions, priorities and axes that are kept away made the annotation one of another
    kind of attributes, of which a null placement was read."""
    entries = {
        "open": ("ep", None, ...),
        "all open": ("ep", ..., ...),
        "priority": (dx.Dim("ep", priority=1), None, None),
        "kept away": dx.TensorDims("ep", None, None, replicated=("tp",)),
    }
    mesh = dx.Mesh(ep=4, tp=2)
    for name, entry in entries.items():
        plan = dict.fromkeys(("up", "down"), entry)
        mod = dx.transform.SplitFused()(dx.annotate(dense(4, "slice"), mesh, plan))
        assert operators(mod).count("matmul") == 2, name
    for shape in ((3, 3), (16, 8), (2, 3, 3), (4, 6, 8, 2)):
        for inbound in (True, False):
            x = relax.Var("x", relax.TensorType(shape, "int64"))
            builder = relax.BlockBuilder()
            last = len(shape) - 1
            with builder.function("main", [x]):
                part = op.strided_slice(x, [last], [0], [1], [1], assume_inbound=inbound)
                builder.emit_func_output(builder.emit(part))
            dims = (*["ep"][: shape[0] // 4], *[...] * (len(shape) - (shape[0] >= 4)))
            mod = dx.annotate(builder.get(), mesh, {"x": dims})
            propagated = dx.transform.PropagateSharding()(mod)
            found = dx.dims(propagated, propagated["main"].ret_ty)
            assert found == (*["ep"][: shape[0] // 4], *[None] * (len(shape) - (shape[0] >= 4)))


def test_slices_of_a_shape_that_is_not_known_stay():
    x, s = (
        relax.Var("x", relax.TensorType((4, 8), "float32")),
        relax.Var("s", relax.TensorType((2,), "int64")),
    )
    builder = relax.BlockBuilder()
    with builder.function("main", [x, s]):
        shape = builder.emit(op.tensor_to_shape(s))
        total = None
        for i in range(4):
            term = builder.emit(op.strided_slice(x, [0], [i], [i + 1]))
            term = builder.emit(op.reshape(term, shape))
            total = term if total is None else builder.emit(op.add(total, term))
        builder.emit_func_output(total)
    mod = dx.transform.SplitFused()(dx.annotate(builder.get(), MESH, {"x": ("ep", None)}))
    assert operators(mod).count("reshape") == 4


@pytest.mark.parametrize(
    ("options", "plan"),
    [
        ({}, {"up": (None, None, "ep")}),  # each device has a part of all experts
        ({"skip": (2,)}, EXPERTS),
    ],
)
def test_what_stays(options, plan):
    mod = dx.transform.SplitFused()(dx.annotate(dense(4, **options), MESH, plan))
    assert operators(mod).count("matmul") == 2 * (4 - len(options.get("skip", ())))
