"""Defines ``lower`` and ``build``: compile an annotated module for all workers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import tvm

from distir_ext.annotate.named_plans import searched_plan
from distir_ext.annotate.per_worker import workers_alike
from distir_ext.compile import build_cache
from distir_ext.compile.building import build_executable, check_target
from distir_ext.native import tvm_log
from distir_ext.native.modules import check_module
from distir_ext.native.steps import steps_until
from distir_ext.passes.dump import dumped
from distir_ext.pipelines import PassPipeline, load
from distir_ext.pipelines.lowering import run_pipeline
from distir_ext.pipelines.pipeline import package_pipeline
from distir_ext.reshards.check_reshards import apply_policy, check_policy
from distir_ext.text.errors.tracebacks import short_tracebacks

if TYPE_CHECKING:
    from distir_ext.mesh.cluster import Cluster


@short_tracebacks
def lower(
    mod: tvm.IRModule,
    cluster: Cluster | None = None,
    *,
    until: str = "lowered",
    pipeline: PassPipeline | str | os.PathLike[str] | None = None,
    reshards: str = "allow",
    reshards_above: float = 0,
    dump_dir: str | os.PathLike[str] | None = None,
) -> tvm.IRModule:
    """Runs what is still missing up to per-worker Relax, with ``R.ccl`` collectives.

    The passes are PropagateSharding, PadShards, DecomposeSharded, LegalizeRedistribute,
    OptimizeCollectives and LowerDistIR, in this order; :func:`distir_ext.phase` tells how far a
    module has come.

    Args:
        mod: A module in any phase: annotated, propagated, legalized or already lowered. One that
            OptimizeCollectives has been run on is not optimised again.
        cluster: The devices and links; the module's own, or NVLink, if left out.
        until: Where to stop: behind a phase, as ``"propagated"``, ``"legalized"``, ``"lowered"`` or
            ``"runtime"``, or behind a pass, as ``"PadShards"``.
        pipeline: Passes and their options, from :func:`distir_ext.pipelines.load`, or
            a configuration that it reads. By default those of this package.
        reshards: Treatment of redistributions that no annotation asks for, before the first
            pass: ``"allow"``, ``"warn"`` (one warning) or ``"error"``.
        reshards_above: Only about those for which a device sends more than so many bytes.
        dump_dir: A folder that gets the module before and after each pass, and ``index.html`` with
            the differences (:class:`distir_ext.DumpPasses`).

    Returns:
        The module after the last pass.

    Raises:
        ValueError: the module has no sharding annotations, a pass refuses it, or ``until`` is
            unknown; the configuration is wrong; ``reshards`` is ``"error"``, and there are such
            redistributions: the error has the most expensive ones, their causes, and what to state
            instead.
        TypeError: ``mod`` is no module.
        OSError: ``dump_dir`` cannot be written to.
    """
    check_module(mod)
    check_policy(reshards, reshards_above)
    steps_until(until)  # refuses what there is not
    chosen = _as_pipeline(pipeline)
    apply_policy(mod, cluster, reshards, reshards_above)
    with dumped(dump_dir):
        return run_pipeline(mod, cluster, chosen, until, {})


def _as_pipeline(pipeline: PassPipeline | str | os.PathLike[str] | None) -> PassPipeline:
    if pipeline is None:
        return package_pipeline()
    if isinstance(pipeline, str | os.PathLike):
        return load(pipeline)
    if not isinstance(pipeline, PassPipeline):
        raise TypeError(
            f"pipeline is a {type(pipeline).__name__}; it is what distir_ext.pipelines.load gives, "
            "or the file of a configuration"
        )
    return pipeline


@short_tracebacks
@tvm_log.captured()
def build(
    mod: tvm.IRModule,
    target: str | Mapping[str, Any] | tvm.target.Target = "llvm",
    cluster: Cluster | None = None,
    *,
    devices: int | None = None,
    per_worker: bool = False,
    blas: bool = True,
    pipeline: PassPipeline | str | os.PathLike[str] | None = None,
    reshards: str = "allow",
    reshards_above: float = 0,
    dump_dir: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Any:
    """Builds one executable that every worker loads, from a module in any phase.

    TVM's own warnings while it compiles go to the logger ``distir_ext.tvm``, those that say nothing
    of the program at level INFO: ``logging.basicConfig(level=logging.INFO)`` shows them.

    Programs for CPUs that were built before are read from the folder that the environment variable
    ``DISTIR_EXT_CACHE`` names, if it is set; the logger ``distir_ext.cache`` says at level INFO
    what is, and what is not.

    Args:
        mod: A module in any phase.
        target: Target of each worker: ``"llvm"``, ``"cuda"``, ``"nvidia/nvidia-h100"``,
            ``{"kind": "cuda", "arch": "sm_90"}``, or a Target. ``"llvm"`` alone means this
            machine's CPU with all its instructions; for another one state a target with ``mcpu``.
            No GPU is needed to build for one; the kernels are compiled where one is.
        cluster: The devices and links, as for :func:`lower`.
        devices: Number of devices for which shardings of the function ``main`` are searched, as by
            :func:`distir_ext.autoshard`; by default the module states them.
        per_worker: Whether functions are the programs of one worker, with collectives of ``R.ccl``,
            as MLC-LLM writes them; ``devices`` is the number of workers then. All of them are given
            the same arguments; :func:`distir_ext.per_worker` says which parts each has instead.
        blas: Whether products of matrices are left to a library: OpenBLAS on CPUs, cuBLASLt on
            NVIDIA's GPUs. Without it, and where it is not installed, TVM compiles them, for CPUs as
            loops, which are slow. A target with ``"libs": ["cublaslt"]`` uses cuBLASLt wherever it
            is built.
        pipeline: Passes that run before those of TVM, as for :func:`lower`.
        reshards: Treatment of redistributions that no annotation asks for, as for
            :func:`lower`.
        reshards_above: As for :func:`lower`.
        dump_dir: A folder that gets the module before and after each pass, as for :func:`lower`;
            those of TVM are among them.
        options: Passed on to ``tvm.compile``.

    Returns:
        The executable of ``tvm.compile``. ``Session.load`` loads it, and then its functions can be
        called; it tells its signature
        (parameters, placements, which function which device runs) through its function
        ``distir_signature``.

    Raises:
        ValueError: the module has no sharding annotations, a pass refuses it, or one that ran
            behind LowerDistIR has changed what programs take or return; TVM knows no such target;
            there are redistributions that ``reshards`` does not allow; the CUDA compiler that is
            installed does not know the target's architecture, or TVM is to make CUDA graphs; others
            may write to the folder of ``DISTIR_EXT_CACHE``.
        TypeError: ``mod`` is no module, or ``target`` no target.
    """
    check_module(mod)
    check_policy(reshards, reshards_above)
    check_target(target)
    chosen = _as_pipeline(pipeline)
    if per_worker:
        mod, devices = workers_alike(mod, devices), None
    if reshards != "allow":  # what it says of the module is said of a cached program, too
        mod = mod if devices is None else searched_plan(mod, None, cluster, devices=devices)
        devices = None
        apply_policy(mod, cluster, reshards, reshards_above)

    @tvm_log.captured()
    def make() -> Any:
        annotated = mod if devices is None else searched_plan(mod, None, cluster, devices=devices)
        return build_executable(
            annotated, target, cluster, blas=blas, pipeline=chosen, dump_dir=dump_dir, **options
        )

    return build_cache.built(
        make,
        mod,
        dump_dir,
        target=target,
        cluster=cluster,
        pipeline=chosen,
        options=options,
        stated={"blas": blas, "devices": devices},
    )
