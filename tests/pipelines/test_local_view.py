"""Numbers of programs with local views."""

import numpy as np
import pytest
from tests.lower.local_views import (
    MESHES,
    ORDERS,
    ByHand,
    assert_prints_and_parses,
    operators,
    perceptron,
    plans_on,
    reduced_by,
    small,
    through,
)
from tvm import relax

import distir_ext as dx
from distir_ext.testing.phases import verify


def run(mod, mesh, *arguments, function="main"):
    with dx.Session(mesh) as session:
        result = session.load(dx.build(mod))[function](*arguments)
    return result.numpy() if hasattr(result, "numpy") else [each.numpy() for each in result]


def inputs(rows):
    rng = np.random.default_rng(0)
    shapes = [(rows, 12), (12, 24), (24, 12), (12,)]
    return [rng.standard_normal(shape).astype("float32") for shape in shapes]


def wanted(x, up, down, bias):
    return x + np.maximum(x @ up, 0) @ down + bias


# 12 rows divide into shards, 7 do not, and "n" rows are known at run time.
@pytest.mark.parametrize(
    ("mesh", "rows", "size", "order"),
    [
        ("2", "n", 6, "upstream"),
        ("4", 7, 7, "collectives first"),
        ("3x2", 12, 12, "collectives last"),
        ("3x2", 7, 7, "upstream"),
    ],
    ids=str,
)
def test_numbers_are_those_of_the_whole_program(mesh, rows, size, order):
    mesh = MESHES[mesh]
    plans = list(plans_on(mesh))
    mod = perceptron(rows, len(plans))
    for i, plan in enumerate(plans):
        mod = dx.annotate(mod, mesh, plan, func=f"f{i}")
    local = through(dx.transform.PropagateSharding()(mod), ORDERS[order])
    assert dx.phase(local) == "legalized"
    assert "relax.call_tir" not in operators(local)
    assert "relax.dist.call_tir_local_view" in operators(local)
    assert_prints_and_parses(local)
    arguments = inputs(size)
    with dx.Session(mesh) as session:
        model = session.load(dx.build(local))
        for i, plan in enumerate(plans):
            result = model[f"f{i}"](*arguments).numpy()
            np.testing.assert_allclose(result, wanted(*arguments), 1e-4, 1e-4, err_msg=str(plan))


@pytest.mark.parametrize(
    "names", [["PropagateSharding", *ORDERS["collectives last"]], ["LowerDistIR"]]
)
def test_local_views_beside_global_kernels(names):
    mod = through(ByHand, names)
    assert_prints_and_parses(mod)
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype("float32") for shape in ((8, 6), (6, 12)))
    sums, grown = run(mod, 4, x, w)
    np.testing.assert_allclose(grown, np.exp(2 * x @ w), 1e-4)
    np.testing.assert_allclose(sums, np.exp(2 * x @ w).sum(1), 1e-4)


@pytest.mark.parametrize(
    ("name", "function"),
    [("sum", np.sum), ("prod", np.prod), ("min", np.min), ("max", np.max), ("avg", np.mean)],
)
def test_reductions_of_copies(name, function):
    x = np.arange(1, 9, dtype="float32")
    (result,) = [run(reduced_by(name), 2, x)]
    np.testing.assert_allclose(result, function(2 * x.reshape(2, 4), axis=0), 1e-6)


def test_tensors_are_placed_for_the_local_view_that_takes_them():
    mod = small('Tensor((8,), "float32")')
    (param,) = dx.transform.PropagateSharding()(mod)["main"].params
    assert str(param.ty.placement) == '"S[0]"'
    x = np.linspace(0, 1, 8, dtype="float32")
    np.testing.assert_allclose(run(mod, 2, x), -2 * np.exp(x), 1e-6)


def test_upstream_s_local_views_and_reductions_are_understood():
    mesh = MESHES["2"]
    (plan, *_) = plans_on(mesh)
    mod = dx.transform.PropagateSharding()(dx.annotate(perceptron(12, 1), mesh, plan, func="f0"))
    mod = relax.distributed.transform.LowerGlobalViewToLocalView()(mod)
    assert "relax.ccl.allreduce" in operators(mod)
    verify(dx.transform.LegalizeRedistribute()(mod), "legalized")
    arguments = inputs(12)
    np.testing.assert_allclose(
        run(mod, mesh, *arguments, function="f0"), wanted(*arguments), 1e-4, 1e-4
    )
