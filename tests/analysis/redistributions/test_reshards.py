"""Redistributions that a module did not ask for: their cause, and annotations that avoid them."""

import json
import random
import re
from collections import Counter

import pytest
import tvm
from tests.analysis.models import MESH, MODELS
from tests.analysis.programs import GPU, function, megatron, on
from tests.analysis.test_memory import Branches, Calls
from tests.hints.programs import Builder, fused_attention, gated_mlp
from tvm import relax
from tvm.relax import op

import distir_ext as dx
from distir_ext.analysis import Reshard

CASES = [(model, plan) for model in MODELS for plan in ("tp", "dp", "mixed")]


def lowered_apart(mod):
    """Every collective by itself, as the passes write it."""
    mod = dx.lower(mod, until="legalized")
    mod = dx.transform.OptimizeCollectives(disable="combine_collectives")(mod)
    return dx.transform.LowerDistIR()(mod)


def base(name):
    return re.sub(r"_(\d+|computed)$", "", name)


def moves_data(placements):
    """True if a change of placement needs elements of other devices, not only a slice."""
    before, after = placements
    return any(old != "R" and old != new for old, new in zip(before, after, strict=True))


def redistributed(mod, name):
    """From the types of a propagated module: which tensors move, and who reads them."""
    mod = dx.transform.PropagateSharding()(mod)
    bindings = [each for block in mod[name].body.blocks for each in block.bindings]
    found = set()
    for binding in bindings:
        call = binding.value
        if not (isinstance(call, relax.Call) and call.op.name == "relax.dist.redistribute"):
            continue
        if not isinstance(call.args[0].ty, relax.distributed.DTensorType):
            continue
        before = str(call.args[0].ty.placement).split(", ")
        after = str(call.ty.placement).split(", ")
        if not moves_data((before, after)):
            continue
        for reader in bindings:
            used = relax.analysis.free_vars(reader.value)
            if any(var.same_as(binding.var) for var in used):
                found.add((base(call.args[0].name), base(reader.var.name)))
    return found


@pytest.mark.parametrize(("model", "plan"), CASES)
def test_every_collective_is_in_one_entry(model, plan):
    case = MODELS[model]()
    mod = case.annotated(case.plans[plan])
    found = dx.analysis.reshards(mod, suggestions=0)
    kinds = Counter()
    for each in found.entries:
        for kind in each.collectives:
            kinds[kind] += each.count
    there = Counter()
    for each in dx.analysis.collectives(lowered_apart(mod)):
        there[each.kind] += each.count
    assert kinds == there
    # Combining them changes none of the bytes.
    sent = sum(c.bytes_per_device * c.count for c in dx.analysis.collectives(dx.lower(mod)))
    assert found.bytes_sent == sent
    assert all(each.count % len(each.tensors) == 0 for each in found.entries)


@pytest.mark.parametrize(("model", "plan"), CASES)
def test_what_is_suggested_removes_the_redistribution(model, plan):
    case = MODELS[model]()
    stated = case.plans[plan]
    mod = case.annotated(stated)
    found = dx.analysis.reshards(mod)
    moving = redistributed(mod, case.function)
    for entry in found.reshards:
        pairs = {(tensor, reader) for tensor in entry.tensors for reader in entry.readers}
        assert pairs & moving
        suggestion = entry.suggestion
        assert suggestion is not None
        changed = case.annotated(suggestion.applied_to(stated))
        assert not pairs & redistributed(changed, case.function)
        after = dx.analysis.reshards(changed, suggestions=0)
        assert after.bytes_sent - found.bytes_sent == suggestion.bytes_change
        assert after.seconds - found.seconds == pytest.approx(suggestion.seconds_change)
    assert bool(found.reshards) == (plan == "mixed")


@pytest.mark.parametrize("model", MODELS)
def test_entries_are_those_of_every_phase(model):
    case = MODELS[model]()
    mod = case.annotated(case.plans["mixed"])

    def said(found):
        return sorted((e.kind, e.source, e.target, e.total_bytes, e.count) for e in found.entries)

    expected = said(dx.analysis.reshards(mod))
    for until in ("propagated", "DecomposeSharded", "legalized"):
        assert said(dx.analysis.reshards(dx.lower(mod, until=until))) == expected
    assert dx.analysis.reshards(dx.lower(mod)).bytes_sent == sum(each[3] for each in expected)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("shape", [(3, 2), (2, 2, 2, 2)], ids=str)
def test_random_plans_on_other_meshes(model, shape):
    case, mesh = MODELS[model](), dx.Mesh(shape, tuple("abcd"[: len(shape)]))
    choose = random.Random(f"{model}{shape}")
    plan = {}
    for param in case.module[case.function].params:
        dims = [()] * param.ty.ndim
        for axis in choose.sample(mesh.axis_names, len(shape)):
            dim = choose.randrange(param.ty.ndim)
            size = int(param.ty.shape.values[dim])
            if choose.random() < 0.6 and size >= 2 ** (len(dims[dim]) + 2):
                dims[dim] = (*dims[dim], axis)
        plan[re.escape(param.name)] = tuple(dims)
    mod = dx.annotate(case.module, mesh, plan, func=case.function)
    found = dx.analysis.reshards(mod, suggestions=2)
    listed = dx.analysis.collectives(lowered_apart(mod))
    assert found.entries
    assert found.bytes_sent == sum(each.bytes_per_device * each.count for each in listed)
    for entry in found.reshards:
        if entry.suggestion is None:
            continue
        plan_after = entry.suggestion.applied_to(plan)
        changed = dx.annotate(case.module, mesh, plan_after, func=case.function)
        after = dx.analysis.reshards(changed, suggestions=0)
        assert after.bytes_sent - found.bytes_sent == pytest.approx(entry.suggestion.bytes_change)


def test_times_are_those_of_an_estimate():
    mod = megatron(layers=3)
    found = dx.analysis.reshards(mod, on(GPU))
    (program,) = dx.analysis.estimate(mod, on(GPU)).programs
    assert found.seconds == pytest.approx(program.collective_seconds)
    assert found.bytes_sent == program.bytes_sent


def gated(plan):
    case = MODELS["mlp"]()
    return case.annotated({**case.plans["mixed"], **plan})


def test_an_entry_says_both_sides_and_what_to_state():
    (entry,) = dx.analysis.reshards(gated({})).reshards
    assert (entry.tensor, entry.function) == ("lv5", "main")
    assert (entry.source, entry.target) == ("('dp', None), partial sum over 'tp'", "(None, 'dp')")
    assert entry.operators == ("relax.multiply",)
    assert (entry.collectives, entry.count) == (("reduce_scatter", "exchange"), 1)
    # (8, 32) of float32, whose sum is scattered over tp, 3/4 of it, and rows that become columns.
    assert entry.bytes_per_device == 8 * 32 * 4 * 3 / 4 + 16 * 32 * 4 / 2
    assert entry.source_cause[0].startswith("`lv5_1` in `main`: partial sum over 'tp'")
    assert entry.source_cause[-1] == "  stated by an annotation or a type of `x` in `main`"
    assert entry.suggestion.plan == {"gate": ("dp", None)}
    assert entry.suggestion.mesh == MESH
    # Its sum is reduced all the same.
    assert -entry.total_bytes < entry.suggestion.bytes_change < 0


def test_what_only_looks_like_a_way_out_is_not_suggested():
    def write(emit, x, other):
        total = emit(op.add(x, emit(op.permute_dims(x))))
        return op.subtract(total, emit(op.multiply(x, other)))

    mod = function({"x": (32, 32), "other": (32, 32)}, write)
    plan = {"x": ("tp", None), "other": (None, "tp")}
    found = dx.analysis.reshards(dx.annotate(mod, MESH, plan))
    (entry,) = (each for each in found.reshards if "lv1" in each.readers)
    # By columns x fits `other`, which saves time, but its transpose fits it no better than before.
    assert entry.suggestion is None or entry.suggestion.plan != {"x": (None, "tp")}
    by_columns = dx.annotate(mod, MESH, {**plan, "x": (None, "tp")})
    assert dx.analysis.reshards(by_columns).seconds < found.seconds


def test_what_the_user_states_is_not_implicit():
    shapes = {"x": (16, 32), "w": (32, 32)}
    plain = function(shapes, lambda emit, x, w: op.matmul(emit(op.nn.relu(x)), w))
    plan = {"x": ("dp", None), "lv": (None, "dp")}
    found = dx.analysis.reshards(dx.annotate(plain, MESH, plan))
    assert [(e.kind, e.tensor) for e in found.entries] == [("reduction", "gv"), ("stated", "lv")]

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((16, 32), "float32"))
    mesh, everywhere = MESH.device_mesh, MESH.placement(None, None)
    sharded = relax.distributed.DTensorType(x.ty, mesh, MESH.placement("dp", None))
    x = relax.Var("x", sharded)
    with builder.function("main", [x]):
        y = builder.emit(op.distributed.redistribute(x, mesh, everywhere))
        builder.emit_func_output(builder.emit(op.nn.relu(y)))
    asked = builder.get()
    asked.update_global_info("mesh", [mesh])
    for mod in (asked, *(dx.lower(asked, until=each) for each in ("legalized", "lowered"))):
        assert [each.kind for each in dx.analysis.reshards(mod).entries] == ["stated"]


def test_calls_are_multiplied_out():
    mod = dx.annotate(Calls, dx.Mesh(tp=2), {"x": (None, "tp")})
    found = dx.analysis.reshards(mod)
    listed = dx.analysis.collectives(lowered_apart(mod))
    assert sum(each.count for each in found.entries) == sum(each.count for each in listed)
    assert found.bytes_sent == sum(each.bytes_per_device * each.count for each in listed)


def test_branches_and_stages_are_listed():
    mod = dx.annotate(Branches, dx.Mesh(tp=2), {"x": (None, "tp")})
    found = dx.analysis.reshards(mod)
    listed = dx.analysis.collectives(lowered_apart(mod))
    assert sum(each.count for each in found.entries) == sum(each.count for each in listed)

    two = dx.Mesh((2,), ("tp",)), dx.Mesh((2,), ("tp",), [2, 3])
    shapes = {"x": (8, 16), "w": (16, 16), "v": (16, 16)}
    mod = function(shapes, lambda emit, x, w, v: op.matmul(emit(op.matmul(x, w)), v))
    mod = dx.annotate(mod, two[0], {"w": (None, "tp"), "v": (two[1], ("tp", None))})
    kinds = Counter(each.kind for each in dx.analysis.reshards(mod).entries)
    assert kinds["transfer"] == 2  # who sends, and who receives


def test_symbolic_sizes_have_values_or_count_as_1024():
    def write(emit, x, y):
        return op.add(x, y)

    builder = relax.BlockBuilder()
    n = tvm.tirx.Var("n", "int64")
    x, y = (relax.Var(name, relax.TensorType((n, 16), "float32")) for name in "xy")
    with builder.function("main", [x, y]):
        builder.emit_func_output(builder.emit(write(None, x, y)))
    mod = dx.annotate(builder.get(), dx.Mesh(tp=4), {"x": ("tp", None), "y": (None, "tp")})
    (entry,) = dx.analysis.reshards(mod, sizes={"n": 64}).reshards
    (assumed,) = (found := dx.analysis.reshards(mod)).reshards
    assert assumed.bytes_per_device == 16 * entry.bytes_per_device
    assert "1024: n" in found.notes[0]
    with pytest.raises(ValueError, match="no symbolic size 'm'"):
        dx.analysis.reshards(mod, sizes={"m": 64})


def test_the_most_expensive_come_first_and_trials_are_bounded():
    case = MODELS["llama"]()
    mod = case.annotated(case.plans["mixed"])
    found = dx.analysis.reshards(mod, suggestions=1)
    costs = [each.total_seconds for each in found.entries]
    assert costs == sorted(costs, reverse=True)
    assert [each.suggestion is None for each in found.reshards] == [False, True, True, True]
    assert "1 most expensive of 4" in found.notes[0]


def test_tables_and_data():
    found = dx.analysis.reshards(gated({}))
    text = str(found)
    assert "state {'gate': ('dp', None)} (-256 B sent" in text
    assert "part of an operator" not in text
    html = found._repr_html_()
    assert html.count("<table>") == 3
    assert "state {&#x27;gate&#x27;: (&#x27;dp&#x27;, None)}" in html
    data = json.loads(found.to_json())
    assert data["bytes_sent"] == found.bytes_sent
    (entry,) = (each for each in data["entries"] if each["kind"] == "reshard")
    assert entry["suggestion"]["plan"] == {"gate": ["dp", None]}
    rows = found.rows()
    assert sum(row["total_bytes"] for row in rows) == found.bytes_sent
    assert all(isinstance(each, Reshard) for each in found.entries)
    assert "none" in str(dx.analysis.reshards(megatron()))


def test_the_module_stays_as_it_is():
    mod = gated({})
    before = mod.script()
    dx.analysis.reshards(mod)
    assert mod.script() == before


def test_bad_input():
    mod = megatron()
    with pytest.raises(ValueError, match="no sharding annotations"):
        dx.analysis.reshards(function({"x": (4,)}, lambda emit, x: op.nn.relu(x)))
    with pytest.raises(ValueError, match="runtime calls instead of collectives"):
        dx.analysis.reshards(dx.lower(mod, until="runtime"))
    with pytest.raises(TypeError, match="not a str"):
        dx.analysis.reshards(mod, "H100")
    with pytest.raises(ValueError, match="not -1"):
        dx.analysis.reshards(mod, suggestions=-1)
    with pytest.raises(TypeError):
        dx.analysis.reshards("main")


def test_fused_weights_that_are_not_cut_are_named():
    """No annotation helps where a split cuts columns as shards do not; blocks of weights do."""
    weights = Builder().module(fused_attention, gated_mlp)
    inputs = weights.clone()
    main = weights["main"].without_attr("num_input")
    inputs.update_func(inputs.get_global_var("main"), main)
    plan = {"a1|m1": ("tp", None), "a2": ("tp",), "a3|m2": (None, "tp")}
    found = dx.analysis.reshards(dx.annotate(inputs, dx.Mesh(tp=2), plan))
    (note,) = found.notes
    assert note.startswith("`m1`, `a1` have blocks of ")
    assert "inputs= says which parameters are none" in note
    assert dx.analysis.reshards(dx.annotate(weights, dx.Mesh(tp=2), plan)).notes == ()


def test_a_fused_weight_that_is_needed_whole_is_named():
    def write(emit, x, w):
        product = emit(op.matmul(x, w))
        parts = emit(op.split(product, [32], -1))
        first, second = (emit(op.nn.relu(emit(relax.TupleGetItem(parts, i)))) for i in range(2))
        return relax.Tuple([product, first, second])

    mod = function({"x": (16, 32), "w": (32, 96)}, write, num_input=1)
    found = dx.analysis.reshards(dx.annotate(mod, dx.Mesh(tp=2), {"w": (None, "tp")}))
    (note,) = found.notes
    assert "`w` has blocks of [32, 64]" in note
    assert "nothing needs the whole" in note


def test_a_fused_weight_of_an_outlined_layer_is_named():
    def write(emit, x, *weights):
        for gate_up, down in zip(weights[::2], weights[1::2], strict=True):
            parts = emit(op.split(emit(op.matmul(x, gate_up)), [48], -1))
            gate, up = (emit(relax.TupleGetItem(parts, index)) for index in range(2))
            up = emit(op.strided_slice(emit(op.nn.relu(up)), [1], [0], [48]))
            x = emit(op.matmul(emit(op.nn.relu(emit(op.multiply(gate, up)))), down))
        return x

    shapes = {"x": (64, 32)}
    for i in range(4):
        shapes |= {f"layers.{i}.gate_up": (32, 144), f"layers.{i}.down": (48, 32)}
    outlined = dx.transform.OutlineRepeats(4)(function(shapes, write, num_input=1))
    plan = {r".*gate_up": (None, "tp"), r".*down": ("tp", None)}
    found = dx.analysis.reshards(dx.annotate(outlined, dx.Mesh(tp=2), plan))
    (note,) = found.notes
    assert "`layers.gate_up` has blocks of [48, 96]" in note
    assert "before OutlineRepeats" in note


def test_rows_name_the_operators_that_the_user_wrote():
    """Not those that pad and cut rows which the shards do not divide."""
    for rows in (4096, 4099):
        builder = relax.BlockBuilder()
        x = relax.Var("x", relax.TensorType((rows, 64), "float32"))
        w = relax.Var("w", relax.TensorType((64, 32), "float32"))
        with builder.function("main", [x, w]):
            with builder.dataflow():
                ordered = builder.emit(relax.op.sort(x, 0))
                y = builder.emit_output(relax.op.matmul(ordered, w))
            builder.emit_func_output(y)
        mesh = dx.Mesh((4,), ("a",))
        plan = {"x": ("a", None), "w": ("a", None), "return": ("a", None)}
        found = dx.analysis.reshards(dx.annotate(builder.get(), mesh, plan), suggestions=0)
        assert {each.operators for each in found.entries} <= {("relax.sort",), ("relax.matmul",)}
        (moved, *_) = (each for each in found.reshards if each.operators == ("relax.sort",))
        line = "dimension 0 of `x` has 4099 elements, which the 4 shards over 'a' do not divide"
        wanted = (f"{line}; 4096 or 4100 would",) if rows == 4099 else ()
        assert moved.uneven == wanted
        assert all(each in str(found) for each in wanted)


def test_two_annotations_together_where_neither_alone_avoids_a_move():
    """Rows times columns, wanted whole: a move stays while either factor is in shards."""
    builder = relax.BlockBuilder()
    params = [relax.Var(name, relax.TensorType((2048, 2048), "float32")) for name in "ab"]
    with builder.function("main", params):
        with builder.dataflow():
            product = builder.emit_output(relax.op.matmul(*params))
        builder.emit_func_output(product)
    mod, mesh = builder.finalize(), dx.Mesh(x=4)
    plan = {"a": ("x", None), "b": (None, "x"), "return": (None, None)}
    found = dx.analysis.reshards(dx.annotate(mod, mesh, plan))
    suggestions = [each.suggestion for each in found.reshards]
    assert found.bytes_sent > 0
    assert suggestions[0].plan == {"a": (None, None), "b": (None, None)}
    for each in suggestions:
        after = dx.analysis.reshards(dx.annotate(mod, mesh, each.applied_to(plan)))
        assert after.bytes_sent == 0
        assert each.bytes_change == -found.bytes_sent
        assert each.parameter_bytes_change > 0


def test_all_summands_together_where_one_alone_only_moves_others():
    """Rows, rows and columns, wanted in columns."""
    builder = relax.BlockBuilder()
    params = [relax.Var(name, relax.TensorType((1024, 512), "float32")) for name in "abcd"]
    with builder.function("main", params):
        with builder.dataflow():
            a, b, c, d = params
            rows = builder.emit(op.add(builder.emit(op.multiply(a, b)), c))
            total = builder.emit_output(op.add(rows, d))
        builder.emit_func_output(total)
    mod, mesh = builder.finalize(), dx.Mesh(x=2, y=2)
    plan = dict.fromkeys("abc", ("x", None))
    plan.update({"d": (None, "x"), "return": (None, "x")})
    found = dx.analysis.reshards(dx.annotate(mod, mesh, plan))
    (only,) = found.reshards
    assert only.suggestion.plan == dict.fromkeys("abc", (None, "x"))
    assert only.suggestion.bytes_change == -found.bytes_sent
    after = dx.analysis.reshards(dx.annotate(mod, mesh, only.suggestion.applied_to(plan)))
    assert after.bytes_sent == 0


def test_causes_of_uneven_shards_name_operators_of_the_program():
    """No pad nor slice, which surround a move of shards that do not divide."""
    for build, shape, dims in (
        (lambda x: op.sort(x, 0), (4099, 8), ("x", None)),
        (lambda x: op.reshape(x, [4099 * 8]), (4099, 8), (None, "x")),
        (lambda x: op.matmul(x, x), (1023, 1023), (None, "x")),
        (lambda x: op.nn.conv2d(x, x), (2, 2, 33, 33), (None, None, "x", None)),
        (lambda x: op.reshape(x, [2, 2049, 8]), (4098, 8), ("x", None)),
    ):
        builder = relax.BlockBuilder()
        x = relax.Var("x", relax.TensorType(shape, "float32"))
        with builder.function("main", [x]):
            with builder.dataflow():
                result = builder.emit_output(build(x))
            builder.emit_func_output(result)
        mod = dx.annotate(builder.finalize(), dx.Mesh(x=4), {"x": dims})
        found = dx.analysis.reshards(mod)
        assert str(found).count("relax."), shape
        text = str(found)
        assert "relax.strided_slice" not in text, text
        assert "relax.nn.pad" not in text, text
        assert "relax.dist.redistribute" not in text, text
