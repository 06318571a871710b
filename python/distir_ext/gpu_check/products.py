"""Times programs: products beside cuBLAS and the data sheet, attention, a decode step."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import tvm
from tvm.relax import op

from distir_ext.annotate.patterns import annotate
from distir_ext.compile.entry import build
from distir_ext.gpu_check.findings import Finding
from distir_ext.gpu_check.machine import Machine, relative_error
from distir_ext.gpu_check.programs import LLAMA_8B, TINY, module_of
from distir_ext.mesh.mesh import Mesh
from distir_ext.native.machine import nvidia as _nvidia
from distir_ext.session.session import Session

# More than a data sheet says is a mistake of the measurement; so much is left to its clock.
_MOST = 1.1

_REPEATED = 10
_TYPES = {"float16": 2, "bfloat16": 14, "float32": 0}  # CUDA_R_16F, CUDA_R_16BF, CUDA_R_32F
_COMPUTE_32F = 68
_DEFAULT_ALGORITHM = -1


def check_products(machine: Machine) -> Iterator[Finding]:
    """Square products by TVM's schedules, and by cuBLAS where it is installed."""
    size = machine.pick(4096, 128)
    for dtype in ("float16", "bfloat16", "float32"):
        value = np.full((size, size), 1 / size, getattr(ml_dtypes, dtype, dtype))
        seconds = _seconds(machine, op.matmul, [value, value], dtype)
        ours = 2 * size**3 / seconds / 1e12
        reference = _cublas(machine, size, dtype)
        found = f"{ours:.2f} TFLOP/s"
        if reference is not None:
            found += f", cuBLAS {reference:.2f} TFLOP/s ({ours / reference:.0%})"
        peak = machine.sheet.flops[dtype] / 1e12 if machine.sheet is not None else None
        what = f"product of {size} x {size} x {size} in {dtype}"
        yield _at_most(what, found, ours, peak, "TFLOP/s")
    if not machine.simulated and _cublas_library() is None:
        yield Finding("cuBLAS", "not installed: pip install nvidia-cublas lets it be measured")


def check_attention(machine: Machine) -> Iterator[Finding]:
    """Scaled dot product attention against float64, and its time."""
    heads, rows, size = machine.pick((32, 2048, 128), (2, 16, 8))
    dtype = "float16"
    rng = np.random.default_rng(0)
    values = [rng.standard_normal((1, rows, heads, size)).astype(dtype) for _ in range(3)]
    wide = [each.astype("float64").transpose(0, 2, 1, 3) for each in values]
    scores = wide[0] @ wide[1].transpose(0, 1, 3, 2) / np.sqrt(size)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = (weights / weights.sum(-1, keepdims=True)) @ wide[2]
    outs: list[Any] = []
    seconds = _seconds(machine, op.nn.attention, values, dtype, outs)
    error = relative_error(outs[0], expected.transpose(0, 2, 1, 3))
    limit = 2.0**-9
    yield Finding(
        f"attention of {heads} heads, {rows} positions, in {dtype}",
        f"error {error:.2g}, {seconds * 1e6:.0f} us",
        f"error at most {limit:.2g}",
        error <= limit,
    )


def check_decode(machine: Machine) -> Iterator[Finding]:
    """One new position through a layer, whose weights are read once: bytes per second."""
    layer = machine.pick(LLAMA_8B, TINY)
    dtype = "float16"
    rng = np.random.default_rng(0)
    shapes = layer.shapes(1)
    values = [(rng.standard_normal(shape) / 64).astype(dtype) for shape in shapes.values()]
    seconds = _seconds(machine, layer.run, values, dtype, names=list(shapes))
    rate = sum(each.nbytes for each in values) / 1e9 / seconds
    yield _at_most(
        "decode step of a Llama layer in " + dtype,
        f"{seconds * 1e6:.0f} us, {rate:.1f} GB/s of weights and cache",
        rate,
        machine.sheet.bandwidth / 1e9 if machine.sheet is not None else None,
        "GB/s",
    )


def _at_most(what: str, found: str, rate: float, sheet: float | None, unit: str) -> Finding:
    """A rate beside that of the data sheet, which no program exceeds."""
    if sheet is None:
        return Finding(what, found)
    found += f" ({rate / sheet:.0%} of the data sheet)"
    return Finding(what, found, f"at most {sheet:.0f} {unit}", rate <= sheet * _MOST)


def _seconds(
    machine: Machine,
    make: Callable[..., Any],
    values: Sequence[Any],
    dtype: str,
    outs: list[Any] | None = None,
    names: Sequence[str] = (),
) -> float:
    """The least time of a call, all of whose arguments are weights, which lie on the GPU."""
    mesh = Mesh((1,), ("tp",))
    shapes = {
        name: each.shape
        for name, each in zip(names or [f"x{i}" for i in range(len(values))], values, strict=True)
    }
    first = next(iter(shapes))
    module = module_of(make, shapes, dtype, num_input=0)
    mod = annotate(module, mesh, {first: (None,) * values[0].ndim})
    exe = build(mod, target=machine.target)
    with machine.programs(), Session(mesh, ccl="nccl") as session:
        main = session.load(exe, params=list(values))["main"]
        result = main()
        if outs is not None:
            outs.append(result.numpy())
        times = []
        for _ in range(_REPEATED):
            begin = time.perf_counter()
            main()
            times.append(time.perf_counter() - begin)
    return min(times)


def _cublas_library() -> Any:
    for path in [*_nvidia.packaged("libcublas.so.*"), "libcublas.so.13", "libcublas.so.12"]:
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    return None


def _cublas(machine: Machine, size: int, dtype: str) -> float | None:
    """TFLOP/s of cublasGemmEx, summed in float32."""
    library = None if machine.simulated else _cublas_library()
    if library is None:
        return None
    handle = ctypes.c_void_p()
    if library.cublasCreate_v2(ctypes.byref(handle)) != 0:
        return None
    x, w, out = (tvm.runtime.empty((size, size), dtype, tvm.cuda(0)) for _ in range(3))
    one, zero = ctypes.c_float(1), ctypes.c_float(0)
    kind = _TYPES[dtype]

    def multiply() -> int:
        matrices = [
            item for tensor in (x, w) for item in (ctypes.c_void_p(tensor.data_ptr()), kind, size)
        ]
        return int(
            library.cublasGemmEx(
                handle,
                *(0, 0, size, size, size),
                ctypes.byref(one),
                *matrices,
                ctypes.byref(zero),
                *(ctypes.c_void_p(out.data_ptr()), kind, size),
                *(_COMPUTE_32F, _DEFAULT_ALGORITHM),
            )
        )

    try:
        if multiply() != 0:
            return None
        machine.wait()
        begin = time.perf_counter()
        for _ in range(_REPEATED):
            multiply()
        machine.wait()
        return 2 * size**3 * _REPEATED / (time.perf_counter() - begin) / 1e12
    finally:
        library.cublasDestroy_v2(handle)
