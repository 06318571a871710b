"""Operators that look or move along dimensions which shards do not divide: every device gets what
it lacks, nothing is gathered."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import tvm
from tests.abi.plans import own_segments
from tests.padding.checks import padded
from tests.padding.programs import FOUR
from tvm import relax
from tvm.relax import op
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.relax.op import nn

import distir_ext as dx

from .checks import assert_same_numbers, without_masks

CUBE = dx.Mesh((2, 2, 2), ("a", "b", "c"))


class Case(NamedTuple):
    make: Callable[..., Any]
    shapes: dict[str, tuple[int, ...]]
    axis: int
    """Of the first tensor, that is sharded."""
    kinds: frozenset[str] = frozenset({"segment_exchange"})
    dtype: str = "float32"


REDUCED = frozenset({"all_reduce"})
CASES = {
    "slice": Case(lambda x: op.strided_slice(x, [0], [2], [9]), {"x": (10, 3)}, 0),
    "steps": Case(lambda x: op.strided_slice(x, [1], [13], [1], [-2]), {"x": (3, 15)}, 1),
    "pad": Case(lambda x: nn.pad(x, [2, 1, 0, 0], "constant", 1.5), {"x": (7, 3)}, 0),
    "reflected": Case(lambda x: nn.pad(x, [0, 0, 4, 3], "reflect"), {"x": (3, 7)}, 1),
    "edge": Case(lambda x: nn.pad(x, [3, 1], "replicate"), {"x": (9,)}, 0),
    "circular": Case(lambda x: nn.pad(x, [0, 5], "circular"), {"x": (9,)}, 0, dtype="int8"),
    "flip": Case(lambda x: op.flip(x, 0), {"x": (11, 2)}, 0),
    "roll": Case(
        lambda x, y: op.add(
            op.concat([op.strided_slice(x, [0], [6], [13]), op.strided_slice(x, [0], [0], [6])]), y
        ),
        {"x": (13, 2), "y": (13, 2)},
        0,
    ),
    "split": Case(
        lambda x, y, z: op.concat(
            [op.add(op.split(x, [9])[0], y), op.add(op.split(x, [9])[1], z)], 1
        ),
        {"x": (18, 2), "y": (9, 2), "z": (9, 2)},
        0,
    ),
    "conv1d": Case(lambda x, w: nn.conv1d(x, w, padding=1), {"x": (3, 2, 7), "w": (4, 2, 3)}, 2),
    "conv1d in steps, dilated": Case(
        lambda x, w: nn.conv1d(x, w, strides=2, dilation=2, padding=(3, 1), groups=2),
        {"x": (1, 2, 15), "w": (4, 1, 3)},
        2,
    ),
    "conv2d": Case(
        lambda x, w: nn.conv2d(x, w, padding=(0, 2)), {"x": (2, 3, 9, 6), "w": (2, 3, 3, 5)}, 2
    ),
    "conv3d": Case(
        lambda x, w: nn.conv3d(x, w, strides=(1, 2, 1)),
        {"x": (1, 2, 4, 13, 3), "w": (2, 2, 2, 3, 1)},
        3,
    ),
    "conv2d_transpose": Case(
        lambda x, w: nn.conv2d_transpose(x, w, strides=(3, 1), padding=(1, 0)),
        {"x": (2, 3, 7, 4), "w": (3, 2, 5, 3)},
        2,
    ),
    "max_pool1d": Case(
        lambda x: nn.max_pool1d(x, 3, 2, 1, ceil_mode=True), {"x": (2, 3, 14)}, 2, dtype="float16"
    ),
    "max_pool2d in blocks": Case(lambda x: nn.max_pool2d(x, 2, 2), {"x": (2, 3, 14, 6)}, 2),
    "avg_pool2d": Case(lambda x: nn.avg_pool2d(x, 3, 2, 1), {"x": (2, 2, 13, 5)}, 2),
    "avg_pool1d with padding": Case(
        lambda x: nn.avg_pool1d(x, 4, 3, 2, ceil_mode=True, count_include_pad=True),
        {"x": (2, 2, 17)},
        2,
    ),
    "softmax": Case(lambda x: nn.softmax(x, 1), {"x": (2, 7)}, 1, REDUCED),
    "layer_norm": Case(
        lambda x, g, b: nn.layer_norm(x, g, b, [-1]),
        {"x": (2, 9), "g": (9,), "b": (9,)},
        1,
        REDUCED,
    ),
    "rms_norm": Case(lambda x, g: nn.rms_norm(x, g, [-1]), {"x": (2, 9), "g": (9,)}, 1, REDUCED),
    "variance": Case(lambda x: op.variance(x, [0]), {"x": (7, 2)}, 0, REDUCED),
}


def program(case: Case) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    params = [relax.Var(n, relax.TensorType(s, case.dtype)) for n, s in case.shapes.items()]
    with builder.function("main", params):
        with builder.dataflow():
            value = builder.emit(nn.relu(params[0]))
            result = builder.emit_output(builder.normalize(case.make(value, *params[1:])))
        builder.emit_func_output(result)
    return builder.get()


def plan_of(case: Case, mesh: dx.Mesh) -> dict[str, tuple[Any, ...]]:
    dims = [None] * len(case.shapes["x"])
    dims[case.axis] = "a" if len(mesh.shape) < 3 else ("a", "b")
    return {name: tuple(dims) for name in case.shapes if name in "xyz"}


def inputs_of(case: Case) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(s).astype(case.dtype) for s in case.shapes.values()]


@pytest.mark.parametrize("mesh", [FOUR, CUBE], ids=lambda mesh: str(mesh.shape))
@pytest.mark.parametrize("name", CASES)
def test_shards_get_what_they_lack(name, mesh, session_of):
    case = CASES[name]
    mod, plan = program(case), plan_of(case, mesh)
    annotated = dx.annotate(mod, mesh, plan)
    padded(dx.transform.PropagateSharding()(annotated))
    kinds = {each.kind for each in dx.analysis.collectives(dx.lower(annotated))}
    # Weights along what is normalised are whole on every device: each cuts its part.
    assert kinds - {"slice"} <= case.kinds
    assert kinds or name == "max_pool2d in blocks"
    assert_same_numbers(mod, mesh, plan, inputs_of(case), session_of(mesh.shape))


@mutator
class OwnPiecesOnly(PyExprMutator):
    """Sabotage: what a device would receive from others it fills itself."""

    def visit_call_(self, call):
        call = super().visit_call_(call)
        if not call.op.same_as(tvm.ir.Op.get("relax.ccl.segment_exchange")):
            return call
        plan = json.loads(str(call.attrs["plan"]))
        plan["segments"] = own_segments(plan)
        attrs = tvm.ir.make_node("ir.DictAttrs", plan=json.dumps(plan))
        return relax.Call(call.op, call.args, attrs, call.ty_args)


def own_pieces_only(mod):
    change = OwnPiecesOnly(mod)
    functions = {
        var: change.visit_expr(f) if isinstance(f, relax.Function) else f
        for var, f in mod.functions.items()
    }
    return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("slice", own_pieces_only),
        ("split", own_pieces_only),
        ("conv1d", own_pieces_only),
        ("conv2d_transpose", own_pieces_only),
        ("softmax", without_masks),
        ("variance", without_masks),
    ],
)
def test_what_is_left_out_is_noticed(name, change, session_of):
    case = CASES[name]
    plan = plan_of(case, FOUR)
    with pytest.raises(AssertionError, match="result 0"):
        assert_same_numbers(
            program(case), FOUR, plan, inputs_of(case), session_of(FOUR.shape), change=change
        )
