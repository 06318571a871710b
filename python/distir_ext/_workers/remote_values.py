"""What a controller holds in place of objects that lie with workers in other processes."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tvm_ffi

from distir_ext._workers.base import Workers
from distir_ext._workers.channel import Held


class RemoteObject:
    """An object that a worker holds for as long as this one lives.

    Args:
        number: What the worker calls it.
        released: Numbers that the worker may forget.
    """

    def __init__(self, number: int, released: list[int]) -> None:
        self.number = number
        weakref.finalize(self, released.append, number).atexit = False


class RemoteTensor(RemoteObject):
    """A tensor that a worker holds.

    Args:
        number: What the worker calls it.
        released: Numbers that the worker may forget.
        workers: Who fetch it.
        rank: The worker.
        description: Its shape and dtype, and its value if that is known already.
    """

    def __init__(
        self,
        number: int,
        released: list[int],
        workers: Workers,
        rank: int,
        description: Mapping[str, Any],
    ) -> None:
        super().__init__(number, released)
        self.shape: Any = description["shape"]
        self.dtype: str = description["dtype"]
        self.value = description.get("value")
        self._workers = workers
        self._device = workers.device_ids[rank]

    def numpy(self) -> Any:
        """Its elements, as a NumPy array."""
        return self._workers.fetch({self._device: self})[self._device].numpy()


@dataclass(frozen=True)
class RemoteProgram:
    """A function of a machine that lies with a worker."""

    machine: RemoteObject
    name: str


def command(function: Any) -> dict[str, Any]:
    """What tells a worker to run a function.

    Args:
        function: A program, the name of a global function, or None for nothing.

    Raises:
        TypeError: it is something else, which only threads can be handed.
    """
    if function is None:
        return {"command": "idle"}
    if isinstance(function, RemoteProgram):
        machine = function.machine.number
        return {"command": "program", "machine": machine, "function": function.name}
    if isinstance(function, str):
        return {"command": "call", "function": function}
    raise TypeError(
        "workers that are processes run global functions by name, and programs of an executable, "
        f"not a {type(function).__name__}"
    )


def reference(value: Any) -> Any:
    """An argument as it is sent: objects that lie with the worker by number."""
    if isinstance(value, RemoteObject):
        return Held(value.number)
    if isinstance(value, list | tuple) and not isinstance(value, tvm_ffi.Shape):
        return [reference(each) for each in value]
    return value
