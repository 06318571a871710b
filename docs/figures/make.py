"""Writes the pictures of pages: ``python docs/figures/make.py [folder]``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import matplotlib
import tvm
from tvm.script import ir as I
from tvm.script import relax as R

import distir_ext as dx


def shardings() -> dict[str, dx.ShardingPicture]:
    """The pictures of shardings, by name of file."""
    mesh = dx.Mesh(dp=2, tp=4)
    return {
        "sharding_matrix.svg": dx.visualize((8, 256), mesh, ("dp", "tp")),
        "sharding_replicated.svg": dx.visualize((64, 256), mesh, (None, "tp")),
        "sharding_two_axes.svg": dx.visualize((16,), mesh, (("tp", "dp"),)),
        "sharding_uneven.svg": dx.visualize((5, 7), dx.Mesh(dp=2, tp=2), ("dp", "tp")),
        "sharding_grids.svg": dx.visualize(
            (4, 8, 64), dx.Mesh(pp=2, dp=2, tp=2), ("pp", "dp", "tp")
        ),
        "sharding_many.svg": dx.visualize(
            (4096, 16384), dx.Mesh(dp=64, tp=8), ("dp", "tp"), devices=[137, 300]
        ),
        "first_picture.svg": dx.visualize(annotated(), "up"),
    }


@I.ir_module
class Network:
    """The program of docs/analysis.md and docs/first_ten_lines.md."""

    @R.function
    def main(
        x: R.Tensor((4096, 8192), "float16"),
        up: R.Tensor((8192, 28672), "float16"),
        down: R.Tensor((28672, 8192), "float16"),
    ) -> R.Tensor((4096, 8192), "float16"):
        R.func_attr({"num_input": 1})
        with R.dataflow():
            hidden = R.nn.relu(R.matmul(x, up))
            y = R.add(x, R.matmul(hidden, down))
            R.output(y)
        return y


def annotated() -> tvm.IRModule:
    """The program with the plan of docs/analysis.md and docs/first_ten_lines.md."""
    plan = {"x": ("dp", None), "up": (None, "tp"), "down": ("tp", None)}
    return dx.annotate(Network, dx.Mesh(dp=2, tp=4), plan)


def plots() -> dict[str, Any]:
    """The figures of matplotlib, by name of file."""
    cluster = dx.Cluster.preset("H100")
    estimate = dx.analysis.estimate(annotated(), cluster)
    schedule = dx.stages.schedule("1f1b", stages=4, microbatches=8)
    return {
        **{
            f"estimate_{kind}.svg": estimate.plot(kind)
            for kind in ("roofline", "memory", "collectives")
        },
        "first_timeline.svg": dx.analysis.simulate(annotated(), cluster).plot(),
        "timeline.svg": dx.stages.simulate(schedule, [1e-3, 1.2e-3, 1e-3, 1.5e-3]).plot(),
    }


def write_plot(figure: Any, path: Path) -> None:
    """Writes a figure with its text as text, the same each time."""
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "distir_ext"}):
        figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Writes all of them."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    for name, picture in shardings().items():
        picture.to_svg(folder / name)
    for name, figure in plots().items():
        write_plot(figure, folder / name)


if __name__ == "__main__":
    main()
