"""Writes keys or values of new tokens into a cache in place: a torch operator and its kernel.

``write(cache, values, start)`` is the cache with ``values`` at the positions from ``start`` on. For
the exporter it is a function; in the module it is a kernel that writes where the cache lies, which
nothing else reads.
"""

from __future__ import annotations

from typing import Any

import torch
import tvm
from tvm.script import tirx as T  # noqa: N812 - as TVMScript has it

OPERATOR = "write_cache.default"
"""Name of the operator in an exported program."""


@torch.library.custom_op(
    "distir_ext::write_cache",
    mutates_args=(),
    schema="(Tensor cache, Tensor values, Tensor start) -> Tensor",
)
def write(cache: torch.Tensor, values: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    """The cache (batch, heads, slots, size) with new values (batch, heads, new, size)."""
    found = cache.clone()
    found[:, :, int(start) : int(start) + values.shape[2]] = values
    return found


@write.register_fake
def _(cache: torch.Tensor, values: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(cache)


def kernel(cache: Any, values: Any) -> tuple[str, tvm.tirx.PrimFunc]:
    """Returns the kernel that writes values into a cache, and a name that no other kernel has.

    Args:
        cache: Type of the cache, in Relax.
        values: Type of the values.
    """
    batch, heads, slots, size = (int(each) for each in cache.shape)
    new = int(values.shape[2])
    dtype = str(cache.dtype)

    @T.prim_func(private=True, s_tir=True)
    def write_cache(  # type: ignore[no-untyped-def]
        held: T.Buffer((batch, heads, slots, size), dtype),  # type: ignore[valid-type]
        values: T.Buffer((batch, heads, new, size), dtype),  # type: ignore[valid-type]
        start: T.Buffer((1,), "int64"),  # type: ignore[valid-type]
    ):
        T.func_attr({"tirx.noalias": True})
        for b, h, n, d in T.grid(batch, heads, new, size):
            with T.sblock("write"):
                vb, vh, vn, vd = T.axis.remap("SSSS", [b, h, n, d])
                held[vb, vh, start[0] + T.Cast("int64", vn), vd] = values[vb, vh, vn, vd]

    sizes = "_".join(map(str, (batch, heads, slots, size)))
    return f"write_{new}_of_{sizes}_{dtype}", write_cache
