"""Meshes and shardings of other frameworks, as stand-ins."""

from __future__ import annotations

import enum
import types

import numpy as np

import distir_ext as dx

MESH = dx.Mesh((2, 3), ("dp", "tp"))

IDS = np.arange(6).reshape(2, 3)


class PartitionSpec:
    """JAX's: iterable, not a tuple; may be shorter than the tensor has dimensions."""

    UNCONSTRAINED = enum.Enum("Marker", ["UNCONSTRAINED"]).UNCONSTRAINED

    def __init__(self, *partitions, unreduced=frozenset(), reduced=frozenset()):
        self._partitions, self.unreduced, self.reduced = partitions, unreduced, reduced

    def __iter__(self):
        return iter(self._partitions)


def jax_mesh(ids=IDS, names=("dp", "tp")):
    devices = np.empty(ids.shape, object)
    for index in np.ndindex(ids.shape):
        devices[index] = types.SimpleNamespace(id=int(ids[index]))
    return types.SimpleNamespace(axis_names=names, devices=devices, device_ids=ids)


def torch_mesh(ids=IDS, names=("dp", "tp")):
    return types.SimpleNamespace(mesh=ids, mesh_dim_names=names)
