"""Maps devices and virtual stages of a pipeline to SPMD programs, for ``simulate``.

Input are the signature of a function, a schedule and a number of microbatches. The native
simulation takes the result as plain data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distir_ext.session.schedule import (
    Schedule,
    schedule_of_programs,
    stages_of_devices,
    virtual_stages_in_order,
)
from distir_ext.signature.signature import Program


class PipelineLayout:
    """The programs of a function on its devices.

    Args:
        function: Its name.
        stated: Its signature.
        microbatches: Number of calls that follow each other.
        schedule: In which order; None for the one that the function is built for.

    Raises:
        ValueError: The number is not positive, or the schedule is not one of the function.
    """

    def __init__(
        self,
        function: str,
        stated: Mapping[str, Any],
        microbatches: int,
        schedule: str | None = None,
    ) -> None:
        self.programs = [_program(each) for each in stated["programs"]]
        self.plan: Schedule = schedule_of_programs(function, self.programs, schedule, microbatches)
        groups = stages_of_devices(self.programs)
        self.order = virtual_stages_in_order(groups, microbatches)
        self.stages: dict[int, dict[int, int]] = {}
        """By device the number of its program, by virtual stage."""
        for stage, program in enumerate(self.programs):
            for device in program.device_ids:
                self.stages.setdefault(device, {})[program.virtual_stage] = stage
        self.device_ids = sorted(self.stages)

    def as_data(self, sends_wait: bool) -> dict[str, Any]:
        """The layout as ``src/analysis/timeline/timeline_data.cc`` reads it.

        Programs and communications are not in it: the caller adds them.
        """
        limits, finishers = self._limits()
        virtual_stages = max((each.virtual_stage + 1 for each in self.programs), default=1)
        return {
            "device_ids": self.device_ids,
            "devices": [
                [self.stages[device].get(index, -1) for index in range(virtual_stages)]
                for device in self.device_ids
            ],
            "order": [list(each) for each in self.order],
            "limits": limits,
            "finishers": finishers,
            "sends_wait": sends_wait,
        }

    def check_sends(self, function: str) -> None:
        """Raises ValueError where blocking sends would deadlock.

        Raises:
            ValueError: Devices have several stages each.
        """
        if self.plan.kind == "interleaved":
            raise ValueError(
                f'devices of "{function}" have several stages each, which sessions on GPUs refuse: '
                "one that sends waits for the receiver, and then all of them could wait; "
                "overlap=True simulates sends that do not wait"
            )

    def _limits(self) -> tuple[list[int], list[int]]:
        """Per device how many microbatches it may have in flight, and who has the last stage."""
        limits, last = self.plan.in_flight, self.plan.stages - 1
        if limits is None:
            return [0] * len(self.device_ids), []
        stages = [self.stages[device][0] for device in self.device_ids]
        return (
            [0 if stage == last else limits[stage] for stage in stages],
            [number for number, stage in enumerate(stages) if stage == last],
        )


def _program(stated: Mapping[str, Any]) -> Program:
    return Program(
        str(stated["name"]),
        tuple(stated["device_ids"]),
        tuple(stated["params"]),
        tuple(stated["results"]),
        tuple(stated["sizes"]),
        int(stated["virtual_stage"]),
    )
