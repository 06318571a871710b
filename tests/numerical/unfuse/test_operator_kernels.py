"""Softmax, norms, lookups, slices and the like along a sharded dimension, after orders of TVM's
passes."""

import inspect

import numpy as np
import pytest
import tvm
from tests.targets import QUICK
from tests.unfuse import layer, norms
from tvm import relax
from tvm.relax import op

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
    """Runs a module with TVM alone."""
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


# By name an operator, the shapes of its operands, and which dimension of the first is sharded.
# Positions are integers.
MOVES = {
    "slice": (lambda x: op.strided_slice(x, [1], [3], [17]), [(6, 20)], 1),
    "steps": (lambda x: op.strided_slice(x, [0, 1], [1, 0], [5, 20], [1, 3]), [(6, 20)], 1),
    "steps back": (lambda x: op.strided_slice(x, [1], [18], [-21], [-3]), [(6, 20)], 1),
    "flip": (lambda x: op.flip(x, 1), [(6, 20)], 1),
    "pad": (lambda x: op.nn.pad(x, [0, 0, 1, 3], "constant", 0.5), [(6, 20)], 1),
    "gather": (lambda x, at: op.gather_elements(x, at, 1), [(6, 20), (6, 5)], 1),
    "gather rows": (lambda x, at: op.gather_elements(x, at, 0), [(6, 20), (4, 20)], 0),
    "loss": (lambda x, at: op.nn.nll_loss(x, at, reduction="none"), [(6, 20), (6,)], 1),
    "weighted loss": (
        lambda x, at, w: op.nn.nll_loss(x, at, w, "sum", 3),
        [(6, 20), (6,), (20,)],
        1,
    ),
    "convolution": (
        lambda x, w: op.nn.conv2d(x, w, (2, 1), (1, 0, 2, 1), (1, 2), 2),
        [(2, 4, 12, 10), (6, 2, 3, 3)],
        2,
    ),
    "channels last": (
        lambda x, w: op.nn.conv1d(x, w, padding=(2, 0), data_layout="NWC", kernel_layout="WIO"),
        [(2, 12, 4), (3, 4, 6)],
        1,
    ),
    "volumes": (
        lambda x, w: op.nn.conv3d(x, w, padding=(1, 1, 1)),
        [(1, 2, 8, 5, 6), (3, 2, 3, 3, 3)],
        2,
    ),
    "maximum of windows": (
        lambda x: op.nn.max_pool2d(x, (3, 3), (2, 2), ceil_mode=True),
        [(2, 4, 12, 10)],
        2,
    ),
    "mean of windows": (
        lambda x: op.nn.avg_pool2d(x, (3, 2), (2, 2), (1, 0, 1, 0)),
        [(2, 4, 12, 10)],
        2,
    ),
}


def moving(name):
    """main(x, ..): the operator between two others, so that FuseTIR has something to do."""
    make, shapes, _ = MOVES[name]
    builder = relax.BlockBuilder()
    names = list(inspect.signature(make).parameters)
    params = [
        relax.Var(each, relax.TensorType(shape, "int64" if each == "at" else "float32"))
        for each, shape in zip(names, shapes, strict=True)
    ]
    with builder.function("main", params):
        with builder.dataflow():
            value = builder.emit(op.exp(params[0]))
            value = builder.emit(make(value, *params[1:]))
            result = builder.emit_output(op.negative(value))
        builder.emit_func_output(result)
    return builder.get()


@pytest.mark.parametrize("devices", [3, 4])
@pytest.mark.parametrize("name", MOVES)
def test_moved_elements_and_windows(session_of, name, devices):
    mod, rng = moving(name), np.random.default_rng(0)
    _, shapes, dim = MOVES[name]
    plan = {"x": tuple("tp" if d == dim else None for d in range(len(shapes[0])))}
    args = [
        rng.uniform(0, 6, shape).astype(str(param.ty.dtype))
        for param, shape in zip(mod["main"].params, shapes, strict=True)
    ]
    wanted, sent = alone(mod, *args), set()
    for passes in ((), layer.ORDERS["LegalizeOps"], layer.FUSED):
        annotated = dx.annotate(layer.after(passes, mod), dx.Mesh(tp=devices), plan)
        exe = dx.build(annotated, QUICK)
        found = [(e.kind, e.count, e.bytes_per_device) for e in dx.analysis.collectives(exe)]
        sent.add(tuple(sorted(found)))
        got = session_of((devices,)).load(exe)["main"](*args).numpy()
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
    assert len(sent) == 1, sent


@pytest.mark.parametrize("name", norms.NEARLY)
def test_numbers_of_what_is_nearly_the_operator(session_of, name):
    mod = norms.nearly(name)
    args = arrays(mod)
    exe = dx.build(dx.annotate(mod, MESHES["even"], {"x": (None, None, "tp")}), QUICK)
    got = session_of((4,)).load(exe)["main"](*args).numpy()
    np.testing.assert_allclose(got, alone(mod, *args), rtol=1e-5, atol=1e-5)
