"""Times ``dx.analysis.sweep`` on decoder layers with the shapes of Llama, for 64 devices.

Wall and processor time, of all processes, with the load of the machine::

    python benchmarks/sweep.py --model 70B --processes 2
    python benchmarks/sweep.py --model 8B --plans 6 --batch 32 --processes 2
"""

from __future__ import annotations

import argparse
import os
import resource
import time

import tvm
from models.llama_stack import LLAMA_70B, PLAN, StackConfig, build_stack

import distir_ext as dx

# Layers, and the sizes of a layer (arXiv:2307.09288, table 1; arXiv:2407.21783, table 3).
MODELS = {
    "70B": (80, LLAMA_70B),
    "8B": (32, StackConfig(hidden=4096, heads=32, kv_heads=8, feed_forward=14336)),
}
DATA = {"x": ("dp", None, None)}
PLANS = {
    "tensor": {**DATA, **PLAN},
    "feed forward": {
        **DATA,
        r".*\.(gate|up)_proj": ("tp", None),
        r".*\.down_proj": (None, "tp"),
    },
    "attention": {**DATA, r".*\.(q|k|v)_proj": ("tp", None), r".*\.o_proj": (None, "tp")},
    "weights over dp": {**DATA, r".*_proj": ("dp", None)},
    "sequence": {"x": ("dp", "tp", None)},
    "replicated weights": DATA,
}


def model(name: str, layers: int | None = None) -> tvm.IRModule:
    """A stack whose batch is the symbolic size ``n``, of all its layers or of some."""
    all_layers, config = MODELS[name]
    sizes = {**vars(config), "batch": tvm.tirx.Var("n", "int64")}
    mod = build_stack(layers or all_layers, StackConfig(**sizes))
    mod["main"] = mod["main"].with_attr("num_input", 5)
    return mod


def processor_time() -> float:
    """Seconds, of this process and of those that it has waited for."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def main() -> None:
    """Prints the sweep, and its time."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--model", choices=MODELS, default="70B")
    parser.add_argument("--devices", type=int, default=64)
    parser.add_argument("--plans", type=int, default=1, help="how many of the plans")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    mod = model(options.model)
    cluster = dx.Cluster.preset("H100", hosts=max(options.devices // 8, 1))
    begin, processor = time.perf_counter(), processor_time()
    found = dx.analysis.sweep(
        mod,
        dx.analysis.factorizations(options.devices, ("dp", "tp", "pp")),
        dict(list(PLANS.items())[: options.plans]),
        cluster,
        stages="pp",
        microbatches=[1 << i for i in range(options.batch.bit_length())],
        batch="n",
        sizes={"n": options.batch},
        processes=options.processes,
    )
    wall, processor = time.perf_counter() - begin, processor_time() - processor
    print(found)
    errors = sum(row.error is not None for row in found.configurations)
    print(
        f"{len(found)} configurations, {errors} of them errors: {wall:.1f} s, processor time "
        f"{processor:.1f} s, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )


if __name__ == "__main__":
    main()
