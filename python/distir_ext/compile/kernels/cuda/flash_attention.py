"""Attention on NVIDIA GPUs by one kernel, which keeps scores in registers and uses tensor cores.

TVM makes ``R.nn.attention`` five kernels, with all scores in global memory. The kernel here is
CUDA C++ (``cuda/flash_attention.cuh``). TVM compiles its source together with that of its own
kernels, by NVRTC or nvcc: a TIR kernel has the grid and calls a function of that source, and
:func:`install` puts the source in front of a module that does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T  # noqa: N812

from distir_ext.compile.kernels.expressions import static_sizes

__all__ = ["install", "legalizations", "takes"]

Legalization = Callable[[relax.BlockBuilder, relax.Call], Any]

_SOURCE = "flash_attention.cuh"
_POSTPROCESS = "tvm_callback_cuda_postproc"
_FUNCTIONS = re.compile(r"\bdistir::\w*Attention<")

_NAMES = {"float16": "half", "bfloat16": "__nv_bfloat16"}
_BYTES = 2
_OLDEST = 80  # sm_80 has the copies and products of the kernel
_CHUNK = 8  # numbers that are copied at once
_MOST_DEPTH = 256
_THREADS = 128
_ROWS = 64  # of a block

# A decode step has fewer rows than a GPU has multiprocessors: its keys are split among blocks.
_WANTED_BLOCKS = 264  # two for each multiprocessor of an H100
_MOST_SPLITS = 16
_LEAST_KEYS = 256  # of a part


def install() -> None:
    """Puts the source in front of the CUDA source of modules that call it, for all of TVM."""
    before = tvm_ffi.get_global_func(_POSTPROCESS, allow_missing=True)

    def with_attention(code: Any, target: Any) -> Any:
        code = code if before is None else before(code, target)
        if not _FUNCTIONS.search(str(code)):
            return code
        source = (resources.files(__package__) / _SOURCE).read_text("utf-8")
        return f"{source}\n{code}"

    tvm_ffi.register_global_func(_POSTPROCESS, with_attention, override=True)


def takes(target: tvm.target.Target) -> Callable[[relax.Call], bool]:
    """The calls of attention that have this kernel on a target.

    Attention of float32, of a depth that is no multiple of 8 or above 256, with heads that are not
    known or a scale that is not positive has none, nor has any on older or other GPUs.
    """
    has_kernels = _has_kernels(target)
    return lambda call: has_kernels and _Kernel.of(call) is not None


def _has_kernels(target: tvm.target.Target) -> bool:
    arch = re.match(r"sm_(\d+)", str(target.attrs.get("arch", "")))
    return target.kind.name == "cuda" and arch is not None and int(arch[1]) >= _OLDEST


def legalizations(
    target: tvm.target.Target,
) -> Callable[[Mapping[str, Legalization]], dict[str, Legalization]]:
    """The legalisations of attention for a target, in front of others."""
    if not _has_kernels(target):
        return dict

    def add(others: Mapping[str, Legalization]) -> dict[str, Legalization]:
        names = ("relax.nn.attention", "relax.nn.attention_bias")
        return {**others, **{name: _legalize(others[name]) for name in names}}

    return add


def _legalize(default: Legalization) -> Legalization:
    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> Any:
        kernel = _Kernel.of(call)
        return default(builder, call) if kernel is None else kernel.emit(builder)

    return legalize


class _Kernel:
    """The kernel of a call: query [b s h d], key [b t k d], value [b t k e], result [b s h e]."""

    def __init__(self, call: relax.Call, heads: int, group: int, depths: tuple[int, int]) -> None:
        self._call = call
        self._dtype = str(call.args[0].ty.dtype)
        self._heads, self._group = heads, group
        self._depth, self._value_depth = depths
        self._batch, self._queries, *_ = static_sizes(call.args[0])
        self._keys = static_sizes(call.args[1])[1]
        self._bias = call.args[3] if len(call.args) > 3 else None

    @classmethod
    def of(cls, call: relax.Call) -> _Kernel | None:
        """Returns the kernel of a call; None if there is none."""
        query, key, value, *bias = (static_sizes(each) for each in call.args)
        if {len(query), len(key), len(value), *map(len, bias)} != {4}:
            return None
        known = [query[2], key[2], query[3], value[3]]
        if min(known) <= 0 or key[2] != value[2] or query[2] % key[2]:
            return None
        dtypes = {str(each.ty.dtype) for each in call.args}
        if len(dtypes) > 1 or dtypes.pop() not in _NAMES or call.attrs.window_size is not None:
            return None
        if any(each % _CHUNK or each > _MOST_DEPTH for each in known[2:]):
            return None
        if call.attrs.scale is not None and float(call.attrs.scale) <= 0:
            return None
        return cls(call, key[2], query[2] // key[2], (query[3], value[3]))

    def emit(self, builder: relax.BlockBuilder) -> relax.Expr:
        """Returns the call of the kernel, or of the two kernels that split the keys."""
        splits = self._splits()
        operands = [*self._call.args[:3]] + ([] if self._bias is None else [self._bias])
        query = self._call.args[0].ty.shape.values
        rows = [query[0], query[1], query[2]]
        result = relax.TensorType([*rows, self._value_depth], self._dtype)
        if splits == 1:
            kernel = builder.add_func(self._attention(1), "attention")
            return relax.call_tir(kernel, operands, result)
        kernel = builder.add_func(self._attention(splits), "split_attention")
        parts = [splits, *rows]
        found = builder.emit(
            relax.call_tir(
                kernel,
                operands,
                [
                    relax.TensorType([*parts, self._value_depth], "float32"),
                    relax.TensorType([*parts, 2], "float32"),
                ],
            )
        )
        combine = builder.add_func(self._combine(splits), "combine_attention")
        return relax.call_tir(combine, [builder.emit(found[0]), builder.emit(found[1])], result)

    @property
    def _tile(self) -> int:
        """Keys of a tile: fewer where a key needs more registers and shared memory."""
        return 128 if max(self._depth, self._value_depth) <= 128 else 64

    def _splits(self) -> int:
        if not 0 < self._queries * self._group <= _ROWS:
            return 1
        splits = min(_WANTED_BLOCKS // (max(self._batch, 1) * self._heads), _MOST_SPLITS)
        if self._keys > 0:
            splits = min(splits, -(-self._keys // _LEAST_KEYS))
        return max(splits, 1)

    def _name(self, function: str, *arguments: Any) -> str:
        words = [str(each).lower() for each in arguments]
        return f"distir::{function}<{_NAMES[self._dtype]}, {', '.join(words)}>"

    def _shared_bytes(self) -> int:
        pitches = [-(-depth // 64) * 64 for depth in (self._depth, self._value_depth)]
        return _BYTES * ((_ROWS + self._tile) * pitches[0] + self._tile * pitches[1])

    def _attention(self, splits: int) -> tirx.PrimFunc:
        causal = self._call.attrs.causal_mask
        has_bias = self._bias is not None
        options = [self._depth, self._value_depth, self._heads, self._group, self._tile]
        options += [bool(causal), has_bias]
        if splits == 1:
            name = self._name("Attention", *options)
        else:
            name = self._name("SplitAttention", *options, splits)
        given = self._call.attrs.scale
        scale = 1 / math.sqrt(self._depth) if given is None else float(given)
        bias = [1] * 4 if self._bias is None else self._bias.ty.shape.values
        is_one = [isinstance(each, tirx.IntImm | int) and int(each) == 1 for each in bias]

        batch, queries, keys = (tirx.Var(name, "int64") for name in ("batch", "queries", "keys"))
        query_heads = self._heads * self._group
        shapes = {
            "query": [batch, queries, query_heads, self._depth],
            "key": [batch, keys, self._heads, self._depth],
            "value": [batch, keys, self._heads, self._value_depth],
        }
        strides: list[Any] = [0] * 4
        if has_bias:
            full = [batch, tirx.const(query_heads, "int64"), queries, keys]
            shape = [1 if one else size for one, size in zip(is_one, full, strict=True)]
            shapes["bias"] = shape
            step: Any = 1
            for dim in (3, 2, 1, 0):
                strides[dim] = 0 if is_one[dim] else step
                step = step * shape[dim]
        outs = {"out": ([batch, queries, query_heads, self._value_depth], self._dtype)}
        if splits > 1:
            part = [splits, batch, queries, query_heads]
            outs = {
                "sums": ([*part, self._value_depth], "float32"),
                "stats": ([*part, 2], "float32"),
            }
        buffers = [
            tirx.decl_buffer(shape, self._dtype, name=name) for name, shape in shapes.items()
        ] + [tirx.decl_buffer(shape, dtype, name=name) for name, (shape, dtype) in outs.items()]
        offset: Any = tirx.const(0, "int64")
        if causal == "BottomRight":
            offset = tirx.abs(keys - queries)  # as TVM has it
        blocks = tirx.ceildiv(queries * self._group, _ROWS) * self._heads * splits * batch
        pointers = [each.data for each in buffers]
        if not has_bias:
            pointers.insert(3, pointers[0])  # which is not read
        arguments = [batch, queries, keys, *(tirx.convert(each) for each in strides)]
        arguments += [tirx.const(scale, "float32"), offset]
        return _kernel(buffers, blocks, self._shared_bytes(), name, pointers, arguments)

    def _combine(self, splits: int) -> tirx.PrimFunc:
        batch, queries = (tirx.Var(name, "int64") for name in ("batch", "queries"))
        heads = self._heads * self._group
        part = [splits, batch, queries, heads]
        buffers = [
            tirx.decl_buffer([*part, self._value_depth], "float32", name="sums"),
            tirx.decl_buffer([*part, 2], "float32", name="stats"),
            tirx.decl_buffer([*part[1:], self._value_depth], self._dtype, name="out"),
        ]
        rows = batch * queries * heads
        name = self._name("CombineAttention", self._value_depth, splits)
        return _kernel(buffers, rows, 0, name, [each.data for each in buffers], [rows])


def _kernel(
    buffers: list[tirx.Buffer],
    blocks: tirx.Expr,
    shared_bytes: int,
    function: str,
    pointers: list[tirx.Var],
    arguments: list[tirx.Expr],
) -> tirx.PrimFunc:
    """Returns a kernel whose threads call one function of the source."""
    with IRBuilder() as builder, T.prim_func(is_private=True, s_tir=True):
        T.func_attr({"tirx.is_scheduled": True, "tirx.noalias": True})
        for buffer in buffers:
            T.arg(buffer.name, buffer)
        with (
            T.thread_binding(0, blocks, thread="blockIdx.x"),
            T.thread_binding(0, _THREADS, thread="threadIdx.x"),
            T.sblock("attention"),
        ):
            T.reads()
            T.writes()
            if shared_bytes:
                shared = T.sblock_alloc_buffer((shared_bytes,), "uint8", scope="shared.dyn")
                pointers = [*pointers, shared.data]
            T.evaluate(T.call_extern("void", function, *pointers, *arguments))
    return builder.get()
