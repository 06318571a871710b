"""Writes the pictures of docs/visualize.md: ``python docs/figures/make.py [folder]``."""

from __future__ import annotations

import sys
from pathlib import Path

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
    }


def main() -> None:
    """Writes all of them."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    for name, picture in shardings().items():
        picture.to_svg(folder / name)


if __name__ == "__main__":
    main()
