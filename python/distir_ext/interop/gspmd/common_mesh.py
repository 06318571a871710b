"""Finds one mesh for all HLO shardings of a program, whose first versions name no mesh."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from distir_ext.interop._arrangements import Arrangement, CommonMesh
from distir_ext.interop.gspmd.sharding import HloSharding, shown, tiles_in
from distir_ext.interop.gspmd.text import parse
from distir_ext.interop.gspmd.tiles import Tiles, factor_sizes
from distir_ext.interop.shardy.model import LogicalMesh
from distir_ext.mesh.mesh import Mesh
from distir_ext.text.errors.tracebacks import short_tracebacks


@short_tracebacks
def common_mesh(shardings: Iterable[HloSharding | str]) -> Mesh:
    """The mesh with the fewest axes that all of these shardings lie along.

    Its axes are called x, y, z, w. Its devices are in order if they can be. Named shardings that
    are all on one mesh have this one.

    Args:
        shardings: Or their texts. Tuples count by their elements; what is replicated, manual or
            unknown fits every mesh.

    Raises:
        ValueError: There is none: the message says which sharding does not fit those before it;
            or they have different devices, or none names any.

    Example:
        >>> common_mesh(["{devices=[8,1]<=[8]}", "{devices=[4,1,2]<=[2,4]T(1,0) "
        ...              "last_tile_dim_replicate}"])
        Mesh((2, 4), ('x', 'y'))
    """
    given = [parse(each) if isinstance(each, str) else each for each in shardings]
    leaves = [leaf for each in given for leaf in _leaves(each)]
    named = {each.named.mesh for each in leaves if each.named is not None}
    tiled = [each.canonical() for each in leaves if each.kind == "tiled"]
    if len(named) == 1 and not tiled:
        (mesh,) = named
        assert isinstance(mesh, LogicalMesh)
        return mesh.to_mesh()
    tiled += [each.canonical() for each in leaves if each.named is not None]
    tiled = [each for each in tiled if each.kind == "tiled"]
    if not tiled:
        raise ValueError("no sharding names the devices of a mesh")
    tiles = [tiles_in(each) for each in tiled]
    sizes = factor_sizes(tiles)
    if sizes is None:
        return _in_any_order(tiled, tiles)
    return Mesh(np.asarray(sorted(tiles[0].devices)).reshape(sizes))


def _in_any_order(shardings: Sequence[HloSharding], tiles: Sequence[Tiles]) -> Mesh:
    found = CommonMesh(tiles[0].devices)
    for sharding, each in zip(shardings, tiles, strict=True):
        replicas = each.dims[-1] if each.subgroups[-1:] == ("replicated",) else 1
        shards = each.dims[:-1] if replicas > 1 else each.dims
        rows = np.reshape(each.devices, (-1, replicas)).tolist()
        groups = tuple(tuple(row) for row in rows)
        try:
            found.add(Arrangement(shards, groups))
        except ValueError:
            raise ValueError(
                f"there is no mesh for all shardings: {shown(sharding)} cuts the devices otherwise "
                "than those before it"
            ) from None
    return found.mesh()


def _leaves(sharding: HloSharding) -> Iterable[HloSharding]:
    return sharding.elements if sharding.kind == "tuple" else (sharding,)
