"""Maps devices to their values; a cut array has a shard for each device.

A value is the same for all devices, or a mapping by device, or a list of values. The mappings here
know groups of devices with equal values, so callers visit each group once.

Example: rows of an (8, 4) array on a mesh (2, 2) of devices 0 to 3. Its :class:`Cut` has two
shards; devices 0 and 1 have the first one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from distir_ext.params.parts import StoredPart

Block = tuple[int, ...]
T = TypeVar("T")


class _ByBlock(Mapping[int, Any]):
    """Values by device, stored once for each block."""

    def __init__(self, blocks: Mapping[int, Block]) -> None:
        self._blocks = blocks

    def __contains__(self, device: object) -> bool:
        return device in self._blocks

    def __iter__(self) -> Iterator[int]:
        return iter(self._blocks)

    def __len__(self) -> int:
        return len(self._blocks)


class Cut(_ByBlock):
    """An array of this process that is cut into shards when they are sent.

    Args:
        blocks: The block of each device.
        shards: The shard of each block.
    """

    def __init__(self, blocks: Mapping[int, Block], shards: Mapping[Block, Any]) -> None:
        super().__init__(blocks)
        self.shards = shards

    def __getitem__(self, device: int) -> Any:
        return self.shards[self._blocks[device]]

    def with_shards(self, shards: Mapping[Block, Any]) -> Cut:
        """Returns a cut with the same devices and blocks, and other shards."""
        return Cut(self._blocks, shards)


class StoredCut(_ByBlock):
    """An array on disk, whose boxes devices read.

    Args:
        blocks: The block of each device.
        part: The part that is described to all of them alike.

    Attributes:
        part: As given.
        held: By device what it has read; None before.
    """

    def __init__(self, blocks: Mapping[int, Block], part: StoredPart) -> None:
        super().__init__(blocks)
        self.part = part
        self.held: Mapping[int, Any] | None = None

    def __getitem__(self, device: int) -> Any:
        return self.part.box(device) if self.held is None else self.held[device]


class Alike(Mapping[int, Any]):
    """Values that devices have returned, grouped by equal kinds.

    Attributes:
        devices: Devices that have a value.
    """

    devices: frozenset[int]

    @abstractmethod
    def samples(self) -> Iterator[tuple[int, Any]]:
        """A device with its value for each kind of value that there is."""


def samples(values: Mapping[int, Any]) -> Iterator[tuple[int, Any]]:
    """Devices with their values, among which is one of each kind."""
    return values.samples() if isinstance(values, Alike) else iter(values.items())


def shard_for(device: int, value: Any) -> Any:
    """A device's part of a value: of a list, the fields that the device has a part of.

    Raises:
        ValueError: the device has none.
    """
    if isinstance(value, list):
        return [shard_for(device, each) for each in value if is_on(device, each)]
    if isinstance(value, Mapping):
        if device not in value:
            raise ValueError(
                f"device {device} has no value to pass: a function on {sorted(value)} returned it"
            )
        return value[device]
    return value


def is_on(device: int, value: Any) -> bool:
    """Returns whether a device has a part of a value; of a list, of any field."""
    if isinstance(value, list):
        return not value or any(is_on(device, each) for each in value)
    return device in value if isinstance(value, Mapping) else True


def check_devices(devices: frozenset[int], value: Any) -> None:
    """Raises ValueError unless devices have parts of a value, as :func:`shard_for` does."""
    if isinstance(value, Mapping) and not _has_all(value, devices):
        for device in sorted(devices):
            shard_for(device, value)


def _has_all(value: Mapping[int, Any], devices: frozenset[int]) -> bool:
    if isinstance(value, Cut | StoredCut):
        return True  # a signature has no program on other devices than those of its inputs
    if isinstance(value, Alike):
        return value.devices is devices or devices <= value.devices
    return devices <= value.keys()


def cuts_of(kind: type[T], values: Iterable[Any]) -> Iterator[T]:
    """Yields values of one kind, also among the fields of lists."""
    for value in values:
        if isinstance(value, kind):
            yield value
        elif isinstance(value, list):
            yield from cuts_of(kind, value)
