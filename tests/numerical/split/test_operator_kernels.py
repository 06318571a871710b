"""Softmax, norms and lookups along a sharded dimension, after orders of TVM's passes."""

import numpy as np
import pytest
import tvm
from tests.split import layer, norms
from tests.targets import QUICK

import distir_ext as dx

MESHES = {
    "even": dx.Mesh(tp=4),
    "uneven": dx.Mesh(tp=5),
    "two axes": dx.Mesh(dp=2, tp=3),
    "rows": dx.Mesh(sp=2, tp=2),
}
WITH_KERNELS = [name for name in layer.ORDERS if "LegalizeOps" in name or "FuseTIR" in name]


def annotated(mod, mesh):
    """The module, its parameters sharded along the axes that the mesh has."""
    plan = {**norms.PLAN, "table": ("tp", None)}
    for axis, dims in (("dp", ("dp", None, None)), ("sp", (None, "sp", None))):
        if axis in mesh.axis_names:
            plan["x"] = dims
    names = [param.name for param in mod["main"].params]
    return dx.annotate(mod, mesh, {name: plan[name] for name in names if name in plan})


def sent(mod, mesh):
    """The kinds of collectives, how often, and what a device sends in one."""
    found = dx.analysis.collectives(dx.lower(annotated(mod, mesh)))
    return sorted((each.kind, each.count, each.bytes_per_device) for each in found)


def arrays(mod):
    rng = np.random.default_rng(0)
    shapes = [[int(size) for size in param.ty.shape] for param in mod["main"].params]
    return [(rng.standard_normal(s) / s[0] ** 0.5).astype("float32") for s in shapes]


def alone(mod, *args):
    """What TVM computes without us."""
    machine = tvm.relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    return machine["main"](*(tvm.runtime.tensor(each) for each in args)).numpy()


@pytest.mark.parametrize("mesh", MESHES)
def test_orders_of_passes_send_the_same(mesh):
    mesh = MESHES[mesh]
    for mod in (norms.all_norms(), norms.lookup()):
        wanted = sent(mod, mesh)
        for name in WITH_KERNELS:
            assert sent(layer.after(layer.ORDERS[name], mod), mesh) == wanted, name


@pytest.mark.parametrize(
    ("mesh", "rows"), [("even", 12), ("uneven", "n"), ("two axes", 12), ("rows", "n")]
)
def test_numbers_after_fusion(session_of, mesh, rows):
    mesh, mod = MESHES[mesh], norms.all_norms()
    args = arrays(mod)
    wanted = alone(mod, *args)
    size = tvm.tirx.Var(rows, "int64") if isinstance(rows, str) else rows
    fused = layer.after(layer.FUSED, norms.all_norms(size))
    exe = dx.build(annotated(fused, mesh), QUICK)
    got = session_of(mesh.shape).load(exe)["main"](*args).numpy()
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", ["fast", "clip", "wrap"])
def test_numbers_of_a_lookup(session_of, mode):
    mod, mesh = norms.lookup(mode), MESHES["even"]
    (table, _), places = arrays(mod), np.array([[0, 25, 7, 8, 13], [20, 1, 6, 14, 12]])
    places = places if mode == "fast" else places - 3
    exe = dx.build(annotated(layer.after(layer.FUSED, mod), mesh), QUICK)
    got = session_of(mesh.shape).load(exe)["main"](table, places).numpy()
    np.testing.assert_array_equal(got, alone(mod, table, places))


@pytest.mark.parametrize("name", norms.NEARLY)
def test_numbers_of_what_is_nearly_the_operator(session_of, name):
    mod = norms.nearly(name)
    args = arrays(mod)
    exe = dx.build(dx.annotate(mod, MESHES["even"], {"x": (None, None, "tp")}), QUICK)
    got = session_of((4,)).load(exe)["main"](*args).numpy()
    np.testing.assert_allclose(got, alone(mod, *args), rtol=1e-5, atol=1e-5)
