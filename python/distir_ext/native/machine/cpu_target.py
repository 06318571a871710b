"""Makes targets for CPUs: the host's own instructions, and options for its workers."""

from __future__ import annotations

from typing import Any

import tvm
from tvm.target import codegen

# What the cores of a CPU share: a collective between its workers begins within microseconds and
# moves some 10 GB/s, so that laying tensors side by side pays up to as many bytes only, and work on
# replicas takes longer than a second collective from as many on.
_COMBINE_BYTES = 1 << 16
_SEQUENCE_BYTES = 1 << 18


def is_cpu(target: Any) -> bool:
    """Returns whether LLVM compiles a target's kernels for tensors in the host's memory."""
    if target is None:
        return False
    if target in ("cuda", "llvm"):  # without asking for the GPU
        return bool(target == "llvm")
    known = tvm.target.Target(target)
    on_host = known.get_target_device_type() == tvm.cpu().dlpack_device_type()
    return known.kind.name == "llvm" and bool(on_host)


def host_target() -> tvm.target.Target:
    """LLVM with the instructions of this machine's CPU, like a compiler's ``-march=native``."""
    return tvm.target.Target(
        {
            "kind": "llvm",
            "mtriple": codegen.llvm_get_system_triple(),
            "mcpu": codegen.llvm_get_system_cpu(),
        }
    )


def optimize_options() -> dict[str, Any]:
    """The options of OptimizeCollectives for workers that share a CPU."""
    return {
        "enable": "sequence_parallel",
        "combine_bytes": _COMBINE_BYTES,
        "sequence_bytes": _SEQUENCE_BYTES,
    }
