"""The executable that all workers load."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import tvm

from distir_ext import _nvidia, transform
from distir_ext._compile import cpu, gpu
from distir_ext._compile.memory_plan import in_dataflow, memory_plan_context
from distir_ext._compile.not_a_number import tir_pipeline
from distir_ext._compile.program_check import check_programs
from distir_ext._compile.text_function import with_text_function
from distir_ext._signature.signature import parse_signature
from distir_ext._signature.signature_attr import signature_for_executable
from distir_ext.communication.collectives import collectives, to_data
from distir_ext.dump import dumped
from distir_ext.lowering import lower_for
from distir_ext.pipelines.pipeline import PassPipeline, package_pipeline

if TYPE_CHECKING:
    from distir_ext.cluster import Cluster

_PARTITIONS_ATTR = "distir.partitions"
_SIGNATURE_FUNCTION = "distir_signature"


def build_executable(
    mod: tvm.IRModule,
    target: str | Mapping[str, Any] | tvm.target.Target = "llvm",
    cluster: Cluster | None = None,
    *,
    blas: bool = True,
    pipeline: PassPipeline | None = None,
    dump_dir: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Any:
    """Lowers and compiles a module, whatever it redistributes; :func:`distir_ext.build` says how.

    Raises:
        ValueError: as :func:`distir_ext.build`.
    """
    target = _nvidia.resolve_target(target)
    chosen = pipeline or package_pipeline()
    if cpu.is_cpu(target):
        resolved = cpu.host_target() if target == "llvm" else tvm.target.Target(target)
        tail = cpu.pipeline(resolved, blas, without=chosen.disabled_for_cpus())
    else:
        gpu.check_options()
        resolved = tvm.target.Target(target)
        tail = gpu.pipeline(resolved)
    options.setdefault("relax_pipeline", tail)
    options.setdefault("tir_pipeline", tir_pipeline())
    with dumped(dump_dir):
        program = lower_for(mod, cluster, resolved, chosen)
        lowered = transform.LowerCCL()(program)
        for each in chosen.behind("runtime", "runtime"):
            lowered = each(lowered)
        described = signature_for_executable(lowered)
        check_programs(lowered, parse_signature(json.dumps(described)))
        if not cpu.is_cpu(target):
            gpu.check_calls(lowered)
        sent = collectives(program)
        described |= {
            "collectives": to_data(sent),
            "device_type": resolved.get_target_device_type(),
            "partitions": json.loads(str(lowered.attrs.get(_PARTITIONS_ATTR, "[]"))),
        }
        signature = json.dumps(described, separators=(",", ":"))
        workers = with_text_function(in_dataflow(lowered), _SIGNATURE_FUNCTION, signature)
        with memory_plan_context(workers):
            executable = tvm.compile(workers, target=resolved, **options)
    executable.distir_signature = signature  # for who cannot run it
    return executable
