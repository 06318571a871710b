"""The kernel of attention for GPUs: its source, run by threads of the host, against float64.

``block_on_host`` has what stands in for CUDA there: copies that arrive when they are waited for,
and instructions of a warp by what the PTX manual says of its lanes.
"""

from __future__ import annotations

import ctypes
import dataclasses
import re
import shutil
import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from tests.pipelines.target.cuda_source import source_of
from tvm import relax, tirx

import distir_ext as dx
from distir_ext.native.machine import nvidia as _nvidia

HERE = Path(__file__).parent / "block_on_host"
THREADS = 128
ROUNDED = {"float16": 2.0**-11, "bfloat16": 2.0**-8}


@dataclasses.dataclass(frozen=True)
class Case:
    """Sizes, as ``R.nn.attention`` has them; a bias of ones where a size of it is 1."""

    dtype: str = "float16"
    batch: int = 2
    queries: int = 70
    keys: int = 90
    heads: int = 2
    key_heads: int = 2
    depth: int = 32
    value_depth: int = 32
    causal: str | None = None
    bias: tuple[bool, bool, bool, bool] | None = None
    """Which of batch, heads, queries and keys the bias has; None without a bias."""
    kernels: int = 1

    @property
    def shapes(self):
        full = (self.batch, self.heads, self.queries, self.keys)
        shapes = {
            "query": (self.batch, self.queries, self.heads, self.depth),
            "key": (self.batch, self.keys, self.key_heads, self.depth),
            "value": (self.batch, self.keys, self.key_heads, self.value_depth),
        }
        if self.bias is not None:
            shapes["bias"] = tuple(n if has else 1 for n, has in zip(full, self.bias, strict=True))
        return shapes

    def program(self, symbolic=()):
        """The call in a module; sizes with these names are symbolic."""
        variables = {name: tirx.Var(name, "int64") for name in symbolic}
        params = []
        for name, shape in self.shapes.items():
            sizes = list(shape)
            for dim, size in enumerate(("batch", "queries" if name == "query" else "keys")):
                sizes[dim] = variables.get(size, sizes[dim])
            params.append(relax.Var(name, relax.TensorType(sizes, self.dtype)))
        builder = relax.BlockBuilder()
        with builder.function("main", params):
            with builder.dataflow():
                call = relax.op.nn.attention(*params, causal_mask=self.causal)
                result = builder.emit_output(call)
            builder.emit_func_output(result)
        return builder.get()

    def arrays(self):
        rng = np.random.default_rng(0)
        dtype = getattr(ml_dtypes, self.dtype, self.dtype)
        arrays = {
            name: rng.standard_normal(shape).astype(dtype) for name, shape in self.shapes.items()
        }
        if self.bias is not None and not self.bias[2]:  # a mask, of whole tiles as well
            arrays["bias"][..., : self.keys * 3 // 4] = -np.inf
        return arrays

    def expected(self, query, key, value, bias=0.0):
        group = self.heads // self.key_heads
        key, value = (np.repeat(x, group, axis=2) for x in (key, value))
        scores = np.einsum("bshd,bthd->bhst", query, key) / self.depth**0.5 + bias
        if self.causal is not None:
            offset = abs(self.keys - self.queries) if self.causal == "BottomRight" else 0
            seen = np.tril(np.ones((self.queries, self.keys), bool), offset)
            scores = np.where(seen, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return np.einsum("bhst,bthd->bshd", weights / weights.sum(-1, keepdims=True), value)


def kernels_of(case, symbolic=()):
    """The source of the kernels of a case, for sm_90."""
    annotated = dx.annotate(case.program(symbolic), dx.Mesh(tp=1), {"query": (None,) * 4})
    source = source_of(dx.build(annotated, target={"kind": "cuda", "arch": "sm_90"}))
    assert source.count("namespace distir {") == 1
    return source


def launches(source):
    """The kernels that call the source, with their parameters, in the order of their names."""
    declared = r"void __launch_bounds__\(128\) (\w*attention\w*)\((.*?)\) \{"
    found = re.findall(declared, source)
    order = ("attention_kernel", "split_attention_kernel", "combine_attention_kernel")
    return [
        (name, [each.split() for each in parameters.split(", ")])
        for name, parameters in sorted(found, key=lambda each: order.index(each[0]))
    ]


def run_on_host(case, source, folder):
    """The result of a case, as its kernels compute it."""
    compiler = shutil.which("g++") or shutil.which("c++")
    headers = [root / "include" for each in _nvidia.package_roots() for root in each.glob("cu*")]
    if compiler is None or not headers:
        pytest.skip("there is no C++ compiler, or no headers of CUDA")
    arrays = case.arrays()
    dtype = arrays["query"].dtype
    shape = (case.batch, case.queries, case.heads)
    splits = [int(each) for each in re.findall(r"SplitAttention<.*?(\d+)>\(", source)] or [1]
    arrays |= {
        "out": np.full((*shape, case.value_depth), 7, dtype),
        "sums": np.full((splits[0], *shape, case.value_depth), 7, "float32"),
        "stats": np.full((splits[0], *shape, 2), 7, "float32"),
    }
    sizes = {"batch": case.batch, "queries": case.queries, "keys": case.keys}
    group = case.heads // case.key_heads
    calls = []
    for name, parameters in launches(source):
        blocks = int(np.prod(shape))
        if "combine" not in name:
            blocks = -(-case.queries * group // 64) * case.key_heads * case.batch * splits[0]
        passed = []
        for *kind, argument in parameters:
            argument = argument.removesuffix("_ptr")
            if argument in arrays:
                passed.append(f"({kind[0]})pointers[{list(arrays).index(argument)}]")
            elif argument in sizes:
                passed.append(str(sizes[argument]))
            else:  # what TVM has computed on the host: the rows of the result
                passed.append(str(int(np.prod(shape))))
        call = f"{name}({', '.join(passed)})"
        calls.append(f"RunOnHost({{{blocks}, 1, 1}}, {{{THREADS}, 1, 1}}, [=] {{ {call}; }});")
    shared = r"extern __shared__ __align__\(64\) uchar (\w+)\[\];"
    source = re.sub(shared, r"auto* \1 = buf_dyn_shmem_ptr;", source)
    text = f"""
        #include "block.h"
        #include "warp.h"
        {source}
        extern "C" void run(void** pointers) {{ {" ".join(calls)} }}
        """
    (folder / "kernel.cc").write_text(text)
    library = folder / "kernel.so"
    options = ["-std=c++17", "-O1", "-w", "-shared", "-fPIC", f"-I{HERE}", f"-isystem{headers[0]}"]
    subprocess.run([compiler, *options, str(folder / "kernel.cc"), "-o", str(library)], check=True)
    pointers = (ctypes.c_void_p * len(arrays))(*[each.ctypes.data for each in arrays.values()])
    ctypes.CDLL(str(library)).run(pointers)
    return arrays["out"]


def error_of(case, result):
    inputs = [each.astype("float64") for each in case.arrays().values()]
    expected = case.expected(*inputs)
    return np.linalg.norm(result.astype("float64") - expected) / np.linalg.norm(expected)


CASES = {
    "rows and keys that fill no tile": Case(causal="TopLeft"),
    "a decode step, whose keys are split": Case(
        dtype="bfloat16", queries=1, keys=700, heads=8, depth=64, value_depth=64, kernels=2
    ),
    "more queries than keys": Case(queries=130, keys=70, causal="BottomRight", key_heads=1),
    "a bias, and depths that are no multiple of 16": Case(
        depth=72, value_depth=40, bias=(True, True, True, True)
    ),
    "a mask of keys": Case(bias=(True, False, False, True), causal="BottomRight", queries=5),
    "deep heads": pytest.param(
        Case(dtype="bfloat16", depth=256, value_depth=136, bias=(False, True, True, True)),
        marks=pytest.mark.large,
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_attention_against_float64(tmp_path, case):
    """The error is that of rounding weights and results once."""
    source = kernels_of(case)
    assert len(launches(source)) == case.kernels
    assert error_of(case, run_on_host(case, source, tmp_path)) < 2 * ROUNDED[case.dtype]


def test_sequences_that_only_a_call_knows(tmp_path):
    """Parts of the keys have none, and are not added."""
    case = Case(queries=1, keys=70, heads=4, kernels=2, causal="BottomRight")
    source = kernels_of(case, symbolic=("batch", "keys"))
    assert "SplitAttention<half, 32, 32, 2, 2, 128, true, false, 16>" in source
    assert error_of(case, run_on_host(case, source, tmp_path)) < 2 * ROUNDED[case.dtype]


@pytest.mark.parametrize(
    "wait",
    ["__syncthreads();", "WaitForCopies();", "result[i][2 * half_of_rows] *= shrinks;"],
)
def test_a_kernel_that_lacks_a_line_is_noticed(tmp_path, wait):
    """The control."""
    case = Case(queries=20, keys=200)
    source = kernels_of(case)
    assert wait in source
    result = run_on_host(case, source.replace(wait, ""), tmp_path)
    assert not error_of(case, result) < 0.01


def test_calls_that_other_kernels_compute():
    """They have no kernel of this source: types, depths, GPUs."""
    others = [
        (Case(dtype="float32"), "sm_90"),
        (Case(depth=20), "sm_90"),
        (Case(depth=264), "sm_90"),
        (Case(), "sm_75"),
    ]
    for case, arch in others:
        annotated = dx.annotate(case.program(), dx.Mesh(tp=1), {"query": (None,) * 4})
        source = source_of(dx.build(annotated, target={"kind": "cuda", "arch": arch}))
        assert "distir::" not in source
