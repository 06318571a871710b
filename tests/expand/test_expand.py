"""Calls that are sharded along what they look along: what they become, and what that sends."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.relax import op
from tvm.relax.op import nn
from tvm.relax.op.distributed import annotate_sharding

import distir_ext as dx
from distir_ext.testing import verify

MESH = dx.Mesh((4,), ("x",))
ROWS, COLUMNS = 16, 4096


def program(shapes, placements, apply, dtypes=("float32", "int64", "float32")):
    """A function of annotated parameters."""
    builder = relax.BlockBuilder()
    params = [
        relax.Var(f"x{i}", relax.TensorType(shape, dtype))
        for i, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=False))
    ]
    with builder.function("main", params):
        with builder.dataflow():
            args = [
                builder.emit(annotate_sharding(param, MESH.device_mesh, MESH.placement(*dims)))
                for param, dims in zip(params, placements, strict=True)
            ]
            result = builder.emit_output(builder.emit(apply(*args)))
        builder.emit_func_output(result)
    mod = builder.get()
    mod.update_global_info("mesh", [MESH.device_mesh])
    return mod


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
    "argmax": (along_columns(lambda x: op.argmax(x, -1)), {"all_reduce": 2}),
    "argmin": (along_columns(lambda x: op.argmin(x, -1, True)), {"all_reduce": 2}),
    "cumsum": (along_columns(lambda x: op.cumsum(x, -1)), {"all_gather": 1}),
    "cumprod": (along_columns(lambda x: op.cumprod(x, -1)), {"all_gather": 1}),
    "topk": (along_columns(lambda x: op.topk(x, 3)), {"all_gather": 2}),
    "take": (
        program([(COLUMNS, 64), (ROWS,)], [("x", None), (None,)], lambda t, i: op.take(t, i, 0)),
        {"all_reduce": 1},
    ),
    "gather_elements": (
        program(
            [(COLUMNS, 8), (ROWS, 8)],
            [("x", None), (None, None)],
            lambda t, i: op.gather_elements(t, i, 0),
        ),
        {"all_reduce": 1},
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
    expanded = dx.transform.ExpandSharded()(propagated)
    assert not tvm_ffi.structural_equal(expanded, propagated)
    verify(expanded, "propagated")
    assert relax.analysis.check_well_formed(expanded)
    tvm.ir.assert_structural_equal(tvm.script.from_source(expanded.script()), expanded)
    tvm.ir.assert_structural_equal(dx.transform.ExpandSharded()(expanded), expanded)
    legalized = dx.transform.LegalizeRedistribute()(expanded)
    verify(legalized, "legalized")
    tvm.ir.assert_structural_equal(dx.transform.LegalizeRedistribute()(propagated), legalized)


def test_call_that_is_whole_along_its_axis_stays():
    mod = program([(ROWS, COLUMNS)], [("x", None)], lambda x: nn.softmax(x, -1))
    propagated = dx.transform.PropagateSharding()(mod)
    assert dx.transform.ExpandSharded()(propagated).same_as(propagated)


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


def test_unknown_sizes_stay_whole_where_a_position_must_tell_its_shard():
    n = tvm.tirx.Var("n", "int64")
    mod = program([(ROWS, n)], [(None, "x")], lambda x: op.argmax(x, -1))
    lowered = dx.transform.LowerDistIR()(dx.transform.PropagateSharding()(mod))
    assert [each.kind for each in dx.analysis.collectives(lowered)] == ["all_gather"]


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "softmax"])
def test_symbolic_axis(name):
    n = tvm.tirx.Var("n", "int64")
    apply = {
        "layer_norm": lambda x, w: nn.layer_norm(x, w, w, [-1]),
        "rms_norm": lambda x, w: nn.rms_norm(x, w, [-1]),
        "softmax": lambda x, w: nn.softmax(op.multiply(x, w), -1),
    }[name]
    mod = program([(4, n), (n,)], [(None, "x"), ("x",)], apply, ("float32", "float32"))
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype("float32") for shape in ((4, 24), (24,))]
    with dx.Session(MESH) as session:
        got = session.load(dx.build(mod))["main"](*arrays).numpy()
    np.testing.assert_allclose(got, in_float64(name, *arrays), rtol=1e-5, atol=1e-6)


def in_float64(name, x, w):
    x, w = x.astype("float64"), w.astype("float64")
    if name == "softmax":
        powers = np.exp(x * w - (x * w).max(-1, keepdims=True))
        return powers / powers.sum(-1, keepdims=True)
    if name == "rms_norm":
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * w
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * w + w


@pytest.mark.parametrize("name", ["layer_norm", "group_norm", "instance_norm"])
def test_norms_of_values_far_from_zero_are_as_accurate_as_on_one_device(name):
    shape = (2, 4, 64)
    apply = {
        "layer_norm": lambda x, w: nn.layer_norm(x, w, w, [-1]),
        "group_norm": lambda x, w: nn.group_norm(x, w, w, 4, 1, [2]),
        "instance_norm": lambda x, w: nn.instance_norm(x, w, w, 1, [2]),
    }[name]
    weights = (64,) if name == "layer_norm" else (4,)
    sharded = ("x",) if name == "layer_norm" else (None,)
    mod = program([shape, weights], [(None, None, "x"), sharded], apply, ("float32", "float32"))
    rng = np.random.default_rng(0)
    x = (1000 + rng.standard_normal(shape)).astype("float32")
    w = np.ones(weights, "float32")
    with dx.Session(MESH) as session:
        got = session.load(dx.build(mod))["main"](x, w).numpy()
    wanted = in_float64("layer_norm", x, np.ones(64))
    # A mean near 1000 is rounded to 2^-24 * 1000 = 6e-5; of the squares, it would be to 0.06.
    assert np.abs(got - wanted).max() < 3e-4


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
    with pytest.raises(ValueError, match="sharded along a dimension that its operator looks"):
        verify(marked, "legalized")
