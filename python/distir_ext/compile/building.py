"""Compiles an annotated module to the executable that every worker of a session loads.

``distir_ext.build`` calls it: it runs the pipeline of passes, then ``tvm.compile``, and stores the
signature in the executable.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import tvm
from tvm import relax

from distir_ext.communication.collectives import collectives, to_data
from distir_ext.compile import cpu, gpu, gpu_products
from distir_ext.compile.kernel_values import tir_pipeline
from distir_ext.compile.memory_plan import in_dataflow, memory_plan_context
from distir_ext.compile.program_check import check_programs
from distir_ext.native.machine import cpu_target
from distir_ext.native.machine import nvidia as _nvidia
from distir_ext.native.text_function import with_text_function
from distir_ext.passes import transform
from distir_ext.passes.dump import dumped
from distir_ext.pipelines.lowering import lower_for
from distir_ext.pipelines.pipeline import PassPipeline, package_pipeline
from distir_ext.signature.signature import parse_signature
from distir_ext.signature.signature_attr import signature_for_executable
from distir_ext.text.errors.spelling import did_you_mean

if TYPE_CHECKING:
    from distir_ext.mesh.cluster import Cluster

_PARTITIONS_ATTR = "distir.partitions"
_SIGNATURE_FUNCTION = "distir_signature"


def check_target(target: Any) -> None:
    """Raises an error for a target that TVM does not know.

    Raises:
        ValueError: Names the target, and the kind that it may have been meant to be; or the
            architecture of a GPU that the compiler does not know.
        TypeError: It is no target.
    """
    if isinstance(target, tvm.target.Target) or target == "cuda":
        return
    if not isinstance(target, str | Mapping):
        raise TypeError(f"target is a {type(target).__name__}, not a name, a mapping or a Target")
    if isinstance(target, Mapping):
        _nvidia.resolve_target(target)  # refuses architectures that the compiler does not know
    try:
        tvm.target.Target(target if isinstance(target, str) else dict(target))
    except Exception as error:
        kind = target if isinstance(target, str) else str(target.get("kind", ""))
        kinds = [str(each) for each in tvm.target.Target.list_kinds()]
        near = "" if kind in kinds else did_you_mean(kind, kinds)
        raise ValueError(f"TVM knows no target {target!r}{near}: {error}") from error


class PartitionedExecutable(relax.VMExecutable):
    """An executable whose functions are the programs of workers, which a session runs."""

    def __getitem__(self, name: str) -> Any:
        """Raises TypeError: a session loads it first."""
        raise TypeError(_on_workers(f"function {name!r} of this executable runs", f"[{name!r}]"))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raises TypeError: a session loads it first."""
        raise TypeError(_on_workers("this executable runs", ""))


def _on_workers(what: str, call: str) -> str:
    return (
        f"{what} on workers: load it first, as in `with dx.Session(mesh) as session: model = "
        f"session.load(executable)`, and call model{call}(..)"
    )


def _check_names(mod: tvm.IRModule) -> None:
    """Refuses names that an executable holds up to their first NUL, so that two could be one."""
    for gv in mod.get_global_vars():
        if "\0" in gv.name_hint:
            raise ValueError(
                f"the name of the function {gv.name_hint!r} has a character NUL, which names in "
                "an executable cannot have"
            )


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
    _check_names(mod)
    target = _nvidia.resolve_target(target)
    chosen = pipeline or package_pipeline()
    if cpu_target.is_cpu(target):
        resolved = cpu_target.host_target() if target == "llvm" else tvm.target.Target(target)
        tail = cpu.pipeline(resolved, blas, without=chosen.disabled_for_cpus())
    else:
        gpu.check_options()
        resolved = tvm.target.Target(target)
        tail = gpu.pipeline(resolved, blas)
    options.setdefault("relax_pipeline", tail)
    options.setdefault("tir_pipeline", tir_pipeline(for_cpu=cpu_target.is_cpu(target)))
    with dumped(dump_dir):
        program = lower_for(mod, cluster, resolved, chosen)
        lowered = transform.LowerCCL()(program)
        for each in chosen.behind("runtime", "runtime"):
            lowered = each(lowered)
        described = signature_for_executable(lowered)
        check_programs(lowered, parse_signature(json.dumps(described)))
        if not cpu_target.is_cpu(target):
            gpu.check_calls(lowered)
        sent = collectives(program)
        described |= {
            "collectives": to_data(sent),
            "device_type": resolved.get_target_device_type(),
            "partitions": json.loads(str(lowered.attrs.get(_PARTITIONS_ATTR, "[]"))),
        }
        signature = json.dumps(described, separators=(",", ":"))
        workers = with_text_function(in_dataflow(lowered), _SIGNATURE_FUNCTION, signature)
        if not cpu_target.is_cpu(target) and gpu_products.uses_cublaslt(resolved, blas):
            workers = with_text_function(workers, *gpu_products.LIBRARIES_FUNCTION)
        with memory_plan_context(workers):
            executable = tvm.compile(workers, target=resolved, **options)
    executable.__class__ = PartitionedExecutable
    executable.distir_signature = signature  # for who cannot run it
    return executable
