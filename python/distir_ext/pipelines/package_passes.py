"""Registers the passes of this package with pipelines, in the order in which they run.

The steps from annotations to programs are listed by the native library (src/phases/pipeline.cc);
what stands before them, and what is done for CPUs, is listed here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import tvm

from distir_ext.mesh.notation import meshes
from distir_ext.native.steps import native_pass, steps
from distir_ext.passes import transform
from distir_ext.pipelines.registry import RegisteredPass, add_package_pass, options_of_factory

OPTIMIZE = "OptimizeCollectives"
SOURCE = "distir_ext"

CPU_PASSES = (
    "DispatchMatmul",
    "DispatchConvolution",
    "AppendInPlace",
    "ShareResults",
    "ShareOperands",
    "WriteInPlace",
)
"""Passes that ``compile/cpu.py`` runs between passes of TVM."""


def assign_stages(
    axis: str,
    interleave: int = 1,
    func: str = "main",
    slack: float = 0.05,
    operations: float = transform.OPERATIONS,
    memory_bandwidth: float = transform.MEMORY_BANDWIDTH,
) -> tvm.transform.Pass:
    """AssignStages along an axis of the mesh that the module is annotated with."""

    def run(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        found = meshes(mod)
        if len(found) != 1:
            raise ValueError(
                f"AssignStages of a pipeline cuts one mesh, and the module has {len(found)}; run "
                "distir_ext.transform.AssignStages with the meshes instead"
            )
        return transform.AssignStages(
            found[0],
            axis,
            interleave=interleave,
            func=func,
            slack=slack,
            operations=operations,
            memory_bandwidth=memory_bandwidth,
        )(mod)

    return tvm.transform.module_pass(run, opt_level=0, name="AssignStages")


def _register() -> None:
    _add("OutlineRepeats", "annotated", transform.OutlineRepeats, is_enabled=False)
    _add("AssignStages", "annotated", assign_stages, is_enabled=False)
    reached = "annotated"
    for step in steps():
        if step.name == OPTIMIZE:
            _add(step.name, reached, transform.OptimizeCollectives)
        else:
            _add(step.name, reached, step.alone, is_required=True)
        reached = step.gives
    for name in CPU_PASSES:
        _add(name, reached, partial(native_pass, name), target="llvm")


def _add(
    name: str,
    phase: str,
    make: Callable[..., tvm.transform.Pass],
    **stated: Any,
) -> None:
    has_options = not isinstance(make, partial) and inspect.signature(make).parameters
    options = options_of_factory(name, make) if has_options else {}
    documented = getattr(transform, name, None) or _UNLISTED[name]
    text = documented if isinstance(documented, str) else inspect.getdoc(documented) or ""
    first = text.splitlines()[0]
    add_package_pass(RegisteredPass(name, phase, first, options, make, SOURCE, **stated))


# Steps that nobody runs by themselves.
_UNLISTED = {
    "DecomposeUneven": "Operators on shards of different sizes, where padding would change them.",
}

_register()
