"""Times ``dx.analysis.simulate`` on a pipeline of decoder layers with the shapes of Llama-70B.

Processor time of this process, best of several; the load of the machine stands behind it::

    python benchmarks/simulate.py --mesh 8 8 8 --layers 80 --microbatches 32
"""

from __future__ import annotations

import argparse
import os

from models.llama_stack import PLAN, build_stack
from processor_time import seconds
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import distir_ext as dx
from distir_ext.analysis.programs.planned import planned_programs


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--mesh", type=int, nargs=3, default=[8, 8, 8], help="pp, dp, tp")
    parser.add_argument("--layers", type=int, nargs="+", default=[16, 80])
    parser.add_argument("--microbatches", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    mesh = dx.Mesh(options.mesh, ("pp", "dp", "tp"))
    devices = len(mesh.device_ids)
    cluster = dx.Cluster.preset("H100", hosts=max(devices // 8, 1))
    table = Table(
        *("devices", "layers", "microbatches", "events", "lower, s", "plan, s"),
        *("simulate, s", "critical operators, s", "whole, s"),
        box=SIMPLE_HEAD,
    )
    for layers in options.layers:
        mod = build_stack(layers)
        mod["main"] = mod["main"].with_attr("num_input", 1)
        plan = {**PLAN, "x": (None, "dp", None)}
        mod = dx.transform.AssignStages(mesh, "pp")(dx.annotate(mod, mesh, plan))
        lowered = dx.lower(mod, cluster)
        lower = seconds(lambda mod=mod: dx.lower(mod, cluster), options.repeats)
        planned = seconds(lambda mod=lowered: planned_programs(mod, cluster), options.repeats)
        for microbatches in options.microbatches:

            def simulate(mod=lowered, microbatches=microbatches):
                return dx.analysis.simulate(mod, cluster, microbatches=microbatches)

            timeline = simulate()
            rest = seconds(simulate, options.repeats) - planned
            critical = seconds(lambda timeline=timeline: timeline.critical_operators, 1)
            figures = (lower, planned, rest, critical, lower + planned + rest)
            counts = (devices, layers, microbatches, len(timeline.events))
            table.add_row(*(f"{each:,}" for each in counts), *(f"{each:.2f}" for each in figures))
    Console(width=120).print(table)
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
