"""Describes to a worker the arrays on disk from which it reads its own parts.

Example: rows of a (8, 4) array on two devices. Both are sent the same, of which device 1 makes the
box of 4 x 4 elements that begins at row 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from distir_ext.mesh.blocks import DeviceRuns, Layout
from distir_ext.params.host_array import check_counts, check_shape
from distir_ext.params.stored_array import Stored, StoredBox, from_plain, to_plain
from distir_ext.text.files.json_file import require


@dataclass(frozen=True)
class StoredPart:
    """Whichever part of an array on disk is that of the device that reads it.

    Attributes:
        array: The array.
        layout: Its blocks on a mesh.
        extent: The shape of every part.
    """

    array: Stored
    layout: Layout
    extent: tuple[int, ...]

    def box(self, device: int) -> StoredBox:
        """The box of a device.

        Raises:
            ValueError: the device is not in the mesh.
        """
        blocks = self.layout.blocks.of_device
        require(device in blocks, f"device {device} has no part of {self.array}")
        begin = [index * size for index, size in zip(blocks[device], self.extent, strict=True)]
        return StoredBox(self.array, tuple(begin), self.extent)

    def to_plain(self) -> dict[str, Any]:
        """The part as JSON can have it; devices as runs, which are few."""
        return {
            "array": to_plain(self.array),
            "mesh_shape": self.layout.mesh_shape,
            "devices": self.layout.runs,
            "placement": self.layout.placement,
            "extent": self.extent,
        }

    @staticmethod
    def from_plain(plain: Any) -> StoredPart:
        """Rebuilds a part from the plain data of :meth:`to_plain`.

        Raises:
            ValueError: the data are malformed.
        """
        try:
            array = from_plain(plain["array"])
            runs = [(first, count) for first, count in map(check_counts, plain["devices"])]
            require(sum(count for _, count in runs) < _MOST_DEVICES, "a mesh has too many devices")
            devices = DeviceRuns(runs)  # which stay runs where nobody asks for the box of a device
            placement = tuple(plain["placement"])
            extent = check_shape(plain["extent"])
            require(all(type(dim) is int for dim in placement), "a placement is not of integers")
            require(
                not isinstance(array, StoredBox) and len(extent) == len(array.shape),
                "a part of an array on disk has another number of dimensions",
            )
            assert not isinstance(array, StoredBox)
            mesh_shape = check_shape(plain["mesh_shape"])
            return StoredPart(array, Layout(mesh_shape, devices, placement, len(extent)), extent)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"a part of an array on disk lacks a valid {error}") from error


# More than there can be workers.
_MOST_DEVICES = 1 << 20
