"""Compile time and memory as one thing of a program grows, for ``compile_time.py --scale``."""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from models.scale_programs import SCALE_PROGRAMS, ScaleProgram
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import distir_ext as dx

PASSES = [
    "PropagateSharding",
    "PadShards",
    "DecomposeSharded",
    "LegalizeRedistribute",
    "OptimizeCollectives",
    "LowerDistIR",
    "LowerCCL",
]

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


@dataclass
class ScaleMeasurement:
    """One program of one size.

    Attributes:
        size: Its size.
        units: Divisor of its time.
        seconds: Processor time of each pass, the best of several.
        peak: Bytes of memory at the peak, above those before the first pass.
    """

    size: int
    units: int
    seconds: dict[str, float]
    peak: int

    @property
    def per_unit(self) -> float:
        """Microseconds of all passes per unit."""
        return sum(self.seconds.values()) / self.units * 1e6


def memory(field: str) -> int:
    """``VmRSS`` or ``VmHWM`` of this process, in bytes."""
    for line in _STATUS.read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(program: ScaleProgram, size: int, repeats: int) -> ScaleMeasurement:
    """Runs all passes on the program several times."""
    annotated = program.build(size)
    seconds: dict[str, float] = {}
    peak = 0
    for _ in range(repeats):
        gc.collect()
        _CLEAR.write_text("5")  # the high-water mark starts again
        before = memory("VmRSS")
        mod = annotated
        gc.disable()
        try:
            for name in PASSES:
                begin = time.thread_time()
                result = getattr(dx.transform, name)()(mod)
                taken = time.thread_time() - begin
                seconds[name] = min(taken, seconds.get(name, float("inf")))
                mod = result  # what was before is freed, not on the clock
        finally:
            gc.enable()
        peak = max(peak, memory("VmHWM") - before)
        del mod, result
    return ScaleMeasurement(size, program.units(size), seconds, peak)


def scale_table(program: ScaleProgram, measurements: Sequence[ScaleMeasurement]) -> Table:
    """One row per size, in milliseconds."""
    table = Table(
        program.unit, *PASSES, "all", "us per unit", "peak MB", title="ms", box=SIMPLE_HEAD
    )
    for column in table.columns:
        column.justify = "right"
    for each in measurements:
        table.add_row(
            f"{each.size:,}",
            *(f"{each.seconds[name] * 1e3:.1f}" for name in PASSES),
            f"{sum(each.seconds.values()) * 1e3:.1f}",
            f"{each.per_unit:.1f}",
            f"{each.peak / 2**20:.0f}",
        )
    return table


def run(console: Console, repeats: int, only: Sequence[str] = ()) -> None:
    """Prints a table for each program, or for those whose unit begins with one of ``only``."""
    for program in SCALE_PROGRAMS:
        if only and not program.unit.startswith(tuple(only)):
            continue
        measure(program, program.sizes[0], 1)  # the first use of a pass pays for what it looks up
        with console.status(f"{program.unit}: {', '.join(map(str, program.sizes))}"):
            rows = [measure(program, size, repeats) for size in program.sizes]
        console.print(scale_table(program, rows))
