"""Numbers of tokens that go to the devices of their experts, against all experts for all tokens."""

from dataclasses import replace

import numpy as np
import pytest
import tvm
import tvm_ffi
from tests.numerical.optimize.checks import QUICK
from tests.optimize.checks import optimized
from tests.optimize.experts import Experts, balanced, one_in_eight
from tvm import relax, tirx

import distir_ext as dx

NAME = "dispatch_experts"

EP8 = dx.Mesh(ep=8)
MESHES = {
    "ep8": (EP8, "ep"),
    "ep3": (dx.Mesh(ep=3), "ep"),
    "ep2": (dx.Mesh(ep=2), "ep"),
    "dp2_ep4": (dx.Mesh(dp=2, ep=4), ("dp", "ep")),
    "ep2_dp3": (dx.Mesh(ep=2, dp=3), ("ep", "dp")),
    "ep2x2": (dx.Mesh(a=2, b=2), ("a", "b")),
}


def plan_of(tokens, experts="ep"):
    placed = dict.fromkeys(("up", "gate", "down"), (experts, None, None))
    return {**dict.fromkeys(("x", "ids", "scores"), (tokens, None)), **placed}


def legalized(layer, mesh, plan):
    mod = dx.annotate(layer.module(), mesh, plan)
    return dx.lower(mod, until="LegalizeRedistribute")


def dispatched(layer, mesh, plan):
    return optimized(legalized(layer, mesh, plan), NAME)


def run(session, mod, inputs):
    return session.load(dx.build(mod, QUICK))["main"](*inputs).numpy().astype("float64")


CHOICES = {
    "balanced": balanced,
    "imbalanced": one_in_eight,
    "one_expert": lambda layer: lambda _: np.full(layer.tokens * layer.choices, layer.experts - 1),
    "some_unused": lambda layer: (
        lambda rng: rng.choice(np.arange(0, layer.experts, 3), layer.tokens * layer.choices)
    ),
}


def assert_equals_dense(session, layer, mesh, plan, choose, tolerance=1e-5):
    mod = dispatched(layer, mesh, plan)
    assert dx.testing.violations(mod, "legalized") == []
    kinds = [each.kind for each in dx.analysis.collectives(dx.lower(mod))]
    assert kinds == ["dispatch_tokens", "combine_tokens"]
    inputs = layer.inputs(choose)
    got = run(session, mod, inputs)
    np.testing.assert_allclose(got, layer.dense(*inputs), rtol=tolerance, atol=tolerance)
    return got


@pytest.mark.parametrize("choose", CHOICES)
@pytest.mark.parametrize("name", MESHES)
def test_meshes_and_choices(session_of, name, choose):
    mesh, tokens = MESHES[name]
    layer = Experts(experts=24 if name == "ep3" else 16)
    experts = ("a", "b") if name == "ep2x2" else "ep"
    plan = plan_of(tokens, experts)
    assert_equals_dense(session_of(mesh.shape), layer, mesh, plan, CHOICES[choose](layer))


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("products", [1, 3])
@pytest.mark.parametrize("choices", [1, 2, 4])
def test_forms_of_products(session_of, choices, products, columns):
    layer = Experts(choices=choices, products=products, columns=columns)
    plan = plan_of("ep")
    assert_equals_dense(session_of(EP8.shape), layer, EP8, plan, one_in_eight(layer))


def test_float16(session_of):
    layer = Experts(dtype="float16")
    args = session_of(EP8.shape), layer, EP8, plan_of("ep"), one_in_eight(layer)
    assert_equals_dense(*args, tolerance=3e-3)


def test_tokens_that_do_not_divide(session_of):
    layer = Experts(tokens=21)
    assert_equals_dense(session_of(EP8.shape), layer, EP8, plan_of("ep"), one_in_eight(layer))


def test_experts_of_one_layer_on_different_axes(session_of):
    """The rows of one axis are not those of the other, although ids and numbers are the same."""
    mesh, layer = dx.Mesh(a=2, b=4), Experts()
    experts = {"up": ("a", None, None), "gate": ("b", None, None), "down": ("b", None, None)}
    mod = dispatched(layer, mesh, {**plan_of(("a", "b")), **experts})
    found = dx.analysis.collectives(dx.lower(mod))
    assert sorted({each.axes for each in found}) == [("a",), ("b",)]
    inputs = layer.inputs(one_in_eight(layer))
    got = run(session_of(mesh.shape), mod, inputs)
    np.testing.assert_allclose(got, layer.dense(*inputs), rtol=1e-5, atol=1e-5)


def test_experts_that_do_not_divide(session_of):
    layer = Experts(experts=10)
    assert_equals_dense(session_of(EP8.shape), layer, EP8, plan_of("ep"), one_in_eight(layer))


def test_a_number_of_tokens_that_is_symbolic(session_of):
    mesh, tokens = dx.Mesh(ep=4), tirx.Var("n", "int64")
    types = {"x": (tokens, 32), "ids": (tokens,), "w": (64, 32, 48)}
    x, ids, w = (
        relax.Var(name, relax.TensorType(shape, "int32" if name == "ids" else "float32"))
        for name, shape in types.items()
    )
    builder = relax.BlockBuilder()
    with builder.function("main", [x, ids, w]):
        with builder.dataflow():
            chosen = builder.emit(relax.op.take(w, ids, axis=0))
            rows = builder.emit(relax.op.expand_dims(x, 1))
            made = builder.emit(relax.op.matmul(rows, chosen))
            result = builder.emit_output(relax.op.squeeze(made, [1]))
        builder.emit_func_output(result)
    plan = {"x": ("ep", None), "ids": ("ep",), "w": ("ep", None, None)}
    mod = dx.lower(dx.annotate(builder.get(), mesh, plan))
    sent = {each.kind: each for each in dx.analysis.collectives(mod)}
    assert sent["dispatch_tokens"].bytes_per_unit == 32 * 4 * 3 / 4
    assert sent["combine_tokens"].bytes_per_unit == 48 * 4 * 3 / 4
    rng = np.random.default_rng(0)
    values = rng.standard_normal((64, 32, 48), "float32")
    model = session_of(mesh.shape).load(dx.build(mod, QUICK))
    for number in (8, 20):
        given = rng.standard_normal((number, 32), "float32")
        ids = rng.integers(0, 64, number).astype("int32")
        got = model["main"](given, ids, values).numpy()
        wanted = np.einsum("td,tdf->tf", given, values[ids])
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_columns_of_experts_may_be_sharded_too(session_of):
    mesh, layer = dx.Mesh(ep=4, tp=2), Experts(products=1)
    plan = {**plan_of("ep"), "up": ("ep", None, "tp")}
    assert_equals_dense(session_of(mesh.shape), layer, mesh, plan, one_in_eight(layer))


COPIES = {
    "ep8": (EP8, None, "ep", ("ep",)),
    "ep3": (dx.Mesh(ep=3), None, "ep", ("ep",)),
    "dp2_ep4": (dx.Mesh(dp=2, ep=4), "dp", "ep", ("ep",)),
    "ep2_dp3": (dx.Mesh(ep=2, dp=3), "dp", "ep", ("ep",)),
    "ep2x2": (dx.Mesh(a=2, b=2), None, ("a", "b"), ("a", "b")),
}


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("choose", CHOICES)
@pytest.mark.parametrize("name", COPIES)
def test_tokens_that_all_devices_have(session_of, name, choose, biases):
    """Each computes the rows of its experts; one sum per layer, of tokens, not of choices."""
    mesh, tokens, experts, axes = COPIES[name]
    layer = Experts(experts=24 if name == "ep3" else 16, biases=biases)
    if biases:
        layer = replace(layer, tokens=18)
    mod = optimized(legalized(layer, mesh, plan_of(tokens, experts)))
    assert dx.testing.violations(mod, "legalized") == []
    found = dx.analysis.collectives(dx.lower(mod))
    assert [(each.kind, each.axes, each.count) for each in found] == [("all_reduce", axes, 1)]
    local = layer.tokens // (
        dict(zip(mesh.axis_names, mesh.shape, strict=True))["dp"] if tokens else 1
    )
    shards = found[0].group_size
    expected = 2 * local * layer.width * 4 * (shards - 1) / shards
    assert found[0].bytes_per_device == pytest.approx(expected, rel=0.01)
    inputs = layer.inputs(CHOICES[choose](layer))
    got = run(session_of(mesh.shape), mod, inputs)
    np.testing.assert_allclose(got, layer.dense(*inputs), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tokens", ["ep", None])
@pytest.mark.parametrize("columns", [False, True])
def test_a_step_of_decoding(session_of, columns, tokens):
    """Fewer rows than experts: looked up where they are, the matrices would be summed."""
    layer = Experts(tokens=8, choices=1, columns=columns, biases=True)
    mod = optimized(legalized(layer, EP8, plan_of(tokens)))
    kinds = [each.kind for each in dx.analysis.collectives(dx.lower(mod))]
    assert kinds == (["dispatch_tokens", "combine_tokens"] if tokens else ["all_reduce"])
    inputs = layer.inputs(balanced(layer))
    got = run(session_of(EP8.shape), mod, inputs)
    np.testing.assert_allclose(got, layer.dense(*inputs), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("order", ["argsort", "scatter", "places", "add"])
@pytest.mark.parametrize("tokens", ["ep", None])
def test_tokens_that_are_sorted_by_expert(session_of, order, tokens):
    layer = Experts(order=order, biases=order == "add")
    mod = optimized(legalized(layer, EP8, plan_of(tokens)))
    kinds = [each.kind for each in dx.analysis.collectives(dx.lower(mod))]
    assert kinds == (["dispatch_tokens", "combine_tokens"] if tokens else ["all_reduce"])
    inputs = layer.inputs(one_in_eight(layer))
    got = run(session_of(EP8.shape), mod, inputs)
    np.testing.assert_allclose(got, layer.dense(*inputs), rtol=1e-5, atol=1e-5)


TP = {"up": ("ep", None, "tp"), "gate": ("ep", None, "tp"), "down": ("ep", "tp", None)}
BIASES = {"up_b": ("ep", "tp"), "gate_b": ("ep", "tp"), "down_b": ("ep", None)}


@pytest.mark.parametrize("columns", [False, True])
def test_the_inside_of_experts_that_all_devices_need(session_of, columns):
    mesh, layer = dx.Mesh(ep=2, tp=2), Experts(columns=columns)
    turned = {name: (dims[0], dims[2], dims[1]) for name, dims in TP.items()}
    mod = optimized(legalized(layer, mesh, {**plan_of(None), **(turned if columns else TP)}))
    found = [(each.kind, each.axes) for each in dx.analysis.collectives(dx.lower(mod))]
    assert found == [("all_reduce", ("ep", "tp"))]
    inputs = layer.inputs(one_in_eight(layer))
    got = run(session_of(mesh.shape), mod, inputs)
    np.testing.assert_allclose(got, layer.dense(*inputs), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("columns", [False, True])
def test_the_inside_of_experts_may_be_sharded(session_of, columns):
    """Over tp each device has a part of the inside: what comes back is summed over tp, once."""
    mesh, layer = dx.Mesh(ep=2, tp=4), Experts(columns=columns)
    turned = {name: (dims[0], dims[2], dims[1]) for name, dims in TP.items()}
    mod = dispatched(layer, mesh, {**plan_of("ep"), **(turned if columns else TP)})
    found = [(each.kind, each.axes) for each in dx.analysis.collectives(dx.lower(mod))]
    assert found == [
        ("dispatch_tokens", ("ep",)),
        ("combine_tokens", ("ep",)),
        ("all_reduce", ("tp",)),
    ]
    inputs = layer.inputs(one_in_eight(layer))
    got = run(session_of(mesh.shape), mod, inputs)
    np.testing.assert_allclose(got, layer.dense(*inputs), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("products", [1, 3])
def test_biases_are_added_where_the_experts_are(session_of, products, columns, sharded):
    layer = Experts(biases=True, columns=columns, products=products)
    plan = plan_of("ep")
    if sharded:
        plan |= dict.fromkeys(("up_b", "gate_b", "down_b"), ("ep", None))
    assert_equals_dense(session_of(EP8.shape), layer, EP8, plan, one_in_eight(layer))


def test_biases_of_experts_that_are_sharded_inside(session_of):
    mesh, layer = dx.Mesh(ep=2, tp=2), Experts(biases=True)
    mod = dispatched(layer, mesh, {**plan_of("ep"), **TP, **BIASES})
    kinds = [each.kind for each in dx.analysis.collectives(dx.lower(mod))]
    assert kinds.count("dispatch_tokens") == kinds.count("combine_tokens") == 1
    inputs = layer.inputs(one_in_eight(layer))
    got = run(session_of(mesh.shape), mod, inputs)
    np.testing.assert_allclose(got, layer.dense(*inputs), rtol=1e-5, atol=1e-5)


def test_workers_that_are_processes():
    mesh, layer = dx.Mesh(ep=2), Experts()
    with dx.Session(mesh, workers="processes") as session:
        assert_equals_dense(session, layer, mesh, plan_of("ep"), one_in_eight(layer))


def test_ids_outside_of_the_experts_mean_the_nearest(session_of):
    layer = Experts()
    inputs = layer.inputs(balanced(layer))
    inputs[1] = inputs[1].copy()
    inputs[1][0, 0], inputs[1][5, 1] = -3, layer.experts + 7
    got = run(session_of(EP8.shape), dispatched(layer, EP8, plan_of("ep")), inputs)
    inputs[1] = np.clip(inputs[1], 0, layer.experts - 1)
    np.testing.assert_allclose(got, layer.dense(*inputs), rtol=1e-5, atol=1e-5)


def test_workers_send_what_is_chosen():
    """The bytes that are counted are those of the rows whose experts are elsewhere."""
    layer = Experts(tokens=64, experts=16, width=32, inner=48, products=1)
    exe = dx.build(dispatched(layer, EP8, plan_of("ep")), QUICK)
    with dx.Session(EP8) as session:
        model = session.load(exe)
        for name in ("balanced", "one_expert"):
            inputs = layer.inputs(CHOICES[name](layer))
            session.reset_statistics()
            model["main"](*inputs).numpy()
            owners = inputs[1].reshape(8, -1) // 2
            leave = (owners != np.arange(8)[:, None]).sum(axis=1)
            arrive = [(np.delete(owners, d, 0) == d).sum() for d in range(8)]
            for device in range(8):
                sent = session.statistics().of_devices(device).by_kind()
                told = 7 * 2 * 8  # counts of the two experts of each other device
                assert sent["dispatch_tokens"] == leave[device] * 32 * 4 + told
                assert sent["combine_tokens"] == arrive[device] * 48 * 4


def test_wrong_counts_show(session_of):
    """A control: rows that are multiplied by their neighbour's expert are not what dense gives."""
    layer = Experts()
    inputs = layer.inputs(one_in_eight(layer))
    mod = dx.lower(dispatched(layer, EP8, plan_of("ep")))
    usual = tvm_ffi.get_global_func("distir.runtime.grouped_matmul")

    def shifted(rows, experts, counts, transposed, room, out):
        wrong = np.roll(np.from_dlpack(counts), 1, axis=1).copy()
        usual(rows, experts, tvm_ffi.from_dlpack(wrong), transposed, room, out)

    tvm_ffi.register_global_func("tests.shifted_grouped_matmul", shifted, override=True)
    text = mod.script().replace("distir.runtime.grouped_matmul", "tests.shifted_grouped_matmul")
    got = run(session_of(EP8.shape), tvm.script.from_source(text), inputs)
    assert np.abs(got - layer.dense(*inputs)).max() > 1e-2
