"""Notes of passes on repeated layers: stored once for all layers, read layer by layer."""

import pytest
import tvm
from tvm import relax

import distir_ext as dx
from distir_ext.explain.provenance import stated_names


def stack(layers):
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((8, 8), "float32"))
    weights = [
        relax.Var(f"layers.{i}.{name}", relax.TensorType((8, 8), "float32"))
        for i in range(layers)
        for name in ("up", "down")
    ]
    with builder.function("main", [x, *weights]):
        value = x
        for weight in weights:
            value = builder.emit(relax.op.matmul(value, weight))
        builder.emit_func_output(value)
    plan = {r".*\.up": (None, "tp"), r".*\.down": ("tp", None)}
    return dx.annotate(builder.get(), dx.Mesh((2,), ("tp",)), plan)


def notes(mod):
    attrs = mod["main"].attrs
    return {
        name: str(attrs[name]) for name in dict(attrs.items()) if str(name).startswith("distir.s")
    }


def test_layers_are_one_entry():
    mod = dx.transform.PropagateSharding()(stack(40))
    assert notes(mod)["distir.stated"] == '(("0..39", "layers.{}.up", "layers.{}.down"),)'
    placed = notes(dx.lower(stack(40)))["distir.shardings"]
    assert '("0..39", "layers.{}.up")' in placed
    assert '("0..39", "layers.{}.down")' in placed


def test_names_are_unfolded_for_who_reads_them():
    mod = dx.transform.PropagateSharding()(stack(40))
    names = {f"layers.{i}.{name}" for i in range(40) for name in ("up", "down")}
    assert stated_names(mod["main"]) == names
    assert stated_names(stack(2)["main"]) == set()


def softmax_stack(layers):
    """Each layer is written in steps, and has names of its own."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((8, 8), "float32"))
    weights = [relax.Var(f"w{i}", relax.TensorType((8, 8), "float32")) for i in range(2 * layers)]
    with builder.function("main", [x, *weights]):
        value = x
        for first, second in zip(weights[::2], weights[1::2], strict=True):
            value = builder.emit(relax.op.matmul(value, first))
            value = builder.emit(relax.op.nn.softmax(value, axis=1))
            value = builder.emit(relax.op.matmul(value, second))
            value = builder.emit(relax.op.nn.relu(value))
        builder.emit_func_output(value)
    plan = {f"w{i}": ((None, "tp"), ("tp", None))[i % 2] for i in range(2 * layers)}
    return dx.annotate(builder.get(), dx.Mesh((2,), ("tp",)), plan)


def test_notes_do_not_grow_with_layers():
    few, many = (dx.lower(softmax_stack(layers)) for layers in (10, 80))
    assert {"distir.made", "distir.shardings"} <= set(dict(many["main"].attrs.items()))
    for name, value in many["main"].attrs.items():
        if str(name).startswith("distir."):
            assert len(str(value)) < 1.1 * len(str(few["main"].attrs[name])) + 50, name
            assert len(str(value)) < 1000, name


def test_steps_of_each_layer_are_explained():
    mod = tvm.script.from_source(dx.lower(softmax_stack(12)).script())
    for name in ("gv1", "gv45"):
        said = f"`{name}` in `main`: relax.nn.softmax, which DecomposeSharded computes in steps"
        assert said in str(dx.explain(mod, name))


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("is_parsed", [False, True])
def test_each_layer_is_explained(lower, is_parsed):
    mod = dx.transform.PropagateSharding()(stack(3))
    if lower:
        mod = dx.lower(mod)
    names = ["layers.0.up", "layers.2.up"]
    if is_parsed:
        mod = tvm.script.from_source(mod.script())
        names = [name.replace(".", "_") for name in names]  # as TVMScript calls them
    for name in names:
        lines = dx.explain(mod, name).lines
        assert f"`{name}` in `main`: dimension 1 is sharded over mesh axes 'tp'" in lines[0]
        assert "stated by an annotation or a type" in lines[1]


def test_a_note_that_is_damaged_is_left_out():
    mod = dx.transform.PropagateSharding()(stack(2))
    for damaged in (["0..999999999", "a{}"], ["x..y", "a{}"], ["0..1", "a"], [1, "b"], ["0"]):
        function = mod["main"].with_attr("distir.stated", [damaged])
        changed = tvm.IRModule({"main": function}, global_infos=mod.global_infos)
        assert "layers.0.up" in str(dx.explain(changed, "layers.0.up"))
