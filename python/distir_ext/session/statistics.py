"""Result class of the bytes that workers have sent (``src/runtime/session/notes/traffic.h``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from distir_ext.mesh.mesh_axes import MeshAxes, NamedMesh
from distir_ext.native.collective_records import records
from distir_ext.text.display import Printed
from distir_ext.text.printable import printable
from distir_ext.workers.base import Workers

_COUNT = "distir.runtime.traffic"
_RESET = "distir.runtime.reset_traffic"


@dataclass(frozen=True)
class Traffic:
    """Traffic of one device in one collective of a function."""

    device: int
    """Its id."""

    function: str
    """The function that was called, as ``"main"``."""

    kind: str
    """The collective, as ``"all_reduce"``. Permutes, exchanges and what moves to other devices of
    the same stage are ``"transfer"``, since they are one to the runtime."""

    axes: tuple[str, ...]
    """The mesh axes that it communicates over; none for sends and receives between meshes, and
    where the executable does not say."""

    peers: tuple[int, ...]
    """Ids of the devices of its group, or of those that send to it."""

    calls: int
    """Number of times that it ran."""

    bytes_sent: int
    """Bytes to other devices. Inside groups they are those of the ring algorithm (pairwise for
    all-to-all), whatever the backend does; for others, the pieces that go to other devices."""

    bytes_received: int
    """Bytes from other devices, counted in the same way."""

    messages: int
    """Messages to other devices, counted in the same way."""

    plan: str = ""
    """The groups, or the plan of the move, as the program states them in JSON."""


@dataclass(frozen=True, repr=False)
class Statistics(Printed):
    """Traffic of a session's devices since it began or was reset.

    ``print`` shows tables, notebooks show them as HTML. :meth:`rows` is for pandas.
    """

    traffic: tuple[Traffic, ...]
    """Traffic by device, then in order of the first call."""

    @property
    def bytes_sent(self) -> int:
        """Bytes that the device sends that sends most."""
        return max(self._by_device(lambda each: each.bytes_sent).values(), default=0)

    @property
    def bytes_received(self) -> int:
        """Bytes that the device receives that receives most."""
        return max(self._by_device(lambda each: each.bytes_received).values(), default=0)

    @property
    def collectives(self) -> int:
        """Collectives of the device that runs most, sends and receives included."""
        return max(self._by_device(lambda each: each.calls).values(), default=0)

    def of_function(self, name: str) -> Statistics:
        """The statistics of one function.

        Args:
            name: A function of the program, as ``"main"``.

        Raises:
            KeyError: It has not communicated; names those that have.
        """
        found = tuple(each for each in self.traffic if each.function == name)
        if not found:
            known = list(dict.fromkeys(each.function for each in self.traffic))
            raise KeyError(f"function {name!r} has not communicated, only {known}")
        return Statistics(found)

    def of_devices(self, *device_ids: int) -> Statistics:
        """The statistics of some devices.

        Args:
            device_ids: Ids of devices. Of one that has sent nothing there is nothing.
        """
        return Statistics(tuple(each for each in self.traffic if each.device in device_ids))

    def by_kind(self) -> dict[str, int]:
        """Bytes sent by kind of collective; of each group or plan, by the device that sends most.

        So a transfer counts what its busiest device sends, as in an estimate.
        """
        return self._totals(lambda each: each.kind)

    def by_axis(self) -> dict[str, int]:
        """Bytes sent by mesh axes, as ``"tp"`` or ``"dp, tp"``; see :meth:`by_kind`."""
        return self._totals(lambda each: ", ".join(each.axes) or "between meshes")

    def rows(self) -> list[dict[str, Any]]:
        """A dict for each device and collective, for ``pandas.DataFrame``."""
        return [
            {**asdict(each), "axes": ", ".join(each.axes), "peers": list(each.peers)}
            for each in self.traffic
        ]

    def _by_device(self, of: Callable[[Traffic], int]) -> dict[int, int]:
        totals: dict[int, int] = {}
        for each in self.traffic:
            totals[each.device] = totals.get(each.device, 0) + of(each)
        return totals

    def _totals(self, key: Callable[[Traffic], str]) -> dict[str, int]:
        busiest: dict[tuple[str, str, str, str], int] = {}
        for each in self.traffic:
            which = (key(each), each.function, each.kind, each.plan)
            busiest[which] = max(busiest.get(which, 0), each.bytes_sent)
        totals: dict[str, int] = {}
        for (name, *_), sent in busiest.items():
            totals[name] = totals.get(name, 0) + sent
        return totals


def read_statistics(workers: Workers, meshes: Iterable[NamedMesh]) -> Statistics:
    """Asks the workers.

    Args:
        workers: Of the session.
        meshes: Of what it has loaded.

    Raises:
        RuntimeError: the workers are gone.
    """
    nothing: list[list[Any]] = [[] for _ in workers.device_ids]
    answers = workers.run("statistics", [_COUNT] * workers.num_workers, nothing)
    found = (
        each
        for device, rows in zip(workers.device_ids, answers, strict=True)
        for each in parse_traffic(rows, device, workers.device_ids, MeshAxes(meshes))
    )
    return Statistics(tuple(found))


def reset_statistics(workers: Workers) -> None:
    """Lets the workers count from zero.

    Raises:
        RuntimeError: the workers are gone.
    """
    nothing: list[list[Any]] = [[] for _ in workers.device_ids]
    workers.run("statistics", [_RESET] * workers.num_workers, nothing)


def parse_traffic(
    rows: Sequence[Any], device: int, device_ids: Sequence[int], axes: MeshAxes
) -> list[Traffic]:
    """Reads what a worker answers.

    Raises:
        ValueError: it is something else.
    """
    found = []
    try:
        for function, kind, plan, ranks, calls, sent, received, messages in rows:
            peers = tuple(device_ids[int(rank)] for rank in ranks)
            found.append(
                Traffic(
                    device,
                    printable(str(function)),
                    printable(str(kind)),
                    _axes_of(str(kind), str(plan), peers, axes),
                    peers,
                    int(calls),
                    int(sent),
                    int(received),
                    int(messages),
                    printable(str(plan)),
                )
            )
    except (TypeError, ValueError, IndexError) as error:
        raise ValueError(f"device {device} does not say what it has sent: {error}") from error
    return found


def _axes_of(kind: str, plan: str, peers: Sequence[int], axes: MeshAxes) -> tuple[str, ...]:
    if records()[kind].members == "groups":
        return axes.of_group(peers)
    return axes.of_plan(kind, plan)
