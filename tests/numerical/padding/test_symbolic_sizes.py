"""Symbolic sizes that their shards do not divide: in kernels, casts and calls, and sums of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tvm
from tests.targets import QUICK
from tvm import relax, tirx
from tvm.relax import op

import distir_ext as dx

from .checks import TOLERANCE, arrays

N, M = tirx.Var("n", "int64"), tirx.Var("m", "int64")
PAIR, TRIO = dx.Mesh(dp=2), dx.Mesh(dp=3)
GRID = dx.Mesh(dp=2, tp=2)


def written(of: Callable[..., Any], **shapes: Sequence[Any]) -> tvm.IRModule:
    """A module with ``main``, of float32 tensors."""
    builder = relax.BlockBuilder()
    params = [relax.Var(n, relax.TensorType(s, "float32")) for n, s in shapes.items()]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(of(*params)))
        builder.emit_func_output(result)
    return builder.get()


def inputs_of(mod: tvm.IRModule, **sizes: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)

    def size(dim: Any) -> int:
        return int(eval(str(dim), {"T": SimpleNamespace(int64=int)}, sizes))

    return [
        rng.uniform(1, 6.9, [size(dim) for dim in param.ty.shape]).astype("float32")
        for param in mod["main"].params
    ]


def compare(
    mod: tvm.IRModule,
    mesh: dx.Mesh,
    plan: dict[str, Any],
    session: dx.Session,
    sizes: Sequence[tuple[int, int]] = ((1, 3), (3, 2), (5, 7)),
) -> None:
    """One build serves all sizes (n, m), with the numbers of one device."""
    machine = relax.VirtualMachine(tvm.compile(mod, QUICK), tvm.cpu())
    main = session.load(dx.build(dx.annotate(mod, mesh, plan), QUICK))["main"]
    for n, m in sizes:
        inputs = inputs_of(mod, n=n, m=m)
        wanted = arrays(machine["main"](*map(tvm.runtime.tensor, inputs)))
        for got, right in zip(arrays(main(*inputs)), wanted, strict=True):
            assert got.shape == right.shape
            error = np.linalg.norm(got.astype("float64") - right)
            assert error <= TOLERANCE["float32"] * max(np.linalg.norm(right), 1e-30), (n, m)


KERNELS: list[tuple[Callable[..., Any], dict[str, Sequence[Any]], dict[str, Any]]] = [
    (op.exp, {"x": (N, 5)}, {"x": ("dp", None)}),
    (lambda x: op.sum(x, [1]), {"x": (N, 5)}, {"x": ("dp", None)}),
    (lambda x: op.sum(x, [0]), {"x": (N, 5)}, {"x": ("dp", None)}),
    (lambda x: op.max(x, [0]), {"x": (N, 5)}, {"x": ("dp", None)}),
    (op.matmul, {"x": (N, 5), "w": (5, 4)}, {"x": ("dp", None)}),
    (op.matmul, {"x": (3, N), "w": (N, 4)}, {"x": (None, "dp"), "w": ("dp", None)}),
    (op.add, {"x": (N, 5), "w": (1, 5)}, {"x": ("dp", None)}),
    (op.permute_dims, {"x": (N, 5)}, {"x": ("dp", None)}),
    (lambda x: op.reshape(x, (N * 4, 6)), {"x": (N, 4, 6)}, {"x": ("dp", None, None)}),
    (lambda x: op.reshape(x, (N, 2, 3)), {"x": (N, 6)}, {"x": ("dp", None)}),
    (lambda x: op.tile(x, (1, 2)), {"x": (N, 5)}, {"x": ("dp", None)}),
    (lambda x, y: op.add(x, op.expand_dims(y, 1)), {"x": (N, M), "y": (N,)}, {"x": ("dp", None)}),
]


def test_kernels(session_of):
    """Kernels of symbolic sizes, of which nothing but the sizes of buffers and loops depends."""
    for mesh in (PAIR, TRIO):
        for make, shapes, plan in KERNELS:
            mod = relax.transform.LegalizeOps()(written(make, **shapes))
            compare(mod, mesh, plan, session_of(mesh.shape), ((1, 3), (5, 2)))


def test_a_kernel_that_computes_with_a_size_is_named(session_of):
    mod = relax.transform.LegalizeOps()(
        written(lambda x: op.add(x, op.mean(x, [0], keepdims=True)), x=(N, 5))
    )
    plan = {"x": ("dp", None)}
    main = session_of((2,)).load(dx.build(dx.annotate(mod, PAIR, plan), QUICK))["main"]
    with pytest.raises(ValueError, match=r"size n = 5.*kernel `mean`"):
        main(np.ones((5, 5), "float32"))


def cast(size: Any) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((N, 4), "float32"))
    with builder.function("main", [x]):
        y = builder.match_cast(builder.emit(op.exp(x)), relax.TensorType((size, 4), "float32"))
        mean = builder.emit(op.mean(y, [0]))
        builder.emit_func_output(relax.Tuple([builder.emit(op.negative(y)), mean]))
    return builder.get()


def test_a_cast_on_shards(session_of):
    plan = {"x": ("dp", None)}
    for mesh in (PAIR, TRIO):
        session = session_of(mesh.shape)
        compare(cast(M), mesh, plan, session)
        for size in (7, 6):
            compare(cast(size), mesh, plan, session, ((size, 1),))
    with dx.Session(2) as session:
        main = session.load(dx.build(dx.annotate(cast(7), PAIR, plan), QUICK))["main"]
        with pytest.raises(dx.WorkerError, match=r"8 vs\. 7"):
            main(np.ones((8, 4), "float32"))


def called_twice(meshes: Sequence[dx.Mesh] = ()) -> tvm.IRModule:
    """A function that needs its true size, called of what is placed on each of the meshes."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((N, 4), "float32"))
    inner = relax.Var("x", relax.TensorType((M, 4), "float32"))
    with builder.function("centred", [inner], private=True):
        mean = builder.emit(op.mean(inner, [0], keepdims=True))
        builder.emit_func_output(builder.emit(op.subtract(inner, mean)))
    centred = builder.get().get_global_var("centred")
    with builder.function("main", [x]):
        value = x
        for number in range(2):
            if meshes:
                mesh = meshes[number]
                placement = mesh.placement(mesh.axis_names[0], None)
                value = builder.emit(
                    op.distributed.annotate_sharding(value, mesh.device_mesh, placement)
                )
            value = builder.emit(op.exp(builder.emit(relax.Call(centred, [value]))))
        builder.emit_func_output(value)
    mod = builder.get()
    if meshes:
        mod.update_global_info("mesh", [mesh.device_mesh for mesh in meshes])
    return mod


def test_a_function_that_is_called_on_two_meshes(session_of):
    """It takes its sizes; on each mesh they are padded otherwise."""
    first = dx.Mesh(dp=3)
    for second in (dx.Mesh((2,), ("tp",), device_ids=[1, 2]), dx.Mesh((2,), ("tp",), [3, 4])):
        machine = relax.VirtualMachine(tvm.compile(called_twice(), QUICK), tvm.cpu())
        built = dx.build(called_twice((first, second)), QUICK)
        main = session_of((5,)).load(built)["main"]
        for rows in (1, 5, 7):
            x = np.random.default_rng(0).random((rows, 4), "float32")
            wanted = machine["main"](tvm.runtime.tensor(x)).numpy()
            np.testing.assert_allclose(main(x).numpy(), wanted, rtol=1e-5)


SIZES = [
    # Twice a size: two of each of n units, where both are rows of one tensor.
    (lambda x, y: op.add(op.concat([x, x], 0), y), {"x": (N, 4), "y": (N * 2, 4)}),
    (lambda x, y: op.add(op.mean(x, [0]), op.mean(y, [0])), {"x": (N, 4), "y": (N * 2, 4)}),
    (lambda x, y: op.concat([x, y], 0), {"x": (N, 4), "y": (M, 4)}),
    (lambda x, y, z: op.add(op.concat([x, y], 0), z), {"x": (N, 4), "y": (M, 4), "z": (N + M, 4)}),
    (lambda x, y: op.matmul(x, op.permute_dims(y)), {"x": (N, 4), "y": (M, 4)}),
    (lambda x, y: op.multiply(op.sum(x, [0]), op.max(y, [0])), {"x": (N, 4), "y": (N // 2 + 1, 4)}),
    (lambda x, y: op.reshape(op.add(x, y), (N * M, 4)), {"x": (N, M, 4), "y": (N, 1, 4)}),
]


@pytest.mark.large
def test_sizes_that_are_computed_of_others(session_of):
    for mesh in (PAIR, TRIO, GRID):
        names = tuple(mesh.axis_names)
        rows = names if len(names) > 1 else names[0]
        for make, shapes in SIZES:
            for every in (True, False):
                placed = shapes if every else list(shapes)[:1]
                plan = {name: (rows, *[None] * (len(shapes[name]) - 1)) for name in placed}
                compare(written(make, **shapes), mesh, plan, session_of(mesh.shape))


def test_nothing_at_all(session_of):
    """A size of 0, of which one device's kernels may give anything where they reduce it."""
    w = np.random.default_rng(0).random((4, 6), "float32")
    for mesh in (PAIR, TRIO):
        for make, shapes, wanted in (
            (op.exp, {"x": (N, 4)}, lambda x: np.exp(x)),
            (lambda x: op.sum(op.exp(x), [0]), {"x": (N, 4)}, lambda x: np.exp(x).sum(0)),
            (op.matmul, {"x": (N, 4), "w": (4, 6)}, lambda x, w: x @ w),
        ):
            mod = dx.annotate(written(make, **shapes), mesh, {"x": ("dp", None)})
            main = session_of(mesh.shape).load(dx.build(mod, QUICK))["main"]
            for rows in (0, 1, 2):
                inputs = [np.ones((rows, 4), "float32"), w][: len(shapes)]
                np.testing.assert_allclose(main(*inputs).numpy(), wanted(*inputs), rtol=1e-5)
