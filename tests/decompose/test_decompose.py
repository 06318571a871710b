"""Calls that are sharded along a dimension that needs replication: what they become and send."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tests.decompose.programs import MESH, program
from tvm import relax
from tvm.relax import op
from tvm.relax.op import nn
from tvm.relax.op.distributed import annotate_sharding

import distir_ext as dx
from distir_ext.testing.phases import verify

ROWS, COLUMNS = 16, 4096


def along_columns(apply):
    return program([(ROWS, COLUMNS)], [(None, "x")], apply)


def normalized(apply):
    return program(
        [(ROWS, COLUMNS), (COLUMNS,)],
        [(None, "x"), ("x",)],
        apply,
        ("float32", "float32"),
    )


PROGRAMS = {
    "softmax": (along_columns(lambda x: nn.softmax(x, -1)), {"all_reduce": 2}),
    "log_softmax": (along_columns(lambda x: nn.log_softmax(x, -1)), {"all_reduce": 2}),
    "layer_norm": (normalized(lambda x, w: nn.layer_norm(x, w, w, [-1])), {"all_reduce": 2}),
    "rms_norm": (normalized(lambda x, w: nn.rms_norm(x, w, [-1])), {"all_reduce": 1}),
    "group_norm": (
        program(
            [(ROWS, 8, COLUMNS), (8,)],
            [(None, None, "x"), (None,)],
            lambda x, w: nn.group_norm(x, w, w, 2, 1, [2]),
            ("float32", "float32"),
        ),
        {"all_reduce": 2},
    ),
    "instance_norm": (
        program(
            [(ROWS, 8, COLUMNS), (8,)],
            [(None, None, "x"), (None,)],
            lambda x, w: nn.instance_norm(x, w, w, 1, [2]),
            ("float32", "float32"),
        ),
        {"all_reduce": 2},
    ),
    "std": (along_columns(lambda x: op.std(x, -1)), {"all_reduce": 2}),
    "variance": (along_columns(lambda x: op.variance(x, -1, True)), {"all_reduce": 2}),
    "batch_norm": (
        program(
            [(COLUMNS, 8), (8,)],
            [("x", None), (None,)],
            lambda x, w: nn.batch_norm(x, w, w, w, w, 1, training=True)[0],
            ("float32", "float32"),
        ),
        {"all_reduce": 2},
    ),
    "argmax": (along_columns(lambda x: op.argmax(x, -1)), {"all_reduce": 2}),
    "argmin": (along_columns(lambda x: op.argmin(x, -1, True)), {"all_reduce": 2}),
    "cumsum": (along_columns(lambda x: op.cumsum(x, -1)), {"all_gather": 1}),
    "cumprod": (along_columns(lambda x: op.cumprod(x, -1)), {"all_gather": 1}),
    "topk": (along_columns(lambda x: op.topk(x, 3)), {"all_gather": 2}),
    "tril": (along_columns(lambda x: op.tril(x, 3)), {}),
    "eye_like": (along_columns(op.eye_like), {}),
    "take": (
        program([(COLUMNS, 64), (ROWS,)], [("x", None), (None,)], lambda t, i: op.take(t, i, 0)),
        {"all_reduce": 1},
    ),
    "nll_loss": (
        program([(ROWS, COLUMNS), (ROWS,)], [(None, "x"), (None,)], lambda x, t: nn.nll_loss(x, t)),
        {"all_reduce": 1},
    ),
    "nll_loss_backward": (
        program(
            [(ROWS, COLUMNS), (ROWS,)],
            [(None, "x"), (None,)],
            lambda x, t: op.grad.nll_loss_backward(relax.const(1.0), x, t),
        ),
        {},
    ),
    "cross_entropy": (
        along_columns(lambda x: nn.cross_entropy_with_logits(x, x)),
        {"all_reduce": 1},
    ),
    "attention": (
        program(
            [(2, COLUMNS, 4, 16), (2, 1, 8, 16)],
            [(None, "x", None, None), (None,) * 4],
            lambda kv, q: nn.attention(q, kv, kv),
            ("float32", "float32"),
        ),
        {"all_reduce": 3},
    ),
    "gather_elements": (
        program(
            [(COLUMNS, 8), (ROWS, 8)],
            [("x", None), (None, None)],
            lambda t, i: op.gather_elements(t, i, 0),
        ),
        {"all_reduce": 1},
    ),
    "gather_nd": (
        program([(COLUMNS, 8), (ROWS, 1)], [("x", None), (None, None)], op.gather_nd),
        {"all_reduce": 1},
    ),
    "index_tensor": (
        program(
            [(8, COLUMNS), (ROWS,)],
            [(None, "x"), (None,)],
            lambda t, i: op.index_tensor(t, [op.floor_mod(i, relax.const(8, "int64")), i]),
        ),
        {"all_reduce": 1},
    ),
    "scatter_elements": (
        program(
            [(COLUMNS, 8), (ROWS, 8), (ROWS, 8)],
            [("x", None), (None, None), (None, None)],
            lambda t, i, u: op.scatter_elements(t, i, u, 0, "add"),
        ),
        {},
    ),
    "scatter_elements of much": (
        program(
            [(COLUMNS,), (COLUMNS,), (8,)],
            [("x",), ("x",), (None,)],
            lambda u, i, t: op.scatter_elements(t, i, u, 0, "add"),
        ),
        {"all_reduce": 1},
    ),
    "scatter_nd": (
        program(
            [(COLUMNS, 8), (ROWS, 1), (ROWS, 8)],
            [("x", None), (None, None), (None, None)],
            op.scatter_nd,
        ),
        {},
    ),
    "index_put": (
        program(
            [(8, COLUMNS), (ROWS,), (ROWS,)],
            [(None, "x"), (None,), (None,)],
            lambda t, i, u: op.index_put(t, [op.floor_mod(i, relax.const(8, "int64")), i], u),
        ),
        {},
    ),
    "take_backward": (
        program(
            [(COLUMNS, 8), (ROWS,), (ROWS, 8)],
            [("x", None), (None,), (None, None)],
            lambda t, i, dy: op.grad.take_backward(dy, t, i, 0),
        ),
        {},
    ),
    "slice_scatter": (
        program(
            [(8, COLUMNS), (8, 4)],
            [(None, "x"), (None, None)],
            lambda x, y: op.slice_scatter(x, y, 5, 9, 1, 1),
            ("float32", "float32"),
        ),
        {},
    ),
    "resize2d": (
        program(
            [(1, ROWS, COLUMNS, 8)],
            [(None, None, "x", None)],
            lambda x: op.image.resize2d(x, (2 * COLUMNS, 8), method="linear"),
        ),
        {"segment_exchange": 1},
    ),
    "strided_slice": (
        along_columns(lambda x: op.strided_slice(x, [1], [8], [COLUMNS - 8])),
        {"segment_exchange": 1},
    ),
    "pad": (along_columns(lambda x: nn.pad(x, [0, 0, 4, 4], "reflect")), {"segment_exchange": 1}),
    "conv1d": (
        program(
            [(1, ROWS, COLUMNS), (ROWS, ROWS, 5)],
            [(None, None, "x"), (None, None, None)],
            lambda x, w: nn.conv1d(x, w, padding=2),
            ("float32", "float32"),
        ),
        {"segment_exchange": 1},
    ),
    "max_pool1d": (
        program([(1, ROWS, COLUMNS)], [(None, None, "x")], lambda x: nn.max_pool1d(x, 3, 2, 1)),
        {"segment_exchange": 1},
    ),
}


@pytest.mark.parametrize(("mod", "wanted"), PROGRAMS.values(), ids=PROGRAMS)
def test_operand_is_not_gathered(mod, wanted):
    operand = mod["main"].params[0].ty
    size = np.prod([int(n) for n in operand.shape]) * 4
    lowered = dx.transform.LowerDistIR()(dx.transform.PropagateSharding()(mod))
    found = dx.analysis.collectives(lowered)
    counts: dict[str, int] = {}
    for each in found:
        counts[each.kind] = counts.get(each.kind, 0) + each.count
    assert counts == wanted
    assert sum(each.bytes_per_device * each.count for each in found) * 20 < size


@pytest.mark.parametrize(("mod", "_"), PROGRAMS.values(), ids=PROGRAMS)
def test_expanded_program_is_whole(mod, _):
    propagated = dx.transform.PropagateSharding()(mod)
    expanded = dx.transform.DecomposeSharded()(propagated)
    assert not tvm_ffi.structural_equal(expanded, propagated)
    verify(expanded, "propagated")
    assert relax.analysis.check_well_formed(expanded)
    tvm.ir.assert_structural_equal(tvm.script.from_source(expanded.script()), expanded)
    tvm.ir.assert_structural_equal(dx.transform.DecomposeSharded()(expanded), expanded)
    legalized = dx.transform.LegalizeRedistribute()(expanded)
    verify(legalized, "legalized")
    tvm.ir.assert_structural_equal(dx.transform.LegalizeRedistribute()(propagated), legalized)


def test_call_that_is_whole_along_its_axis_stays():
    mod = program([(ROWS, COLUMNS)], [("x", None)], lambda x: nn.softmax(x, -1))
    propagated = dx.transform.PropagateSharding()(mod)
    assert dx.transform.DecomposeSharded()(propagated).same_as(propagated)


@pytest.mark.parametrize(
    ("rows_of_table", "positions", "wanted"),
    [
        # The positions are gathered, each device looks its rows up, the sum is scattered.
        (16 * COLUMNS, ROWS, ["all_gather", "reduce_scatter"]),
        (ROWS, COLUMNS, ["all_gather"]),  # the table is gathered
    ],
)
def test_table_and_positions_on_one_axis_move_the_smaller_part(rows_of_table, positions, wanted):
    mod = program(
        [(rows_of_table, 64), (positions,)], [("x", None), ("x",)], lambda t, i: op.take(t, i, 0)
    )
    propagated = dx.transform.PropagateSharding()(mod)
    assert repr(propagated["main"].ret_ty.placement).strip('"') == "S[0]"
    assert [each.kind for each in dx.analysis.collectives(dx.lower(propagated))] == wanted


@pytest.mark.parametrize(
    ("size", "updates", "wanted"),
    [
        (8, COLUMNS, ["all_reduce"]),  # of what the shards come to
        (COLUMNS, 8, ["all_gather", "all_gather"]),  # of the updates and their positions
    ],
)
def test_accumulating_updates_in_shards_moves_the_smaller_part(size, updates, wanted):
    mod = program(
        [(updates,), (updates,), (size,)],
        [("x",), ("x",), (None,)],
        lambda u, i, x: op.scatter_elements(x, i, u, 0, "add"),
    )
    lowered = dx.transform.LowerDistIR()(dx.transform.PropagateSharding()(mod))
    kinds = [each.kind for each in dx.analysis.collectives(lowered) for _ in range(each.count)]
    assert kinds == wanted


def test_unknown_sizes_stay_whole_where_a_position_must_tell_its_shard():
    n = tvm.tirx.Var("n", "int64")
    mod = program([(ROWS, n)], [(None, "x")], lambda x: op.argmax(x, -1))
    lowered = dx.transform.LowerDistIR()(dx.transform.PropagateSharding()(mod))
    assert [each.kind for each in dx.analysis.collectives(lowered)] == ["all_gather"]


def made(apply, *placement, shape=()):
    """A function of a parameter that is not used, and of a result that is placed."""
    builder = relax.BlockBuilder()
    params = [relax.Var("x", relax.TensorType(shape, "float32"))]
    with builder.function("main", params):
        with builder.dataflow():
            value = builder.emit(apply(*params))
            result = builder.emit_output(
                annotate_sharding(value, MESH.device_mesh, MESH.placement(*placement))
            )
        builder.emit_func_output(result)
    mod = builder.get()
    mod.update_global_info("mesh", [MESH.device_mesh])
    return mod


CREATED = {
    "arange": (made(lambda x: op.arange(3, 4099, 1, "int32"), "x"), 1),
    "eye": (made(lambda x: op.eye(512, 256, 3), "x", None), 512),
    "full": (made(lambda x: op.full((16, 4096), x), None, "x"), 1),
    "hamming_window": (made(lambda x: op.hamming_window(4096, True, 0.5, 0.5, "float32"), "x"), 1),
    "ones": (made(lambda x: op.ones((4096,), "float32"), "x"), 1),
    "zeros": (made(lambda x: op.zeros((16, 4096), "float16"), None, "x"), 1),
    "one_hot": (made(lambda x: op.one_hot(op.zeros((16,), "int64"), 1, 0, 4096), None, "x"), 16),
    "broadcast_to": (
        made(lambda x: op.broadcast_to(x, (64, 3, 64)), "x", None, None, shape=(3, 1)),
        1,
    ),
}


def tensors(mod):
    """Sizes of all tensors that the workers make."""
    found = []
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            if isinstance(binding.var.ty, relax.TensorType):
                found.append(int(np.prod([int(n) for n in binding.var.ty.shape])))
    return found


@pytest.mark.parametrize(("mod", "operands"), CREATED.values(), ids=CREATED)
def test_a_shard_is_made_without_the_whole(mod, operands):
    lowered = dx.transform.LowerDistIR()(dx.transform.PropagateSharding()(mod))
    assert dx.analysis.collectives(lowered) == []
    whole = int(np.prod([int(n) for n in mod["main"].ret_ty.shape]))
    assert max(tensors(lowered)) == max(whole // 4, operands)


@pytest.mark.parametrize("size", [4095, 4093])
@pytest.mark.parametrize(
    ("apply", "rank"),
    [
        (lambda n: op.arange(3, 3 + 2 * n, 2, "int32"), 1),
        (lambda n: op.arange(0.25, 0.25 + n, 1.0, "float32"), 1),
        (lambda n: op.eye(n, 3, -1), 2),
        (lambda n: op.full((n, 2), relax.const(2.5)), 2),
        (lambda n: op.zeros((n,), "float32"), 1),
        (lambda n: op.one_hot(relax.const(np.array([5, n - 1])), 1, 0, n, 0), 2),
        (lambda n: op.broadcast_to(relax.const(np.ones((1, 2), "float32")), (n, 2)), 2),
    ],
    ids=["arange", "arange of floats", "eye", "full", "zeros", "one_hot", "broadcast_to"],
)
def test_an_uneven_shard_is_made_without_the_whole(apply, rank, size):
    mod = made(lambda x: apply(size), "x", *[None] * (rank - 1))
    lowered = dx.lower(mod)
    assert dx.analysis.collectives(lowered) == []
    assert max(tensors(lowered)) < size


def test_late_expansion_is_refused():
    propagated = dx.transform.PropagateSharding()(PROGRAMS["softmax"][0])
    marked = tvm.IRModule(
        {
            name: function.with_attr("distir.explicit_reductions", True)
            for name, function in propagated.functions.items()
        },
        global_infos=propagated.global_infos,
    )
    with pytest.raises(ValueError, match="in `main`: a call is sharded along a dimension that its"):
        dx.transform.LegalizeRedistribute()(marked)
    with pytest.raises(ValueError, match="a dimension that its operator needs replicated"):
        verify(marked, "legalized")


def test_zeros_of_a_symbolic_size_are_cut_and_not_gathered():
    rows = tvm.tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((rows, 4), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            zeros = builder.emit(op.zeros((rows, 4), "float32"))
            result = builder.emit_output(op.maximum(x, zeros))
        builder.emit_func_output(result)
    mod = dx.annotate(builder.get(), dx.Mesh(tp=2), {"x": ("tp", None)})
    assert dx.analysis.collectives(dx.lower(mod)) == []
