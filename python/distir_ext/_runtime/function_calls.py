"""Calls of one function of a loaded executable, as steps of the workers.

A call has a step for each of the function's virtual stages (see ``_signature.Program``); most
functions have one. Several calls are queued in any order that has the virtual stages of each call
in order.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi

from distir_ext._errors.spelling import counted, did_you_mean
from distir_ext._params.matching import Rename
from distir_ext._runtime.global_arrays import ArgumentCutter, Sizes, join, shard_for
from distir_ext._runtime.weights import Weights
from distir_ext._signature.signature import HOST, FunctionSpec
from distir_ext._workers.base import ProgramStep, StepOutcome, Workers

# A virtual stage and the index of a call.
VirtualStageOfCall = tuple[int, int]

_NO_WEIGHTS = (
    "; it has no weights: dx.annotate(..., inputs=[...]) states which parameters are inputs, the "
    "others are given to Session.load(params=...) then"
)


@dataclass(frozen=True)
class PreparedCall:
    """The checked arguments of a call.

    Attributes:
        cutter: Keeps their memory, and knows their sizes.
        arguments: Per rank and virtual stage those of the program, in order.
    """

    cutter: ArgumentCutter
    arguments: list[dict[int, list[Any]]]


@dataclass(frozen=True)
class Held:
    """What lies with the workers, per rank.

    Attributes:
        weights: Shards, by parameter index.
        programs: By virtual stage.
    """

    weights: Weights
    programs: Sequence[dict[int, Any]]


@dataclass(frozen=True, eq=False)
class Origin:
    """What a model was loaded from, for loading it again; see ``Session.load``.

    Attributes:
        exe: The executable.
        path: Where its weights are on disk; None if they were given as arrays, or not at all.
        rename: How names of weights change.
        strict: Whether values without a weight are an error.
    """

    exe: Any
    path: str | os.PathLike[str] | None
    rename: Rename
    strict: bool


@dataclass(frozen=True)
class LoadedFunction:
    """A function of an executable that workers have loaded.

    Attributes:
        origin: What it was loaded from, the same object for all functions of a model.
        workers: Who has loaded it.
        spec: What the signature says of it.
        machines: Per rank the virtual machine that has its programs.
        weights: Shards, per rank and parameter index.
        sizes: Values of symbolic dimensions that weights have settled.
    """

    origin: Origin
    workers: Workers
    spec: FunctionSpec
    machines: Sequence[Any]
    weights: Weights
    sizes: Sizes


class FunctionCalls:
    """Prepares calls of a function, runs them and puts results together.

    Attributes:
        workers: Who has loaded it.
        sizes: Values of symbolic dimensions that weights have settled.
        origin: What it was loaded from.
        spec: What the signature says of it.

    Raises:
        ValueError: a function with several virtual stages, for workers whose sends wait.
    """

    def __init__(self, function: LoadedFunction) -> None:
        workers, spec = function.workers, function.spec
        if spec.virtual_stages > 1 and workers.device_type != HOST:
            raise ValueError(
                f'devices of "{spec.name}" have several stages each, which GPUs cannot run: one '
                "that sends waits for the receiver, and then all of them could wait"
            )
        self.spec = spec
        self.adopt(function)

    def adopt(self, function: LoadedFunction) -> None:
        """Goes on with what workers have loaded: at first, and after a session was restarted."""
        workers, spec = function.workers, self.spec
        programs = [
            {
                program.virtual_stage: workers.program(machine, program.name)
                for program in spec.programs_of.get(device, ())
            }
            for device, machine in zip(workers.device_ids, function.machines, strict=True)
        ]
        self.workers = workers
        self.sizes = function.sizes
        self.origin = function.origin
        self._held: Held | None = Held(function.weights, programs)
        workers.add_holder(self)

    @property
    def held(self) -> Held:
        """What lies with the workers.

        Raises:
            RuntimeError: they are gone.
        """
        held = self._held
        if held is None:
            self.workers.check_open()
            raise AssertionError("open workers hold what they were given")
        return held

    def let_go(self) -> None:
        """Forgets what lies with the workers, which are gone."""
        self._held = None

    def in_order(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
        """The inputs of a call, given in order and by name.

        Raises:
            TypeError: there are too many or too few, or a name that is unknown or given already.
        """
        spec = self.spec
        names = [param.name for param in spec.inputs]
        listed = f" ({', '.join(names)})" if names else ""
        takes = f'"{spec.name}" takes {counted(len(names), "input")}{listed}'
        if len(inputs) > len(names):
            raise TypeError(f"{takes}, {_given(len(inputs) + len(named))}")
        values = dict(zip(names, inputs, strict=False))
        for name, value in named.items():
            if name in values:
                raise TypeError(f'input "{name}" of "{spec.name}" was given twice')
            if name not in names:
                weights = (param.name for param in spec.weights)
                kind = "is a weight, which Session.load takes" if name in weights else "is unknown"
                raise TypeError(f'{takes}; "{name}" {kind}{did_you_mean(name, names)}')
            values[name] = value
        missing = [name for name in names if name not in values]
        if missing:
            lacks = f"; {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
            raise TypeError(
                f"{takes}, {_given(len(values))}"
                + (lacks if named else "")
                + ("" if spec.weights else _NO_WEIGHTS)
            )
        return [values[name] for name in names]

    def prepare(self, inputs: Sequence[Any]) -> PreparedCall:
        """Checks the inputs of a call, all of them in order.

        Raises:
            As ``ModelFunction.__call__``, of its arguments.
        """
        spec = self.spec
        cutter = ArgumentCutter(self.workers, self.sizes)
        cuts = [
            cutter.cut(value, param.spec, f'input "{param.name}" of "{spec.name}"')
            for value, param in zip(inputs, spec.inputs, strict=True)
        ]
        cutter.bring()
        arguments: list[dict[int, list[Any]]] = []
        for device, weights in zip(self.workers.device_ids, self.held.weights, strict=True):
            arguments.append({})
            for program in spec.programs_of.get(device, ()):
                mine = [
                    shard_for(device, cuts[index]) if index < spec.num_input else weights[index]
                    for index in program.params
                ]
                if program.sizes:
                    sizes = tuple(cutter.binding.sizes[name][0] for name in program.sizes)
                    mine.append(tvm_ffi.Shape(sizes))
                arguments[-1][program.virtual_stage] = mine
        return PreparedCall(cutter, arguments)

    def run(
        self,
        calls: Sequence[PreparedCall],
        order: Sequence[VirtualStageOfCall],
        in_flight: Sequence[int | None] | None = None,
        finishers: Sequence[int] = (),
    ) -> dict[VirtualStageOfCall, StepOutcome]:
        """Runs calls.

        Args:
            calls: What was prepared.
            order: Every virtual stage of every call once; those of a call in order.
            in_flight: Per rank how many calls it may have begun that the finishers have not ended;
                None for any number.
            finishers: Ranks.
        """
        step_of: dict[VirtualStageOfCall, int] = {each: step for step, each in enumerate(order)}
        first_of: dict[int, int] = {}
        for step, (_, call) in enumerate(order):
            first_of.setdefault(call, step)
        limits = in_flight or [None] * self.workers.num_workers
        programs = self.held.programs
        steps = []
        for index, call in order:
            steps.append(
                ProgramStep(
                    programs=[mine.get(index) for mine in programs],
                    arguments=[mine.get(index, []) for mine in calls[call].arguments],
                    call=first_of[call],
                    continues=[
                        step_of[max(earlier), call] if index in mine and earlier else None
                        for mine in programs
                        for earlier in ([each for each in mine if each < index],)
                    ],
                    keeps=[index in mine and index < max(mine) for mine in programs],
                    after=[
                        None if limit is None or call < limit else step_of[index, call - limit]
                        for limit in limits
                    ],
                )
            )
        outcomes = self.workers.run_programs(self.spec.name, steps, finishers)
        return dict(zip(order, outcomes, strict=True))

    def assemble(
        self, index: int, call: PreparedCall, outcomes: dict[VirtualStageOfCall, StepOutcome]
    ) -> list[Any]:
        """The leaves of the global result of a call, the one of this index among those run."""
        spec = self.spec
        shards: list[dict[int, Any]] = [{} for _ in spec.result_leaves]
        for rank, device in enumerate(self.workers.device_ids):
            programs = spec.programs_of.get(device)
            if programs is None:
                continue
            last = programs[-1]
            values = outcomes[last.virtual_stage, index].results[rank]
            if len(values) != len(last.results):
                raise ValueError(
                    f'program "{last.name}" returned {len(values)} values on device {device}, '
                    f"the signature says {len(last.results)}"
                )
            for leaf, value in zip(last.results, values, strict=True):
                shards[leaf][device] = value
        return [
            join(self.workers, leaf, held, f'result {at} of "{spec.name}"', call.cutter.binding)
            for at, (leaf, held) in enumerate(zip(spec.result_leaves, shards, strict=True))
        ]


def _given(number: int) -> str:
    return f"{number} {'was' if number == 1 else 'were'} given"
