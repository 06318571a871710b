"""The passes: ordinary ``tvm.transform.Pass`` objects, to be called or put into a Sequential."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
import tvm_ffi

from distir_ext.annotate import AnnotateSharding
from distir_ext.cluster import SetCluster

__all__ = [
    "AnnotateSharding",
    "DispatchMatmul",
    "ExpandSharded",
    "LegalizeRedistribute",
    "LowerCCL",
    "LowerDistIR",
    "OptimizeCollectives",
    "PadShards",
    "PropagateSharding",
    "SetCluster",
]


def _native(name: str) -> tvm.transform.Pass:
    return tvm_ffi.get_global_func(f"distir.transform.{name}")()


def PropagateSharding() -> tvm.transform.Pass:  # noqa: N802 - TVM names passes so
    """From annotations to DTensor types, across function calls.

    Sources are ``R.dist.annotate_sharding`` and DTensor types that are there already. Every value
    of a function that takes part becomes a DTensor; callees are specialised per signature, and
    ``R.dist.redistribute`` stands where two sides disagree. What is annotated stays as annotated;
    functions that take no part stay as they are.

    Raises (when applied):
        ValueError: A stated sharding does not fit its tensor, or a local function is in the way.
    """
    return _native("PropagateSharding")


def PadShards() -> tvm.transform.Pass:  # noqa: N802
    """Static dimensions that do not divide into their shards are padded to the next size that does.

    Where a reduction would see the padding it is masked with the reduction's neutral element.
    The function attribute ``distir.true_extents`` keeps the sizes of parameters and results from
    before, so that a session takes and gives arrays of these. What cannot be
    padded (a reshape that splits the dimension, a kernel) has it whole. The same module comes back
    where everything divides.

    Raises (when applied):
        ValueError: An operator of a module written by hand cannot be padded along a dimension that
            is uneven in it; names the variable.
    """
    return _native("PadShards")


def ExpandSharded() -> tvm.transform.Pass:  # noqa: N802
    """Calls that are sharded along what they look along become operators on their shards.

    Softmax over a sharded axis, for one, becomes a maximum, a difference, exponentials, a sum and a
    quotient. ``docs/operators.md`` says which operators have such an algorithm (*special*).
    LegalizeRedistribute runs this pass first.
    """
    return _native("ExpandSharded")


def LegalizeRedistribute() -> tvm.transform.Pass:  # noqa: N802
    """Redistributions, and reductions that operators imply, become collectives on DTensors.

    Each becomes the fastest sequence of collectives that there is on the module's cluster
    (``SetCluster``); a symbolic dimension counts as 1024. Runs PadShards and ExpandSharded first,
    where they have something to do.
    """
    return _native("LegalizeRedistribute")


def OptimizeCollectives(  # noqa: N802
    *,
    enable: Sequence[str] = (),
    disable: Sequence[str] = (),
    combine_bytes: int = 1 << 20,
    prefetch_bytes: int = 64 << 20,
    ccl: str = "cpu",
) -> tvm.transform.Pass:
    """Fewer, smaller, earlier collectives between LegalizeRedistribute and LowerDistIR.

    What each optimisation does is in ``docs/optimizations.md``; what it did to a module,
    :func:`distir_ext.analysis.optimizations` tells. Sums may be added in another order.

    Args:
        enable: Names of optimisations to run that are off by default.
        disable: Names of optimisations to leave out.
        combine_bytes: Collectives are combined as long as their arguments together have at most
            this many bytes on each device.
        prefetch_bytes: Results of gathers that may wait for their first use, in bytes per device.
        ccl: The communication library of the session that will run the program; operators that
            only some libraries have are made where this one has them.

    Raises:
        ValueError: There is no optimisation of a name.
    """
    make = tvm_ffi.get_global_func("distir.transform.OptimizeCollectives")
    return make(list(enable), list(disable), combine_bytes, prefetch_bytes, ccl)


def LowerDistIR() -> tvm.transform.Pass:  # noqa: N802
    """From DTensors to per-worker programs on local tensors, with collectives over device groups.

    A function whose values lie on several device sets becomes one function per stage, named
    ``<name>_stage<i>``. Runs LegalizeRedistribute on functions where it has not been run.

    Raises (when applied):
        ValueError: A dimension does not divide into its shards; names function and tensor.
    """
    return _native("LowerDistIR")


def LowerCCL() -> tvm.transform.Pass:  # noqa: N802
    """Collectives on local tensors become destination-passing calls of the runtime."""
    return _native("LowerCCL")


def DispatchMatmul() -> tvm.transform.Pass:  # noqa: N802
    """Products of tensors in host memory become calls of the runtime, which uses OpenBLAS.

    ``R.matmul`` and ``R.einsum`` of two tensors of floats, of any rank, with symbolic sizes and
    broadcast batch dimensions. ``R.permute_dims`` around them becomes part of the call, so that
    transposed matrices are not copied. Very small products stay, since a loop fused with its
    neighbours is faster. ``dx.build`` runs this pass for CPU targets.
    """
    return _native("DispatchMatmul")
