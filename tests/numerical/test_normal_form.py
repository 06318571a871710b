"""Unusual forms of Relax that TVM and its frontends write, compared with NumPy."""

import numpy as np
import tvm
from tests.targets import QUICK
from tvm import relax
from tvm.relax import op

import distir_ext as dx


def run(mod, mesh, plan, *arguments):
    with dx.Session(mesh) as session:
        found = session.load(dx.build(dx.annotate(mod, mesh, plan), target=QUICK))(*arguments)
    return found.numpy()


def reshaped_to(shape_of, dtype="float32"):
    """A reshape to a shape that is data, by a match_cast whose value is a call."""
    x = relax.Var("x", relax.TensorType((4, 6), dtype))
    s = relax.Var("s", relax.TensorType((2,), "int64"))
    a, b = (tvm.tirx.Var(name, "int64") for name in "ab")
    y, wide, shape, result = (
        relax.DataflowVar("y", relax.TensorType((4, 6), dtype)),
        relax.DataflowVar("wide", relax.TensorType((a, b), dtype)),
        relax.DataflowVar("shape", relax.ShapeType([a, b])),
        relax.Var("result", relax.TensorType((a, b), dtype)),
    )
    builder = relax.BlockBuilder()
    normal = builder.normalize
    bindings = [
        relax.VarBinding(y, normal(op.add(x, x))),
        *shape_of(s, shape, relax.ShapeType([a, b])),
        relax.VarBinding(wide, normal(op.reshape(y, relax.ShapeExpr([a, b])))),
        relax.VarBinding(result, normal(op.add(wide, wide))),
    ]
    body = relax.SeqExpr([relax.DataflowBlock(bindings)], result)
    function = relax.Function([x, s], normal(body), relax.TensorType(dtype=dtype, ndim=2))
    return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})


def cast_of_call(s, var, type_):
    return [relax.MatchCast(var, relax.BlockBuilder().normalize(op.tensor_to_shape(s)), type_)]


def builtin_then_cast(s, var, type_):
    name = relax.ExternFunc("vm.builtin.tensor_to_shape")
    call = relax.BlockBuilder().normalize(tvm.ir.Call(name, [s], ty_args=[relax.ShapeType(ndim=2)]))
    made = relax.DataflowVar("made", call.ty)
    return [relax.VarBinding(made, call), relax.MatchCast(var, made, type_)]


def cast_of_builtin(s, var, type_):
    (first, _) = builtin_then_cast(s, var, type_)
    return [relax.MatchCast(var, first.value, type_)]


def test_calls_in_match_casts_and_builtins_in_dataflow_blocks():
    mesh = dx.Mesh(a=3, b=2)
    forms = (
        (cast_of_call, "float32", (None, "a")),
        (builtin_then_cast, "int64", ("b", ...)),
        (cast_of_builtin, "float32", ("b", "a")),
    )
    for shape_of, dtype, dims in forms:
        x = np.arange(24).reshape(4, 6).astype(dtype)
        found = run(reshaped_to(shape_of, dtype), mesh, {"x": dims}, x, np.array([2, 12]))
        np.testing.assert_array_equal(found, 4 * x.reshape(2, 12))


def test_the_program_keeps_its_order_and_its_dataflow_blocks():
    mod = dx.annotate(reshaped_to(builtin_then_cast), dx.Mesh(a=2), {"x": ("a", None)})
    main = dx.transform.SplitFused()(mod)["main"]
    kinds = [type(block).__name__ for block in main.body.blocks]
    assert kinds == ["BindingBlock", "DataflowBlock", "BindingBlock", "DataflowBlock"]
    names = [binding.var.name for block in main.body.blocks for binding in block.bindings]
    assert names[1:] == ["y", "made", "shape", "wide", "result"]
    # What is seen in both dataflow blocks is no variable of one.
    assert {type(b.var).__name__ for b in main.body.blocks[1].bindings} == {"Var"}
    once = dx.transform.SplitFused()(mod)
    tvm.ir.assert_structural_equal(dx.transform.SplitFused()(once), once)


def test_sizes_without_a_name_or_with_the_same_one():
    for names in (("", ""), ("?", "?"), ("n", "n"), ("", "x"), ("a b", "a-b"), ("0", "1")):
        sizes = [tvm.tirx.Var(name, "int64") for name in names]
        x, y = (
            relax.Var(name, relax.TensorType((size, 6), "float32"))
            for name, size in zip("xy", sizes, strict=True)
        )
        builder = relax.BlockBuilder()
        with builder.function("main", [x, y]):
            builder.emit_func_output(builder.emit(op.concat([op.exp(x), op.exp(y)], axis=0)))
        first, second = (
            np.random.default_rng(rows).standard_normal((rows, 6)).astype("float32")
            for rows in (4, 6)
        )
        mesh = dx.Mesh(a=2)
        plan = {"x": ("a", None), "y": (None, "a")}
        found = run(builder.get(), mesh, plan, first, second)
        np.testing.assert_allclose(found, np.exp(np.concatenate([first, second])), rtol=1e-6)
        lowered = dx.lower(dx.annotate(builder.get(), mesh, plan))
        again = tvm.script.from_source(lowered.script())
        tvm.ir.assert_structural_equal(again, lowered)


def test_boxes_that_are_kept_are_as_many_as_there_are():
    corners = np.array(
        [[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, -0.1, 1, 0.9], [0, 10, 1, 11], [0, 100, 1, 101]],
        "float32",
    )[None]
    scores = np.array([[[0.9, 0.75, 0.6, 0.95, 0.3]]], "float32")
    boxes, of = (
        relax.Var("boxes", relax.TensorType(corners.shape, "float32")),
        relax.Var("scores", relax.TensorType(scores.shape, "float32")),
    )
    for output in ("boxes", "tuple"):
        builder = relax.BlockBuilder()
        with builder.function("main", [boxes, of]):
            limits = (relax.const(3, "int64"), *(relax.const(x, "float32") for x in (0.5, 0.4)))
            kept = builder.emit(op.vision.all_class_non_max_suppression(boxes, of, *limits))
            if output == "boxes":
                kept = builder.emit(relax.TupleGetItem(kept, 0))
            builder.emit_func_output(kept)
        mesh = dx.Mesh(a=5)
        for dims in ((None, "a", None), (None, ..., None)):
            mod = dx.annotate(builder.get(), mesh, {"boxes": dims})
            once = dx.transform.SplitFused()(mod)
            tvm.ir.assert_structural_equal(dx.transform.SplitFused()(once), once)
            with dx.Session(mesh) as session:
                found = session.load(dx.build(mod, target=QUICK))(corners, scores)
                found = found if output == "boxes" else found[0]
                np.testing.assert_array_equal(found.numpy(), [[0, 0, 3], [0, 0, 0]])
