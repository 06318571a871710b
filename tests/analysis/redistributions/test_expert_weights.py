"""Notes in a listing of redistributions on expert weights that are sent undispatched."""

import pytest
import tvm
from tests.optimize.dense_experts import DenseExperts
from tests.optimize.experts import Experts
from tests.optimize.test_dispatch_experts import plan_of
from tvm import relax
from tvm.relax import op

import distir_ext as dx

WHOLE = ("ep", None, None)


def notes(mod, mesh, plan):
    found = dx.analysis.reshards(dx.annotate(mod, mesh, plan), suggestions=0).notes
    return [note for note in found if "experts" in note]


@pytest.mark.parametrize(
    ("tokens", "names"), [(64, "`up` is sent for R.take, 86 kB per device"), (8, "`up` is sent")]
)
def test_lookups_of_another_form(tokens, names):
    """Of many tokens the table is gathered, of few what they look up is summed."""
    text = Experts(tokens=tokens, products=1).module().script()
    mod = tvm.script.from_source(text.replace('mode="fast"', 'mode="wrap"'))
    (note,) = notes(mod, dx.Mesh(ep=8), plan_of("ep", WHOLE))
    assert names in note
    assert "the form is not one of those that are recognised" in note
    assert "docs/optimizations.md#experts" in note


@pytest.mark.parametrize(
    ("layer", "mesh", "tokens", "experts", "why"),
    [
        (Experts(tokens=2048, inner=8), dx.Mesh(ep=4), "ep", WHOLE, "gathering the experts sends"),
        (
            Experts(tokens=64),
            dx.Mesh(a=2, b=4),
            "a",
            (("a", "b"), None, None),
            "tokens are sharded along some of the axes that experts are",
        ),
    ],
)
def test_the_reason_is_that_of_the_optimisation(layer, mesh, tokens, experts, why):
    (note,) = notes(layer.module(), mesh, plan_of(tokens, experts))
    assert "`up`, `gate`, `down` are sent for R.take" in note
    assert why in note


@pytest.mark.parametrize(("slots", "sent"), [(800, ["`up` is sent for R.matmul"]), (8, [])])
def test_batched_products_that_gather_their_matrices(slots, sent):
    """Slots of experts that lie elsewhere than the experts; the smaller of both moves."""
    shapes = {"x": (16, slots, 32), "up": (16, 32, 48)}
    x, up = (relax.Var(n, relax.TensorType(s, "float32")) for n, s in shapes.items())
    builder = relax.BlockBuilder()
    with builder.function("main", [x, up]):
        with builder.dataflow():
            result = builder.emit_output(op.matmul(x, op.astype(up, "float32")))
        builder.emit_func_output(result)
    mod = builder.get()
    found = notes(mod, dx.Mesh(ep=8), {"x": (None, "ep", None), "up": WHOLE})
    assert [note.partition(",")[0] for note in found] == sent


@pytest.mark.parametrize("tokens", ["ep", None])
def test_what_is_dispatched_is_no_note(tokens):
    layer = Experts(tokens=64)
    assert not notes(layer.module(), dx.Mesh(ep=8), plan_of(tokens, WHOLE))
    dense = DenseExperts(form="repeated")
    assert not notes(dense.module(), dx.Mesh(ep=8), dense.plan(tokens, "ep"))


def test_tables_of_rows_are_no_experts():
    shapes = {"ids": (64,), "table": (16, 512)}
    ids, table = (
        relax.Var(n, relax.TensorType(s, "int64" if n == "ids" else "float32"))
        for n, s in shapes.items()
    )
    builder = relax.BlockBuilder()
    with builder.function("main", [ids, table]):
        with builder.dataflow():
            result = builder.emit_output(op.take(table, ids, axis=0))
        builder.emit_func_output(result)
    assert not notes(builder.get(), dx.Mesh(ep=8), {"ids": ("ep",), "table": ("ep", None)})
