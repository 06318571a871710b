"""Kernels for tensor cores compute products: their CUDA source, run by threads of the host.

``block_on_host`` has what stands in for CUDA there. It runs what TVM's schedule has made of a
product: tiles in shared memory, the waits for them, fragments, and the cast of the result.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from tests.pipelines.target.cuda_source import source_of
from tvm.relax import op

import distir_ext as dx
from distir_ext.gpu_check.programs import module_of
from distir_ext.native.machine import nvidia as _nvidia

HERE = Path(__file__).parent / "block_on_host"

# Rows and columns of a block's tile, and its threads: those of TVM's schedule for tensor cores.
TILE = 128
THREADS = (32, 16, 1)


def kernel_of(dtype, shapes):
    """The source of a product's kernel."""
    mod = dx.annotate(module_of(op.matmul, shapes, dtype), dx.Mesh(tp=1), {"x": (None, None)})
    source = source_of(dx.build(mod, target={"kind": "cuda", "arch": "sm_80"}))
    assert "nvcuda::wmma::mma_sync" in source
    return source


def run_on_host(source, folder, x, w):
    """The product, as the kernel computes it."""
    compiler = shutil.which("g++") or shutil.which("c++")
    headers = [root / "include" for each in _nvidia.package_roots() for root in each.glob("cu*")]
    if compiler is None or not headers:
        pytest.skip("there is no C++ compiler, or no headers of CUDA")
    ((name, text),) = set(re.findall(r"void __launch_bounds__\(512\) (\w+)\((.*?)\);", source))
    arguments = re.findall(r"(\w+)\* __restrict__ (\w+)", text)
    rows, columns = x.shape[0], w.shape[1]
    grid = (-(-rows // TILE), -(-columns // TILE), 1)
    passed = ", ".join(f"({kind}*){argument}" for kind, argument in arguments)
    source = (
        '#include "block.h"\n'
        + source.replace("extern __shared__", "extern")
        + f"""
        extern "C" void run({", ".join(f"void* {argument}" for _, argument in arguments)}) {{
          RunOnHost({{{", ".join(map(str, grid))}}}, {{{", ".join(map(str, THREADS))}}},
                    [=] {{ {name}({passed}); }});
        }}
        """
    )
    (folder / "kernel.cc").write_text(source)
    library = folder / "kernel.so"
    options = ["-std=c++17", "-O1", "-w", "-shared", "-fPIC", f"-I{HERE}", f"-isystem{headers[0]}"]
    subprocess.run([compiler, *options, str(folder / "kernel.cc"), "-o", str(library)], check=True)
    result = np.full((rows, columns), 7, x.dtype)
    arrays = {"x_ptr": x, "w_ptr": w}
    pointers = [
        ctypes.c_void_p(arrays.get(argument, result).ctypes.data) for _, argument in arguments
    ]
    ctypes.CDLL(str(library)).run(*pointers)
    return result


CASES = {
    "bfloat16": ("bfloat16", (128, 256, 256)),
    "sizes that are padded": ("bfloat16", (130, 100, 70)),
    "float16": pytest.param("float16", (128, 256, 256), marks=pytest.mark.large),
}


def operands(dtype, rows, terms, columns):
    rng = np.random.default_rng(0)
    numpy_dtype = getattr(ml_dtypes, dtype, dtype)
    return (
        rng.standard_normal((rows, terms)).astype(numpy_dtype),
        rng.standard_normal((terms, columns)).astype(numpy_dtype),
    )


def error_of(result, x, w):
    expected = x.astype("float64") @ w.astype("float64")
    return np.linalg.norm(result.astype("float64") - expected) / np.linalg.norm(expected)


@pytest.mark.parametrize(
    ("dtype", "sizes"),
    [
        each if isinstance(each, tuple) else pytest.param(*each.values, marks=each.marks)
        for each in CASES.values()
    ],
    ids=CASES,
)
def test_products_against_float64(tmp_path, dtype, sizes):
    """The error is that of rounding the result once."""
    x, w = operands(dtype, *sizes)
    source = kernel_of(dtype, {"x": x.shape, "w": w.shape})
    result = run_on_host(source, tmp_path, x, w)
    assert error_of(result, x, w) < {"float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]


@pytest.mark.large
def test_a_kernel_without_its_waits_is_noticed(tmp_path):
    """The control."""
    x, w = operands("bfloat16", 128, 256, 256)
    source = kernel_of("bfloat16", {"x": x.shape, "w": w.shape})
    result = run_on_host(source.replace("__syncthreads();", ""), tmp_path, x, w)
    assert not error_of(result, x, w) < 0.1
