"""The steps from annotations to SPMD programs, run on a module in any phase."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import tvm
from tvm import relax

from distir_ext.native.machine import cpu_target
from distir_ext.native.pass_context import uninstrumented
from distir_ext.native.steps import Step, phase, steps_until
from distir_ext.passes import transform
from distir_ext.passes.optimizations import is_optimized
from distir_ext.pipelines.package_passes import OPTIMIZE
from distir_ext.pipelines.pipeline import PassPipeline, package_pipeline

if TYPE_CHECKING:
    from distir_ext.mesh.cluster import Cluster


def lower_for(
    mod: tvm.IRModule,
    cluster: Cluster | None,
    target: tvm.target.Target,
    pipeline: PassPipeline | None = None,
) -> tvm.IRModule:
    """The per-worker programs that :func:`distir_ext.build` compiles for a target.

    Args:
        mod: A module in any phase.
        cluster: The devices and links, as for :func:`distir_ext.lower`.
        target: Target of each worker.
        pipeline: As for :func:`distir_ext.lower`.

    Raises:
        ValueError: as :func:`distir_ext.lower`.
    """
    options = cpu_target.optimize_options() if cpu_target.is_cpu(target) else {"ccl": "nccl"}
    return run_pipeline(mod, cluster, pipeline or package_pipeline(), "lowered", options)


def run_pipeline(
    mod: tvm.IRModule,
    cluster: Cluster | None,
    pipeline: PassPipeline,
    until: str,
    optimize_options: Mapping[str, Any],
) -> tvm.IRModule:
    """Runs the passes of a pipeline that the module still needs.

    Args:
        mod: A module in any phase.
        cluster: As for :func:`distir_ext.lower`.
        pipeline: The passes.
        until: A phase or a step.
        optimize_options: Of OptimizeCollectives, where the pipeline states none.

    Raises:
        ValueError: as :func:`distir_ext.lower`.
    """
    steps = steps_until(until)
    return run_steps(mod, cluster, steps, pipeline.optimize(optimize_options), pipeline, until)


def run_steps(
    mod: tvm.IRModule,
    cluster: Cluster | None,
    steps: list[Step],
    optimize: tvm.transform.Pass | None,
    pipeline: PassPipeline | None = None,
    until: str = "",
) -> tvm.IRModule:
    """Runs those of the steps that the module lacks.

    Args:
        mod: A module in any phase.
        cluster: As for :func:`distir_ext.lower`.
        steps: From the first step on.
        optimize: Passes that replace the step OptimizeCollectives.
        pipeline: Passes that run between the steps.
        until: The phase that the steps end at, if they end at one.

    Raises:
        ValueError: Nothing in the module is distributed, or a pass refuses it.
    """
    reached = phase(mod)
    if reached is None:
        names = ", ".join(
            f"`{gv.name_hint}`"
            for gv, function in mod.functions_items()
            if isinstance(function, relax.Function)
        )
        raise ValueError(
            f"the module has no sharding annotations (its functions are {names or 'none'}); mark "
            "some tensors with distir_ext.annotate, a ShardingMutator or "
            "R.dist.annotate_sharding first"
        )
    if reached in ("lowered", "runtime"):
        steps = [step for step in steps if step.needs == "lowered"]
    elif cluster is not None:
        mod = transform.SetCluster(cluster)(mod)
    if pipeline:
        pipeline.report_skipped(mod, reached)
    passes: list[tvm.transform.Pass] = []
    for step in steps:
        passes += pipeline.before(step.name, reached) if pipeline else []
        if step.name != OPTIMIZE:
            passes.append(step.alone())
        elif optimize is not None and not is_optimized(mod):
            passes.append(optimize)
    passes += pipeline.behind(until, reached) if pipeline else []
    return tvm.transform.Sequential(passes)(mod) if passes else mod


def run_apart(mod: tvm.IRModule, cluster: Cluster | None) -> tuple[tvm.IRModule, tvm.IRModule]:
    """The per-worker programs of a copy with every collective by itself: none are combined.

    Instruments of the current context do not see the passes.

    Args:
        mod: A module in any phase.
        cluster: As for :func:`distir_ext.lower`.

    Returns:
        The module after LowerDistIR, and before it; twice the same if it is lowered already.

    Raises:
        ValueError: as :func:`distir_ext.lower`.
    """
    optimize = transform.OptimizeCollectives(disable="combine_collectives")
    first = steps_until("OptimizeCollectives")
    with uninstrumented():
        optimized = run_steps(mod, cluster, first, optimize)
        return run_steps(optimized, None, steps_until("lowered")[len(first) :], optimize), optimized
