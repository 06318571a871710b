"""Plans for functions whose parameters are p0, p1, and so on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import distir_ext as dx

MESHES = {
    "2": dx.Mesh((2,), ("a",)),
    "4": dx.Mesh((4,), ("a",)),
    "2x2": dx.Mesh((2, 2), ("a", "b")),
    "3x2": dx.Mesh((3, 2), ("a", "b")),
}


def plans_of(shapes: Sequence[tuple[int, ...]], mesh: dx.Mesh) -> Iterator[dict[str, tuple]]:
    """Each mesh axis on each dimension of one parameter or on none, axes independently."""
    places = [None] + [(i, d) for i, shape in enumerate(shapes) for d in range(len(shape))]
    for choice in itertools.product(places, repeat=len(mesh.axis_names)):
        plan: dict[str, list[list[str]]] = {}
        sizes = {}
        for axis, size, place in zip(mesh.axis_names, mesh.shape, choice, strict=True):
            if place is None:
                continue
            i, d = place
            dims = plan.setdefault(f"p{i}", [[] for _ in shapes[i]])
            dims[d].append(axis)
            sizes[place] = sizes.get(place, 1) * size
        if plan and all(shapes[i][d] % n == 0 for (i, d), n in sizes.items()):
            yield {
                name: tuple(tuple(axes) if axes else None for axes in dims)
                for name, dims in plan.items()
            }
