"""Loads the weights of an executable: cuts arrays or files into each worker's shards."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from distir_ext.params.matching import Params, Rename, match_weights
from distir_ext.params.stored_array import StoredArray, StoredShards
from distir_ext.session.global_arrays import Argument, ArgumentCutter, Sizes
from distir_ext.session.moved_array import Passage
from distir_ext.signature.signature import ParamSpec, Signature
from distir_ext.text.progress import loading_bar
from distir_ext.workers.base import Takers, Workers
from distir_ext.workers.cuts import StoredCut

# By index of the parameter the shards of a function's weights, by device.
Weights = Mapping[int, Mapping[int, Any]]

# Weights of a stage are cut in steps of this many bytes, or one weight: what is mapped at a time.
_STEP_BYTES = 32 * 2**20


def load_weights(
    workers: Workers, signature: Signature, params: Params, rename: Rename, strict: bool
) -> tuple[dict[str, Weights], dict[str, Sizes]]:
    """Each worker's shards of the weights, and the sizes they bind, by function.

    Everything is checked before a worker cuts the first shard; see ``Session.load``.
    """
    given = match_weights(signature, params, rename, strict, workers.open_params)
    cutters = {
        name: ArgumentCutter(workers, dividing=function.dividing)
        for name, function in signature.functions.items()
    }
    cuts: dict[ParamSpec, Any] = {}
    for name, function in signature.functions.items():
        arguments = []
        for param in function.weights:
            value = given[param.name]
            where = f'weight "{param.name}" of "{name}"'
            if isinstance(value, StoredArray | StoredShards):
                where += f" ({value})"
            arguments.append(Argument(param, value, where))
        found = cutters[name].cut(arguments)
        cuts = {**dict(zip(function.weights, found, strict=True)), **cuts}
    held: dict[ParamSpec, Mapping[int, Any]] = {}
    sizes = {param: _num_bytes(given[param.name]) for param in cuts}
    takers = _takers(workers, signature)
    with loading_bar(sum(sizes.values())) as advance, Passage(workers) as passage:
        cuts = dict(zip(cuts, passage.show(list(cuts.values())), strict=True))
        # Other arrays pass through this process, or its memory, one step after the other.
        from_here = {param for param, cut in cuts.items() if not isinstance(cut, StoredCut)}
        for step in _steps(sizes, [*takers.values(), from_here]):
            taken = {param: cuts[param] for param in step}
            held.update(_keep(workers, passage, taken, takers))
            advance(sum(sizes[param] for param in step))
    weights = {
        name: {index: held[param] for index, param in enumerate(function.params) if param in held}
        for name, function in signature.functions.items()
    }
    return dict(weights), {name: cutter.binding.sizes for name, cutter in cutters.items()}


def _takers(workers: Workers, signature: Signature) -> dict[tuple[int, ...], set[ParamSpec]]:
    """Maps groups of workers that run the same programs to the weights that these take.

    Functions that take the same weight with the same type share its shards.
    """
    programs = [
        (function, program)
        for function in signature.functions.values()
        for program in function.programs
    ]
    mine: dict[int, list[int]] = {}
    for number, (_, program) in enumerate(programs):
        for device in program.device_ids:
            mine.setdefault(workers.rank_of[device], []).append(number)
    ranks: dict[tuple[int, ...], list[int]] = {}
    for rank in sorted(mine):
        ranks.setdefault(tuple(mine[rank]), []).append(rank)
    return {
        tuple(group): {
            function.params[index]
            for function, program in (programs[number] for number in numbers)
            for index in program.params
            if index >= function.num_input
        }
        for numbers, group in ranks.items()
    }


def _num_bytes(value: Any) -> int:
    if isinstance(value, StoredArray | StoredShards):
        return value.num_bytes
    return int(getattr(value, "nbytes", 0))


def _steps(
    sizes: Mapping[ParamSpec, int], taken: Iterable[Collection[ParamSpec]]
) -> list[list[ParamSpec]]:
    """Weights that are cut at a time, so that workers of all stages have something to do.

    Example: steps of 2 of ``{a: 1, b: 1, c: 1, d: 1}``, of which one stage takes the first two and
    another one the others: all four in one step.

    Args:
        sizes: Of the weights, in bytes.
        taken: By stage the weights that its workers take; of what else has a limit, those that it
            has a part in.
    """
    stages_of: dict[ParamSpec, list[int]] = {param: [] for param in sizes}
    for stage, params in enumerate(taken):
        for param in params:
            stages_of[param].append(stage)
    steps: list[list[ParamSpec]] = []
    reached: dict[int, tuple[int, int]] = {}  # by stage the step, and its bytes in it
    for param, size in sizes.items():
        stages = stages_of[param]
        at, most = max((reached.get(stage, (0, 0)) for stage in stages), default=(0, 0))
        if most and most + size > _STEP_BYTES:
            at += 1
        for stage in stages:
            step, num_bytes = reached.get(stage, (0, 0))
            reached[stage] = (at, size + (num_bytes if step == at else 0))
        if at == len(steps):
            steps.append([])
        steps[at].append(param)
    return steps


def _keep(
    workers: Workers,
    passage: Passage,
    cuts: Mapping[ParamSpec, Any],
    takers: Mapping[tuple[int, ...], set[ParamSpec]],
) -> dict[ParamSpec, Mapping[int, Any]]:
    """Makes the workers cut their shards of some weights, and returns what they hold then."""
    groups = [
        Takers(ranks, frozenset(i for i, param in enumerate(cuts) if param in taken))
        for ranks, taken in takers.items()
    ]
    held = workers.keep("cut weights", passage.bring(list(cuts.values())), groups)
    return dict(zip(cuts, held, strict=True))
