"""The passes: ordinary ``tvm.transform.Pass`` objects, to be called or put into a Sequential."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi

from distir_ext.annotate.fused_weights import CutFusedWeights
from distir_ext.annotate.named_plans import searched_plan
from distir_ext.annotate.patterns import AnnotateSharding
from distir_ext.mesh.cluster_attr import SetCluster
from distir_ext.mesh.mesh import Mesh, as_mesh, is_mesh
from distir_ext.mesh.stage_meshes import stage_meshes
from distir_ext.native.steps import native_pass
from distir_ext.text.errors.tracebacks import short_tracebacks

__all__ = [
    "AnnotateSharding",
    "AppendInPlace",
    "AssignStages",
    "AutoShard",
    "CutFusedWeights",
    "DecomposeSharded",
    "DispatchConvolution",
    "DispatchMatmul",
    "LegalizeRedistribute",
    "LowerCCL",
    "LowerDistIR",
    "LowerGlobalViewToLocalView",
    "OptimizeCollectives",
    "OutlineRepeats",
    "PadShards",
    "PropagateSharding",
    "SetCluster",
    "ShareOperands",
    "ShareResults",
    "SplitFused",
    "WriteInPlace",
    "collective_optimizations",
]


OPERATIONS = 989e12
"""Operations per second of a device: bfloat16, dense (NVIDIA H100 SXM data sheet)."""

MEMORY_BANDWIDTH = 3.35e12
"""Bytes per second of a device's memory (the same)."""


@short_tracebacks
def AutoShard(  # noqa: N802
    mesh: Mesh, cluster: Any = None, **options: Any
) -> tvm.transform.Pass:
    """:func:`distir_ext.autoshard` as a pass, before PropagateSharding: it annotates.

    Args:
        mesh: The mesh.
        cluster: The devices, as a :class:`distir_ext.Cluster`; by default H100s.
        **options: Further arguments of ``autoshard``, as ``memory_limit``. Symbolic sizes that
            ``sizes`` does not state are taken to be 1,024.
    """

    def run(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        return searched_plan(mod, mesh, cluster, **options)

    return tvm.transform.module_pass(run, opt_level=0, name="AutoShard")


@short_tracebacks
def AssignStages(  # noqa: N802
    meshes: Mesh | Sequence[Mesh],
    axis: str | None = None,
    *,
    interleave: int = 1,
    func: str = "main",
    begins: Sequence[str] = (),
    slack: float = 0.05,
    operations: float = OPERATIONS,
    memory_bandwidth: float = MEMORY_BANDWIDTH,
) -> tvm.transform.Pass:
    """Cuts a function into contiguous stages, each on a mesh of its own, before PropagateSharding.

    The stages take equally long, as far as operators can be cut (a call of a function is one),
    and of such cuts the one with the least transfers between stages is taken. What a stage is
    given, weights and results of others, is annotated with its mesh. Annotations that are there
    already keep what they say of the other axes, on the mesh of the stage.
    A weight that several stages use is a parameter of each mesh, under the same name.
    Where a mesh has several stages with others between them, its devices get a program for each
    (the function attribute ``distir.interleaved``). ``docs/pipeline.md`` says what is estimated and
    how.

    Args:
        meshes: A mesh with an axis for stages, or a mesh per stage. These have axes of the same
            names; their sizes may differ.
        axis: The axis for stages, of one mesh.
        interleave: Number of stages per device: the stages' meshes repeat so often.
        func: The function; nothing may call it.
        begins: Names of the variables with which the stages after the first begin, in program
            order; by default the cut is searched.
        slack: By how much the slowest stage may be slower than it has to be, where that saves
            transfers; 0.05 is 5 %.
        operations: Additions and multiplications per second of a device.
        memory_bandwidth: Bytes per second that a device reads and writes.

    Raises:
        TypeError: ``meshes`` are none.
        ValueError: The mesh has no such axis; the stages' axes differ; a number is not positive.

    Raises (when applied):
        ValueError: There is no such function, or fewer operators than stages; ``begins`` are not
            one variable for each stage after the first, in order; an annotation lies
            on another mesh, or is sharded along the axis of the stages; a value that is no tensor
            (a KV cache) would have to move between stages; there are manual regions.
    """
    if isinstance(meshes, Mesh) or is_mesh(meshes):
        meshes = as_mesh(meshes, "the mesh of stages")
        if axis is None:
            raise ValueError("one mesh is cut into stages along an axis; state axis=")
        stages = stage_meshes(meshes, axis)
        whole, index, names = meshes.device_mesh, meshes.axis_names.index(axis), meshes.axis_names
    else:
        stages, whole, index, names = _checked_stages(meshes, axis), None, 0, ()
    if interleave < 1:
        raise ValueError(f"interleave is {interleave}; it must be at least 1")
    stages = tuple(stages) * interleave
    for name, value in (("operations", operations), ("memory_bandwidth", memory_bandwidth)):
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} is {value}; it must be positive")
    if not (math.isfinite(slack) and slack >= 0):
        raise ValueError(f"slack is {slack}; it must be at least 0")
    make = tvm_ffi.get_global_func("distir.transform.AssignStages")
    device_meshes = [mesh.device_mesh for mesh in stages]
    speed = float(operations), float(memory_bandwidth)
    if isinstance(begins, str) or not all(isinstance(name, str) for name in begins):
        raise TypeError(f"begins are names of variables, not {begins!r}")
    return make(
        func,
        device_meshes,
        stages[0].axis_names,
        whole,
        index,
        names,
        *speed,
        float(slack),
        list(begins),
    )


def _checked_stages(meshes: Sequence[Mesh], axis: str | None) -> tuple[Mesh, ...]:
    stages = tuple(as_mesh(mesh, f"mesh {i} of stages") for i, mesh in enumerate(meshes))
    if axis is not None:
        raise ValueError(f"axis={axis!r} is for one mesh that is cut, not for a mesh per stage")
    if not stages:
        raise ValueError("there are no stages")
    for index, mesh in enumerate(stages):
        if mesh.axis_names != stages[0].axis_names:
            raise ValueError(
                f"the mesh of stage {index} has axes {mesh.axis_names}, that of stage 0 "
                f"{stages[0].axis_names}; they must be the same"
            )
    return stages


@short_tracebacks
def OutlineRepeats(min_operators: int = 8) -> tvm.transform.Pass:  # noqa: N802
    """Operators that repeat themselves, as the layers of a model do, become calls of one function.

    Exporters write 80 layers one after the other. As calls of one function they are partitioned,
    compiled and estimated once, and what they compute is the same. Run it behind ``annotate``,
    which cuts weights that hold several, and before sharding is propagated. Layers are the same if
    their operators, attributes, types and small constants are, and nothing stands between them;
    weights, and constants that differ, become arguments. The function is private, called ``layer``,
    and its parameters are called as in the first layer without the layer's number:
    ``model.layers.q_proj.weight``.

    What crosses layers stays in the program that calls them: nothing of one layer is optimised
    together with the next, and memory that a call holds is not planned with that of its caller.

    Args:
        min_operators: The smallest number of bindings that become a function.

    Raises:
        ValueError: ``min_operators`` is less than 1.

    Example:
        >>> from distir_ext.demo.llama import llama_case
        >>> mod = OutlineRepeats()(llama_case().module)
        >>> sorted(name.name_hint for name in mod.get_global_vars())
        ['forward', 'layer']
    """
    if min_operators < 1:
        raise ValueError(f"min_operators is {min_operators}; it must be at least 1")
    make = tvm_ffi.get_global_func("distir.transform.OutlineRepeats")
    return make(min_operators)


@short_tracebacks
def SplitFused() -> tvm.transform.Pass:  # noqa: N802
    """Takes apart what TVM's passes have fused or combined, where that is in the way of shardings.

    - A kernel of a reduction and an epilogue, as FuseTIR makes of a product, its bias and a
      residual, becomes two kernels: with the contracted dimension sharded, the result of the first
      is reduced, where all operands of the whole kernel would be gathered.
    - Kernels that join or split tensors become R.concat and R.split again, and kernels of softmax,
      norms and lookups become these operators again.
    - Products that CombineParallelMatmul has made one, as operators or as kernels, become single
      products again.
    - Rows that are sorted, computed row by row and put back are computed in their own order.
    - The terms of a sum that were written one by one, for each slice of a sharded tensor, are
      computed together.

    PropagateSharding runs this pass first, where it makes a difference to shardings. Kernels that
    no collective separates are fused again when the program is compiled. A kernel with a stated
    rule (``distir.rule``) stays as it is, and so does a module in which nothing states a sharding.

    Example:
        >>> SplitFused().info.name
        'SplitFused'
    """
    return native_pass("SplitFused")


@short_tracebacks
def PropagateSharding() -> tvm.transform.Pass:  # noqa: N802 - TVM names passes so
    """From annotations to DTensor types, across function calls.

    Sources are ``R.dist.annotate_sharding`` and DTensor types that are there already. Every value
    of a function that takes part becomes a DTensor; callees are specialised per signature, and
    ``R.dist.redistribute`` stands where two sides disagree. What is annotated stays as annotated;
    functions that take no part stay as they are.

    Raises (when applied):
        ValueError: A stated sharding does not fit its tensor, or a local function is in the way.
    """
    return native_pass("PropagateSharding")


@short_tracebacks
def PadShards() -> tvm.transform.Pass:  # noqa: N802
    """Dimensions that do not divide into their shards are padded to the next size that does.

    Symbolic ones, too: ``n`` in 2 shards to ``(n + 1) // 2 * 2``; the function then takes the true
    sizes as a last parameter, a shape (attribute ``distir.takes_sizes``). Where a reduction would
    see the padding it is masked with the reduction's neutral element. Operators that work along
    such a dimension (softmax, a convolution) are decomposed first, as by DecomposeSharded. A
    dimension that a reshape splits or merges is padded in whole grains: columns of (heads * head
    size) are cut between heads. For an operator that cannot be padded (a sort along it) the
    dimension is replicated; a symbolic one that such an operator keeps sharded has to divide, and
    ``distir.dividing_sizes`` says because of which. The function attribute
    ``distir.true_extents`` keeps the sizes that parameters and results had before, so that a
    session takes and gives arrays of these sizes. The same module comes back where everything
    divides.

    Raises (when applied):
        ValueError: An operator of a module written by hand cannot be padded along a dimension that
            is uneven in it; names the variable.
    """
    return native_pass("PadShards")


@short_tracebacks
def DecomposeSharded() -> tvm.transform.Pass:  # noqa: N802
    """Operators that are sharded along the dimension that they work on are decomposed.

    Softmax over a sharded axis becomes a maximum, a difference, exponentials, a sum and a quotient,
    all of them on shards. ``docs/operators.md`` says which operators have a decomposition
    (*decomposed*). PadShards runs first, where it has not been run.
    """
    return native_pass("DecomposeSharded")


@short_tracebacks
def LegalizeRedistribute() -> tvm.transform.Pass:  # noqa: N802
    """Redistributions, and reductions that operators imply, become collectives on DTensors.

    Each becomes the fastest sequence of collectives that there is on the module's cluster
    (``SetCluster``); a symbolic dimension counts as 1024. PadShards and DecomposeSharded run first,
    where they have not been run.

    Raises (when applied):
        ValueError: The module has annotations that PropagateSharding has not read.
    """
    return native_pass("LegalizeRedistribute")


@short_tracebacks
def collective_optimizations() -> dict[str, bool]:
    """The optimisations of OptimizeCollectives in the order in which they run.

    Returns:
        By name, as ``enable`` and ``disable`` take it, whether an optimisation is on by default.
    """
    listed = tvm_ffi.get_global_func("distir.optimize.List")()
    return {str(name): bool(is_on) for name, is_on in listed}


@short_tracebacks
def OptimizeCollectives(  # noqa: N802
    *,
    enable: str | Sequence[str] = (),
    disable: str | Sequence[str] = (),
    combine_bytes: int = 1 << 20,
    sequence_bytes: int = 0,
    prefetch_bytes: int = 64 << 20,
    ccl: str = "cpu",
) -> tvm.transform.Pass:
    """Fewer, smaller, earlier collectives between LegalizeRedistribute and LowerDistIR.

    What each optimisation does is in ``docs/optimizations.md``; what it did to a module,
    :func:`distir_ext.analysis.optimizations` tells. Sums may be added in another order.

    Args:
        enable: Names of optimisations to run that are off by default, or one name
            (``collective_optimizations`` lists all).
        disable: Names of optimisations to leave out, or one name.
        combine_bytes: Collectives are combined as long as their arguments together have at most
            this many bytes on each device.
        sequence_bytes: ``sequence_parallel`` leaves all-reduces alone that send fewer bytes from
            each device.
        prefetch_bytes: Results of gathers that may wait for their first use, in bytes per device;
            as much again may be computed early, while collectives are under way.
        ccl: The communication library of the session that will run the program; operators that
            only some libraries have are made where this one has them.

    Raises:
        ValueError: There is no optimisation of a name.
    """
    make = tvm_ffi.get_global_func("distir.transform.OptimizeCollectives")
    names = [[each] if isinstance(each, str) else list(each) for each in (enable, disable)]
    return make(*names, combine_bytes, sequence_bytes, prefetch_bytes, ccl)


@short_tracebacks
def LowerGlobalViewToLocalView() -> tvm.transform.Pass:  # noqa: N802
    """TIR kernels on DTensors become kernels on the shards of each device.

    ``R.call_tir`` becomes ``R.dist.call_tir_local_view``, of which each device gives the kernel its
    shards; what the kernel leaves to be reduced is reduced behind it. The module stays
    DTensor-typed. LegalizeRedistribute, and what it needs, run first where they have not been run;
    LowerDistIR runs this pass where it has not been run.

    Raises (when applied):
        ValueError: The module has annotations that PropagateSharding has not read; a kernel cannot
            run on the shards that its call states; or a local view's kernel takes other shapes.
    """
    return native_pass("LowerGlobalViewToLocalView")


@short_tracebacks
def LowerDistIR() -> tvm.transform.Pass:  # noqa: N802
    """From DTensors to SPMD programs on local tensors, with collectives over device groups.

    A function whose values lie on several device sets becomes one function per stage, named
    ``<name>_stage<i>``. LegalizeRedistribute, what it needs, and LowerGlobalViewToLocalView run
    first where they have not been run.

    Raises (when applied):
        ValueError: A dimension does not divide into its shards; names function and tensor.
    """
    return native_pass("LowerDistIR")


@short_tracebacks
def LowerCCL() -> tvm.transform.Pass:  # noqa: N802
    """Collectives on local tensors become destination-passing calls of the runtime.

    Raises (when applied):
        ValueError: The module has DTensors, which LowerDistIR has not lowered.
    """
    return native_pass("LowerCCL")


@short_tracebacks
def DispatchMatmul() -> tvm.transform.Pass:  # noqa: N802
    """Products of tensors in host memory become calls of the runtime, which uses OpenBLAS.

    ``R.matmul`` and ``R.einsum`` of two tensors of floats, of any rank, with symbolic sizes and
    broadcast batch dimensions. ``R.permute_dims`` around them becomes part of the call, so that
    transposed matrices are not copied. Very small products stay, since a loop fused with its
    neighbours is faster. ``dx.build`` runs this pass for CPU targets.
    """
    return native_pass("DispatchMatmul")


@short_tracebacks
def DispatchConvolution() -> tvm.transform.Pass:  # noqa: N802
    """Convolutions of tensors in host memory become calls of the runtime, which uses OpenBLAS.

    ``R.nn.conv1d``, ``conv2d``, ``conv3d`` and their transposed forms of floats, in layouts without
    blocks, with groups and symbolic sizes; those of ``int8`` and ``uint8`` with a result of
    ``int32``, if they are not transposed. Very small ones stay. ``dx.build`` runs this pass for CPU
    targets.
    """
    return native_pass("DispatchConvolution")


@short_tracebacks
def AppendInPlace() -> tvm.transform.Pass:  # noqa: N802
    """Parameters that are returned with more behind them become calls of the runtime.

    ``R.concat((cache, new), axis)`` of a parameter, or of a field of one, whose result the function
    returns, as decoding does with its caches. The runtime leaves room behind what it returns. Where
    no dimension before ``axis`` is longer than 1, the next call writes there instead of copying the
    cache; what it was given stays as it is. ``dx.build`` runs this pass for CPU targets.
    """
    return native_pass("AppendInPlace")


@short_tracebacks
def ShareOperands() -> tvm.transform.Pass:  # noqa: N802
    """Operands of large collectives are made where other worker processes of the host see them.

    ``R.builtin.alloc_tensor`` becomes a call of ``distir.runtime.new_tensor``. Collectives between
    processes then read operands where they lie instead of sending them. Runs behind
    ``relax.transform.CallTIRRewrite``; ``dx.build`` runs this pass for CPU targets.
    """
    return native_pass("ShareOperands")


@short_tracebacks
def WriteInPlace() -> tvm.transform.Pass:  # noqa: N802
    """Results take the memory of what is not read any more.

    An elementwise kernel writes to an operand that the function has made and that it is the last to
    read. A result takes the memory of a parameter that is donated (:func:`distir_ext.donate`), if
    an elementwise kernel computes it from that, or if the parameter is not read any more. Runs
    behind ``relax.transform.CallTIRRewrite``; ``dx.build`` runs this pass for CPU targets.
    """
    return native_pass("WriteInPlace")


@short_tracebacks
def ShareResults() -> tvm.transform.Pass:  # noqa: N802
    """Workers that are threads have one copy of what they all get from a collective.

    Calls of ``distir.runtime.all_reduce`` and ``all_gather`` whose results are only read within
    their function, by kernels and destination-passing calls, become calls of
    ``distir.runtime.shared_all_reduce`` and ``shared_all_gather``, which return a tensor. Small
    results stay. Runs between ``relax.transform.RemovePurityChecking`` and ``CallTIRRewrite``;
    ``dx.build`` runs this pass for CPU targets.
    """
    return native_pass("ShareResults")
