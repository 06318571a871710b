"""Stages that AssignStages cuts compute what the program does."""

import numpy as np
import pytest
from tests.meshes import meshes
from tests.stages.programs import (
    PP_TP,
    Layers,
    chain,
    chain_result,
    chain_values,
    layers_result,
    layers_values,
    programs,
    staged,
)
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx


def check(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(2,), (3,), (2, 2), (3, 2), (2, 2, 2)])
def test_a_chain_on_stages_of_any_mesh(shape):
    names = ("pp", "tp", "dp")[: len(shape)]
    mesh = dx.Mesh(shape, names)
    widths = [8, 16, 8, 16, 8]
    mod = chain(widths)
    if len(shape) > 1:
        plan = {r"w[02]": (None, "tp"), r"w[13]": ("tp", None)}
        plan |= {"x": ("dp", None)} if len(shape) > 2 else {}
        mod = dx.annotate(mod, mesh, plan)
    mod = staged(mod, mesh, "pp")
    found = programs(mod)
    per_stage = mesh.size // shape[0]
    assert [each["device_ids"] for each in found] == [
        list(range(i * per_stage, (i + 1) * per_stage)) for i in range(shape[0])
    ]
    x, weights = chain_values(widths, rows=4)
    with dx.Session(mesh) as session:
        y = session.load(dx.build(mod), params=weights)["main"](x)
        check(y.numpy(), chain_result(x, weights))
        assert not np.allclose(y.numpy(), chain_result(x, {**weights, "w1": weights["w1"] * 1.1}))


def test_axes_of_a_dimension_in_any_order():
    mesh = dx.Mesh(dp=2, pp=2, tp=2)
    widths = [8, 16, 8, 16, 8]
    plan = {"x": (("tp", "dp"), None), "w[13]": (("tp", "dp"), None), "return": ("tp", "dp")}
    mod = staged(dx.annotate(chain(widths), mesh, plan), mesh, "pp")
    placed = {
        tuple(int(device) for device in each.device_ids)
        for each in mod.global_infos["mesh"]
        if len(each.device_ids) == 4
    }
    assert {(0, 4, 1, 5), (2, 6, 3, 7)} <= placed  # (tp, dp) on the devices of each stage
    x, weights = chain_values(widths, rows=4)
    with dx.Session(mesh) as session:
        y = session.load(dx.build(mod), params=weights)(x)
        check(y.numpy(), chain_result(x, weights))


def test_an_axis_that_is_not_the_first():
    mesh = dx.Mesh((2, 2), ("tp", "pp"))
    mod = dx.annotate(chain([8, 16, 8]), mesh, {"w0": (None, "tp"), "w1": ("tp", None)})
    mod = staged(mod, mesh, "pp")
    assert [each["device_ids"] for each in programs(mod)] == [[0, 2], [1, 3]]
    x, weights = chain_values([8, 16, 8], rows=4)
    with dx.Session(mesh) as session:
        check(session.load(dx.build(mod), weights)["main"](x).numpy(), chain_result(x, weights))


def test_stages_of_different_shapes():
    stages = [dx.Mesh((4,), ("tp",)), dx.Mesh((2,), ("tp",), device_ids=(5, 4))]
    widths = [8, 16, 8, 16, 8, 16, 8]
    plan = {r"w[024]": (None, "tp"), r"w[135]": ("tp", None)}
    mod = staged(dx.annotate(chain(widths), stages[0], plan), stages)
    found = programs(mod)
    # Twice the devices, twice the work.
    assert [each["params"] for each in found] == [["x", "w0", "w1", "w2", "w3"], ["w4", "w5"]]
    assert [each["device_ids"] for each in found] == [[0, 1, 2, 3], [4, 5]]
    x, weights = chain_values(widths, rows=4)
    with dx.Session(6) as session:
        check(session.load(dx.build(mod), weights)["main"](x).numpy(), chain_result(x, weights))


def test_stages_that_have_too_many_devices_for_a_dimension_keep_it_whole():
    stages = [dx.Mesh((2,), ("tp",)), dx.Mesh((3,), ("tp",), device_ids=(2, 3, 4))]
    mod = dx.annotate(chain([4, 2, 4, 2]), stages[0], {"w0": (None, "tp"), "w2": (None, "tp")})
    mod = staged(mod, stages)
    x, weights = chain_values([4, 2, 4, 2], rows=3)
    mod_weights = {name: weights[name] for name in weights}
    x = np.concatenate([x, x[:1]])
    with dx.Session(5) as session:
        y = session.load(dx.build(mod), mod_weights)["main"](x)
        check(y.numpy(), chain_result(x, weights))


def test_calls_tied_weights_inputs_and_tables_in_several_stages():
    mesh = dx.Mesh((2, 2), ("pp", "tp"))
    plan = {r"up\d": (None, "tp"), r"down\d": ("tp", None), "embed": (None, "tp")}
    mod = staged(dx.annotate(Layers, mesh, plan), mesh, "pp")
    first, second = programs(mod)
    assert first["params"] == ["x", "scale", "embed", "up0", "down0", "up1", "down1"]
    assert second["params"] == ["embed", "up2", "down2", "up3", "down3"]
    assert (first["results"], second["results"]) == ([1], [0])
    # The table is computed in each stage: what is sent are the hidden state and the scale.
    text = dx.lower(mod)["main_stage0"].script()
    assert text.count("R.ccl.send(") == 2
    inputs, weights = layers_values()
    with dx.Session(mesh) as session:
        by_name = session.load(dx.build(mod), weights)["main"](*inputs)
        in_order = session.load(dx.build(mod), list(weights.values()))["main"](*inputs)
    for results in (by_name, in_order):
        for actual, expected in zip(results, layers_result(*inputs, weights), strict=True):
            check(actual.numpy(), expected)


def test_without_annotations_every_stage_has_its_own_copy_of_nothing_else():
    mod = staged(Layers, dx.Mesh((3,), ("pp",)), "pp")
    inputs, weights = layers_values()
    assert [len(each["device_ids"]) for each in programs(mod)] == [1, 1, 1]
    with dx.Session(3) as session:
        results = session.load(dx.build(mod), weights)["main"](*inputs)
        for actual, expected in zip(results, layers_result(*inputs, weights), strict=True):
            check(actual.numpy(), expected)


@I.ir_module
class Branches:
    @R.function
    def main(
        x: R.Tensor((4, 8), "float32"),
        flag: R.Tensor((), "bool"),
        w: R.Tensor((8, 8), "float32"),
    ):
        R.func_attr({"num_input": 2})
        parts = R.split(R.matmul(x, w), 2, axis=1)
        left = R.nn.relu(parts[0])
        middle = R.matmul(left, R.permute_dims(left))
        if flag:
            lhs = R.add(middle, middle)
            out = R.matmul(lhs, parts[1])
        else:
            out = R.matmul(middle, parts[1])
        return out


@pytest.mark.parametrize("flag", [True, False])
def test_tuples_and_branches_in_other_stages(flag):
    mod = staged(Branches, dx.Mesh((3,), ("pp",)), "pp", operations=1e3)
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((4, 8), "float32"), rng.standard_normal((8, 8), "float32")
    with dx.Session(3) as session:
        y = session.load(dx.build(mod), {"w": w})["main"](x, np.array(flag))
    product = x @ w
    left = np.maximum(product[:, :4], 0)
    middle = left @ left.T
    check(y.numpy(), (2 * middle if flag else middle) @ product[:, 4:])


@I.ir_module
class AnnotatedCallee:
    I.module_global_infos(meshes((2, 2)))

    @R.function(private=True)
    def layer(x: R.Tensor((4, 8), "float32"), w: R.Tensor((8, 8), "float32")):
        w1 = R.dist.annotate_sharding(w, "mesh[0]", "R, S[1]")
        y = R.tanh(R.matmul(x, w1))
        return y

    @R.function
    def main(
        x: R.Tensor((4, 8), "float32"),
        w0: R.Tensor((8, 8), "float32"),
        w1: R.Tensor((8, 8), "float32"),
    ):
        R.func_attr({"num_input": 1})
        cls = AnnotatedCallee
        a = cls.layer(x, w0)
        b = R.dist.annotate_sharding(a, "mesh[0]", "R, S[0]")
        c = cls.layer(b, w1)
        return c


def test_annotations_in_callees_and_of_values_move_to_the_mesh_of_their_stage():
    mod = staged(AnnotatedCallee, PP_TP, "pp")
    assert [each["params"] for each in programs(mod)] == [["x", "w0"], ["w1"]]
    x, weights = chain_values([8, 8, 8], rows=4)
    with dx.Session(PP_TP) as session:
        check(session.load(dx.build(mod), weights)["main"](x).numpy(), chain_result(x, weights))
