"""Lookups and writes by position of sharded tensors: as of whole ones, outside of them, too."""

import numpy as np
import pytest
from tests.targets import QUICK
from tvm import relax
from tvm.relax import op as R

import distir_ext as dx

MESHES = (dx.Mesh(a=2, b=2), dx.Mesh(a=3))
PLANS = (
    {"x": ("a", None)},
    {"x": (None, "a")},
    {"x": (("a", "b"), None)},
    {"x": ("a", "b"), "i": ("b",)},
    {"i": ("a",), "y": ("a", None)},
)
COLUMNS = np.array([0, -1, 4, 2, -3], "int64")


def rows(index):
    return R.broadcast_to(R.expand_dims(index, 1), [5, 4])


LOOKUPS = (
    lambda x, i, y: R.take(x, i, 0, mode="fast"),
    lambda x, i, y: R.index_tensor(x, [i]),
    lambda x, i, y: R.gather_nd(x, R.astype(R.expand_dims(i, 1), "int64")),
    lambda x, i, y: R.gather_elements(x, R.astype(rows(i), "int64"), 0),
    lambda x, i, y: R.index_tensor(x, [i, relax.const(COLUMNS.astype(str(i.ty.dtype)))]),
)
WRITES = (
    lambda x, i, y: R.scatter_elements(x, rows(i), y, 0, "update"),
    lambda x, i, y: R.scatter_nd(x, R.expand_dims(i, 1), y, "max"),
    lambda x, i, y: R.grad.take_backward(y, x, i, 0),
    lambda x, i, y: R.index_put(
        x, [i, relax.const(COLUMNS.astype(str(i.ty.dtype)))], R.sum(y, [1]), True
    ),
)


def on_workers(apply, arrays, session_of):
    """The results of a function, on all meshes and with all plans that fit."""
    params = [
        relax.Var(name, relax.TensorType(array.shape, str(array.dtype)))
        for name, array in zip("xiy", arrays, strict=True)
    ]
    builder = relax.BlockBuilder()
    with builder.function("main", params, {"num_input": 3}):
        builder.emit_func_output(builder.emit(apply(*params)))
    for mesh in MESHES:
        for plan in PLANS:
            if "b" in str(plan) and "b" not in mesh.axis_names:
                continue
            mod = dx.annotate(builder.get(), mesh, plan)
            exe = dx.build(mod, target=QUICK)
            yield plan, session_of(mesh.shape).load(exe)(*arrays).numpy()


def arrays_of(size, dtype):
    rng = np.random.default_rng(0)
    index = np.array([-1, -size, size, 100, -size - 1], dtype)
    x, y = (rng.standard_normal((n, 4)).astype("float32") for n in (size, 5))
    return x, index, y


@pytest.mark.parametrize(("size", "dtype"), [(8, "int64"), (7, "int32")])
@pytest.mark.parametrize("applies", [LOOKUPS, WRITES], ids=["lookups", "writes"])
@pytest.mark.large
def test_sharded_positions_outside_mean_what_they_do_on_one_device(
    applies, size, dtype, session_of
):
    x, index, y = arrays_of(size, dtype)
    place = np.where(index < 0, index + size, index)
    near, columns = np.clip(place, 0, size - 1), np.clip(COLUMNS % 4, 0, 3)
    columns[2] = 3  # 4 is outside
    inside = (place >= 0) & (place < size)
    updated, greatest, added, put = x.copy(), x.copy(), np.zeros_like(x), x.copy()
    updated[place[inside]] = y[inside]
    np.maximum.at(greatest, place[inside], y[inside])
    np.add.at(added, place[inside], y[inside])
    both = inside & (COLUMNS < 4)
    np.add.at(put, (place[both], (COLUMNS % 4)[both]), y.sum(1)[both])
    right = (
        [x[near]] * 4 + [x[near, columns]]
        if applies is LOOKUPS
        else [updated, greatest, added, put]
    )
    for number, (apply, wanted) in enumerate(zip(applies, right, strict=True)):
        for plan, found in on_workers(apply, (x, index, y), session_of):
            np.testing.assert_allclose(found, wanted, 1e-5, 1e-6, err_msg=f"{number} {plan}")
