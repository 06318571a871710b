"""Checks that programs build for this machine's GPU, and that their kernels load."""

from __future__ import annotations

import time
from collections.abc import Iterator

from distir_ext.compile.entry import build
from distir_ext.gpu_check.findings import Finding
from distir_ext.gpu_check.machine import Machine
from distir_ext.gpu_check.programs import LLAMA_8B, TINY, programs
from distir_ext.mesh.mesh import Mesh
from distir_ext.session.session import Session


def check_builds(machine: Machine) -> Iterator[Finding]:
    """A product, a layer of Llama 3 8B, a convolutional net: built and loaded."""
    mesh = Mesh((1,), ("tp",))
    layer = machine.pick(LLAMA_8B, TINY)
    for dtype in machine.pick(("float16", "bfloat16"), ("float16",)):
        mod = programs(dtype, mesh, layer, machine.pick(".*", "product|decode"))
        begin = time.monotonic()
        exe = build(mod, target=machine.target)
        built = time.monotonic()
        with machine.programs(), Session(mesh, ccl="nccl") as session:
            model = session.load(exe)
            loaded = time.monotonic()
        yield Finding(
            f"{', '.join(sorted(model))} in {dtype}",
            f"built in {built - begin:.1f} s, compiled and loaded in {loaded - built:.1f} s",
            "no error",
            True,
        )
