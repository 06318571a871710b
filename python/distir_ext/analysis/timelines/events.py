"""Events of devices in a simulation, and their times."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Operation:
    """A kernel or a collective of a program, which runs once in each microbatch."""

    name: str
    """The variable that it gives."""

    kind: str
    """``"kernel"``; of communication the operator's name under ``R.ccl``, as ``"all_reduce"`` or
    ``"recv"``."""

    operator: str
    """The name of the kernel, or the kind of communication."""

    stream: str
    """``"compute"`` or ``"communication"``."""

    function: str
    """The function of the lowered module."""

    stage: int
    """Index of the program among those of the function that users call."""

    layer: str
    """The layer of the model, or empty."""

    seconds: float
    """Duration in seconds."""

    flops: float
    """Floating-point operations; 0 for communication."""

    bytes: float
    """Bytes accessed by a kernel, sent by a device in a collective."""

    axes: tuple[str, ...] = ()
    """The mesh axes that a collective communicates over; none between meshes."""

    plan: str = field(default="", repr=False)
    """Of what has a plan, the plan."""


@dataclass(frozen=True, eq=False)
class DeviceGroup:
    """Devices that do the same at the same times; arrays have a row for each of their events."""

    device_ids: tuple[int, ...]
    """Ids, ascending."""

    operations: npt.NDArray[np.int64]
    """Index of each event's operation in the timeline, in the order of their programs."""

    microbatches: npt.NDArray[np.int64]
    """Of which microbatch each event is."""

    arrivals: npt.NDArray[np.float64]
    """Seconds when the devices came to each event; later they waited for others."""

    starts: npt.NDArray[np.float64]
    """Seconds when each event begins."""

    ends: npt.NDArray[np.float64]
    """Seconds when each event ends."""

    def __len__(self) -> int:
        return len(self.starts)
