"""Schedules of pipelines: the order in which devices run stages, as data.

An *event* is one stage on one microbatch. A schedule lists the events of every device in order.
There are no backward passes here: events are forward passes, and a microbatch is done when the last
stage is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from distir_ext.signature.signature import Program
from distir_ext.text.errors.tracebacks import short_tracebacks

KINDS = ("gpipe", "1f1b", "interleaved")


@dataclass(frozen=True)
class Event:
    """One stage on one microbatch."""

    stage: int
    microbatch: int


@dataclass(frozen=True)
class Schedule:
    """The events of every device, in order.

    Attributes:
        kind: ``"gpipe"``, ``"1f1b"`` or ``"interleaved"``.
        stages: Number of stages.
        microbatches: Number of microbatches.
        devices: Per device (or group of devices that run the same stages) its events.
        in_flight: Per stage, how many microbatches it may have begun that the last stage has not
            finished; None for any number.
    """

    kind: str
    stages: int
    microbatches: int
    devices: tuple[tuple[Event, ...], ...]
    in_flight: tuple[int, ...] | None = None


@short_tracebacks
def schedule(kind: str, stages: int, microbatches: int, virtual_stages: int = 1) -> Schedule:
    """The schedule of a name.

    - ``"gpipe"`` (Huang and others, "GPipe", arXiv:1811.06965): each device has one stage and runs
      the microbatches in order, as soon as they come.
    - ``"1f1b"`` (Narayanan and others, "PipeDream", arXiv:1806.03377): the same order, but stage
      ``s`` of ``p`` begins a microbatch only when at most ``p - s - 1`` earlier ones that it has
      begun are not through the last stage. Without backward passes this bounds what is
      stored between stages, and costs no time where stages are equally fast.
    - ``"interleaved"`` (Narayanan and others, arXiv:2104.04473; Megatron): each of
      ``p = stages / virtual_stages`` devices has several stages, device ``d`` the stages ``d``,
      ``d + p``, ``d + 2 p``, ...; it runs one of them for ``p`` microbatches, then the next. If
      ``p`` does not divide the microbatches, the last group has fewer, and its stages wait for each
      other.

    Args:
        kind: One of these names.
        stages: Number of stages in all.
        microbatches: Number of microbatches.
        virtual_stages: Stages per device, for ``"interleaved"``; 1 for the others.

    Raises:
        ValueError: an unknown name, numbers that are not positive, stages that
            ``virtual_stages`` does not divide, or several where each device has one stage.
    """
    if kind not in KINDS:
        raise ValueError(f"there is no schedule {kind!r}; there are {', '.join(KINDS)}")
    counts = {"stages": stages, "microbatches": microbatches, "virtual_stages": virtual_stages}
    for name, value in counts.items():
        if value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")
    if kind != "interleaved" and virtual_stages != 1:
        raise ValueError(
            f"schedule {kind!r} has one stage per device, not virtual_stages={virtual_stages}"
        )
    if stages % virtual_stages != 0:
        raise ValueError(
            f"{stages} stages do not divide into virtual_stages={virtual_stages} per device"
        )
    num_devices = stages // virtual_stages
    devices = [
        {index: index * num_devices + device for index in range(virtual_stages)}
        for device in range(num_devices)
    ]
    return schedule_of(kind, devices, microbatches)


def schedule_of(kind: str, devices: Sequence[Mapping[int, int]], microbatches: int) -> Schedule:
    """The schedule of devices whose stages are stated.

    Args:
        kind: As for :func:`schedule`.
        devices: Per device its stages by *virtual stage*. All devices run the virtual stages of all
            microbatches in one order, :func:`virtual_stages_in_order`.
        microbatches: Number of microbatches.
    """
    num_stages = sum(map(len, devices))
    order = virtual_stages_in_order(devices, microbatches)
    events = tuple(
        tuple(Event(stages[index], microbatch) for index, microbatch in order if index in stages)
        for stages in devices
    )
    limits = tuple(range(num_stages, 0, -1)) if kind == "1f1b" else None
    return Schedule(kind, num_stages, microbatches, events, limits)


def virtual_stages_in_order(
    devices: Sequence[Mapping[int, int]], microbatches: int
) -> tuple[tuple[int, int], ...]:
    """Virtual stages and microbatches in the order in which all devices run them.

    A group of as many microbatches as there are devices goes through one virtual stage, then the
    next.
    With one virtual stage the groups make no difference: the microbatches follow each other.

    Args:
        devices: As for :func:`schedule_of`.
        microbatches: Number of microbatches.
    """
    virtual_stages = sorted({index for stages in devices for index in stages})
    return tuple(
        (index, microbatch)
        for first in range(0, microbatches, len(devices))
        for index in virtual_stages
        for microbatch in range(first, min(first + len(devices), microbatches))
    )


def schedule_of_programs(
    function: str, programs: Sequence[Program], kind: str | None, microbatches: int
) -> Schedule:
    """The schedule of a function, whose programs are its stages.

    Args:
        function: Its name.
        programs: In the order in which values go through them.
        kind: As for :func:`schedule`; None for the one that the programs are made for.
        microbatches: Number of microbatches.

    Raises:
        ValueError: It is not one that the programs are made for.
    """
    has_several = any(program.virtual_stage > 0 for program in programs)
    if kind is None:
        kind = "interleaved" if has_several else "gpipe"
    schedule(kind, 1, microbatches)  # checks both
    if kind != "interleaved" and has_several:
        raise ValueError(
            f'devices of "{function}" have several stages each; schedule {kind!r} is for one '
            'stage per device, use "interleaved"'
        )
    if kind == "interleaved" and not has_several:
        raise ValueError(
            f'devices of "{function}" have one stage each; schedule {kind!r} is for several: '
            "AssignStages(..., interleave=2)"
        )
    return schedule_of(kind, stages_of_devices(programs), microbatches)


def stages_of_devices(programs: Sequence[Program]) -> list[dict[int, int]]:
    """Per group of devices that run the same programs their stages, by virtual stage."""
    groups: dict[tuple[int, ...], dict[int, int]] = {}
    for stage, program in enumerate(programs):
        groups.setdefault(program.device_ids, {})[program.virtual_stage] = stage
    return list(groups.values()) or [{0: 0}]
