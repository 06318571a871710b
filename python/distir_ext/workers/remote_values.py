"""References of the controller to objects that worker processes hold."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import tvm_ffi

from distir_ext.wire.channel import Held
from distir_ext.workers.base import Workers
from distir_ext.workers.cuts import Alike, Cut, StoredCut, is_on, shard_for


class RemoteObject:
    """An object that workers hold for as long as this one lives.

    Args:
        held: The workers' name of it.
        released: Names that workers may forget.
    """

    def __init__(self, held: Held, released: list[Held]) -> None:
        self.held = held
        weakref.finalize(self, released.append, held).atexit = False


class RemoteTensor:
    """A tensor that a worker holds.

    Args:
        holder: Of its name.
        workers: The workers that fetch it.
        device: The worker's.
        description: Its shape and dtype, and its value if that is known already.
    """

    def __init__(
        self, holder: RemoteObject, workers: Workers, device: int, description: Mapping[str, Any]
    ) -> None:
        self._holder = holder
        self.shape: Any = description["shape"]
        self.dtype: str = description["dtype"]
        self.value = description.get("value")
        self._workers = workers
        self._device = device

    @property
    def held(self) -> Held:
        """The worker's name of the tensor."""
        return self._holder.held

    def numpy(self) -> Any:
        """Its elements, as a NumPy array."""
        return self._workers.fetch({self._device: self})[self._device].numpy()


class RemoteShards(Alike):
    """One of the things that a step has given, as each worker that has run it holds its own.

    Args:
        holder: Of its name.
        workers: The workers.
        devices: The devices of those that hold one.
        kinds: Ranks of workers that all say the same of it, and what they say: a dict of an object
            that stays there; another value was sent.

    Attributes:
        is_held: Whether all of them stay there.
    """

    def __init__(
        self,
        holder: RemoteObject,
        workers: Workers,
        devices: frozenset[int],
        kinds: Sequence[tuple[Sequence[int], Any]],
    ) -> None:
        self._holder = holder
        self._workers = workers
        self.devices = devices
        self._kinds = kinds
        self.is_held = all(isinstance(said, dict) for _, said in kinds)

    @property
    def held(self) -> Held:
        """The workers' name of the values."""
        return self._holder.held

    @cached_property
    def _kind_of(self) -> dict[int, Any]:
        """Answers by rank."""
        return {rank: said for ranks, said in self._kinds for rank in ranks}

    def __getitem__(self, device: int) -> Any:
        if device not in self.devices:
            raise KeyError(device)
        one_kind = len(self._kinds) == 1
        said = self._kinds[0][1] if one_kind else self._kind_of[self._workers.rank_of[device]]
        if not isinstance(said, dict):
            return said
        if "shape" in said:
            return RemoteTensor(self._holder, self._workers, device, said)
        return self._holder

    def __contains__(self, device: object) -> bool:
        return device in self.devices

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self.devices))

    def __len__(self) -> int:
        return len(self.devices)

    def samples(self) -> Iterator[tuple[int, Any]]:
        for ranks, _ in self._kinds:
            device = self._workers.device_ids[ranks[0]]
            yield device, self[device]


def command(function: Any) -> dict[str, Any]:
    """Returns the message that tells a worker to run a function.

    Args:
        function: The name of a global function, or None for nothing.

    Raises:
        TypeError: the function is an object, which only threads can be handed.
    """
    if function is None:
        return {"command": "idle"}
    if isinstance(function, str):
        return {"command": "call", "function": function}
    raise TypeError(
        "workers that are processes run global functions by name, and programs of an executable, "
        f"not a {type(function).__name__}"
    )


def reference(value: Any, device: int) -> Any:
    """Returns the message form of a device's part of a value: objects of workers go by name.

    Raises:
        ValueError: the device has none.
    """
    if isinstance(value, RemoteObject | RemoteTensor):
        return value.held
    if isinstance(value, RemoteShards) and value.is_held and device in value.devices:
        return value.held
    if isinstance(value, StoredCut) and value.held is None:
        return value.part
    if isinstance(value, Mapping):
        return reference(shard_for(device, value), device)
    if isinstance(value, list | tuple) and not isinstance(value, tvm_ffi.Shape):
        fields = [each for each in value if is_on(device, each)]
        return [reference(each, device) for each in fields]
    return value


def is_common(value: Any) -> bool:
    """Returns whether all devices that have a part of a value are sent the same for it."""
    if isinstance(value, StoredCut):
        return value.held is None or is_common(value.held)
    if isinstance(value, Cut):
        return len(value.shards) == 1
    if isinstance(value, list | tuple) and not isinstance(value, tvm_ffi.Shape):
        return not any(isinstance(each, Mapping | list | tuple) for each in value)
    if isinstance(value, RemoteShards):
        return value.is_held
    return not isinstance(value, Mapping)


def identity(value: Any) -> Any:
    """Returns a key that is equal for values that are sent alike."""
    if isinstance(value, list):
        return tuple(map(identity, value))
    if value is None or isinstance(value, bool | int | float | str | Held):
        return type(value), value
    return id(value)


def by_answer(
    ranks: Sequence[int], answers: Sequence[dict[str, Any]]
) -> list[tuple[list[int], list[Any]]]:
    """Groups workers by equal answers, and returns the results of each group."""
    kinds: dict[int, tuple[list[int], list[Any]]] = {}
    for rank in ranks:
        answer = answers[rank]
        kinds.setdefault(id(answer), ([], answer["result"]))[0].append(rank)
    return list(kinds.values())
