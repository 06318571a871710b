"""Runs calls of one function of a loaded executable as steps of the workers.

A call has a step for each of the function's virtual stages (see ``_signature.Program``); most
functions have one. Several calls are queued in any order that has the virtual stages of each call
in order.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi

from distir_ext.params.matching import Rename
from distir_ext.session.global_arrays import Argument, ArgumentCutter, Sizes, join
from distir_ext.session.moved_array import Passage
from distir_ext.session.sharded_array import ShardedArray
from distir_ext.session.weights import Weights
from distir_ext.signature.signature import HOST, FunctionSpec, Program
from distir_ext.text.errors.spelling import counted, did_you_mean
from distir_ext.workers.base import (
    BoundProgram,
    ProgramPart,
    ProgramStep,
    StepOutcome,
    Workers,
)
from distir_ext.workers.cuts import check_devices

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
        held: The loaded function that it runs.
        cutter: Keeps their memory, and knows their sizes.
        inputs: Inputs by device.
    """

    held: Held
    cutter: ArgumentCutter
    inputs: Sequence[Any]


@dataclass(frozen=True)
class _Part:
    """Program of some devices in a virtual stage.

    Attributes:
        program: The program's entry in the signature.
        bound: The program bound to its weights on these devices.
        inputs: Indices of the inputs that it takes.
        earlier: The virtual stage of these devices before this one, or None.
        keeps: Whether there is a later one.
    """

    program: Program
    bound: BoundProgram
    inputs: tuple[int, ...]
    earlier: int | None
    keeps: bool


@dataclass(frozen=True, eq=False)
class Origin:
    """Source of a loaded model, for loading it again; see ``Session.load``.

    Attributes:
        exe: The executable.
        path: Path of its weights on disk; None if they were given as arrays, or not at all.
        rename: Renaming of weights.
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
        origin: Its source, the same object for all functions of a model.
        workers: The workers that have loaded it.
        spec: Its entry in the signature.
        machine: The virtual machine that has its programs.
        weights: Shards, by parameter index and device.
        sizes: Values of symbolic dimensions that weights have settled.
    """

    origin: Origin
    workers: Workers
    spec: FunctionSpec
    machine: Any
    weights: Weights
    sizes: Sizes


class Held:
    """A function as workers have loaded it, until they end.

    A call takes one of these, and goes on with it whatever becomes of the session meanwhile: after
    a restart the workers of before are closed.

    Attributes:
        workers: The workers that have loaded it.
        sizes: Values of symbolic dimensions that weights have settled.
    """

    def __init__(self, function: LoadedFunction) -> None:
        self.workers = function.workers
        self.sizes = function.sizes
        self._spec = function.spec
        self._on_workers: tuple[Any, Weights] | None = function.machine, function.weights
        self._bound: list[list[_Part]] | None = None
        self.workers.add_holder(self)

    @property
    def weights(self) -> Weights:
        """Shards of weights, by parameter index and device.

        Raises:
            RuntimeError: the workers are gone.
        """
        return self._there()[1]

    @property
    def parts(self) -> list[list[_Part]]:
        """Programs of the workers by virtual stage, which they are told before the first call.

        Raises:
            RuntimeError: the workers are gone.
        """
        bound = self._bound
        if bound is None:
            with self.workers.turn():  # threads that call at the same time bind once
                bound = self._bound
                if bound is None:
                    bound = self._bound = self._bind()
        return bound

    def _there(self) -> tuple[Any, Weights]:
        there = self._on_workers
        if there is None:
            self.workers.check_open()
            raise AssertionError("open workers hold what they were given")
        return there

    def _bind(self) -> list[list[_Part]]:
        spec = self._spec
        stages: dict[tuple[int, ...], list[int]] = {}
        for device, programs in spec.programs_of.items():
            key = tuple(each.virtual_stage for each in programs)
            stages.setdefault(key, []).append(device)
        bound: list[list[_Part]] = [[] for _ in range(spec.virtual_stages)]
        for program in spec.programs:
            for key, alike in stages.items():
                devices = frozenset(program.device_ids) & frozenset(alike)
                if devices:
                    bound[program.virtual_stage].append(self._part(program, devices, key))
        return bound

    def _part(self, program: Program, devices: frozenset[int], stages: tuple[int, ...]) -> _Part:
        machine, weights = self._there()
        num_input = self._spec.num_input
        inputs = tuple(dict.fromkeys(index for index in program.params if index < num_input))
        takes = [
            inputs.index(index) if index < num_input else weights[index] for index in program.params
        ]
        if program.sizes:
            takes.append(len(inputs))
        bound = self.workers.bind(machine, program.name, sorted(devices), takes)
        earlier = [each for each in stages if each < program.virtual_stage]
        keeps = program.virtual_stage < max(stages)
        return _Part(program, bound, inputs, max(earlier, default=None), keeps)

    def let_go(self) -> None:
        """Forgets what lies with the workers, which are gone."""
        self._on_workers = self._bound = None


class FunctionCalls:
    """Prepares calls of a function, runs them and puts results together.

    Attributes:
        held: The function as loaded now; another object after a session was restarted.
        origin: Its source.
        spec: Its entry in the signature.

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
        self.origin = function.origin
        self.held = Held(function)

    @property
    def workers(self) -> Workers:
        """Workers that have loaded the function now."""
        return self.held.workers

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

    def prepare(
        self, inputs: Sequence[Any], held: Held | None = None, once: bool = True
    ) -> PreparedCall:
        """Checks the inputs of a call.

        Args:
            inputs: All of them in order.
            held: The loaded function to run; None for the one that workers have now.
            once: Whether it is run once, and uses up arrays for inputs that are donated.

        Raises:
            As ``ModelFunction.__call__``, of its arguments.
        """
        spec = self.spec
        arguments = [
            Argument(param, value, f'input "{param.name}" of "{spec.name}"')
            for value, param in zip(inputs, spec.inputs, strict=True)
        ]
        donated = self._check_donated(arguments)
        held = held or self.held
        cutter = ArgumentCutter(held.workers, held.sizes, spec.dividing, spec.size_names)
        cuts = cutter.cut(arguments)
        with Passage(held.workers) as passage:
            cuts = passage.bring(cuts)
            cutter.read_stored(cuts)
        for part in (each for stage in held.parts for each in stage):
            for index in part.inputs:
                check_devices(part.bound.devices, cuts[index])
        for where, array in donated:
            array.donate(where) if once else array.keep()
        return PreparedCall(held, cutter, cuts)

    def run(
        self,
        calls: Sequence[PreparedCall],
        order: Sequence[VirtualStageOfCall],
        in_flight: Sequence[int | None] | None = None,
        finishers: Sequence[int] = (),
        timed: bool = False,
    ) -> dict[VirtualStageOfCall, StepOutcome]:
        """Runs calls.

        Args:
            calls: Prepared calls, all for the same workers.
            order: Every virtual stage of every call once; those of a call in order.
            in_flight: Per rank how many calls it may have begun that the finishers have not ended;
                None for any number.
            finishers: Ranks.
            timed: Whether times are asked for.
        """
        held = calls[0].held
        steps = self.steps(calls, order, in_flight)
        outcomes = held.workers.run_programs(self.spec.name, steps, finishers, timed)
        return dict(zip(order, outcomes, strict=True))

    def steps(
        self,
        calls: Sequence[PreparedCall],
        order: Sequence[VirtualStageOfCall],
        in_flight: Sequence[int | None] | None = None,
    ) -> list[ProgramStep]:
        """The steps that :meth:`run` runs; their inputs are read when they run."""
        held = calls[0].held
        step_of: dict[VirtualStageOfCall, int] = {each: step for step, each in enumerate(order)}
        first_of: dict[int, int] = {}
        for step, (_, call) in enumerate(order):
            first_of.setdefault(call, step)
        limits = {rank: each for rank, each in enumerate(in_flight or ()) if each is not None}
        return [
            ProgramStep(
                [
                    ProgramPart(
                        part.bound,
                        self._inputs(part, calls[call]),
                        None if part.earlier is None else step_of[part.earlier, call],
                        part.keeps,
                    )
                    for part in held.parts[index]
                ],
                first_of[call],
                {
                    rank: step_of[index, call - limit]
                    for rank, limit in limits.items()
                    if call >= limit
                },
            )
            for index, call in order
        ]

    def _inputs(self, part: _Part, call: PreparedCall) -> list[Any]:
        inputs = [call.inputs[index] for index in part.inputs]
        if part.program.sizes:
            numbers = call.cutter.binding.numbers
            sizes = (numbers[name] for name in part.program.sizes)
            inputs.append(tvm_ffi.Shape(tuple(sizes)))
        return inputs

    def assemble(
        self, index: int, call: PreparedCall, outcomes: dict[VirtualStageOfCall, StepOutcome]
    ) -> list[Any]:
        """The leaves of the global result of a call, the one of this index among those run."""
        spec = self.spec
        shards: list[Mapping[int, Any]] = [{} for _ in spec.result_leaves]
        for stage, parts in enumerate(call.held.parts):
            for part, values in zip(parts, outcomes[stage, index].leaves, strict=True):
                if part.keeps:
                    continue
                last = part.program
                if len(values) != len(last.results):
                    raise ValueError(
                        f'program "{last.name}" returned {len(values)} values on device '
                        f"{min(part.bound.devices)}, the signature says {len(last.results)}"
                    )
                for leaf, value in zip(last.results, values, strict=True):
                    shards[leaf] = {**shards[leaf], **value} if shards[leaf] else value
        return [self.join_leaf(leaf, call, held) for leaf, held in enumerate(shards)]

    def join_leaf(self, leaf: int, call: PreparedCall, shards: Mapping[int, Any]) -> Any:
        """One leaf of the global result of a call, by its index, of shards by device."""
        spec, where = self.spec.result_leaves[leaf], f'result {leaf} of "{self.spec.name}"'
        joined = join(call.held.workers, spec, shards, where, call.cutter.binding)
        if self.spec.donated and isinstance(joined, ShardedArray):
            return joined.may_be_overwritten()
        return joined

    def _check_donated(self, arguments: Sequence[Argument]) -> list[tuple[str, ShardedArray]]:
        """The arrays that a call uses up, with the names of inputs.

        Raises:
            RuntimeError: an array was used up before.
            ValueError: one is donated and passed for another input, too.
        """
        passed: dict[int, str] = {}
        donated: dict[int, tuple[str, ShardedArray]] = {}
        for index, argument in enumerate(arguments):
            where = argument.where
            for array in _sharded_arrays(argument.value):
                array.check_available(where)
                other = passed.setdefault(id(array), where)
                if index in self.spec.donated:
                    donated[id(array)] = where, array
                if other != where and id(array) in donated:
                    raise ValueError(
                        f"{where} is the array that is {other}, and one of them is donated; pass "
                        "its numpy() for one of them"
                    )
        return list(donated.values())


def _sharded_arrays(value: Any) -> Iterator[ShardedArray]:
    if isinstance(value, ShardedArray):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _sharded_arrays(each)


def _given(number: int) -> str:
    return f"{number} {'was' if number == 1 else 'were'} given"
