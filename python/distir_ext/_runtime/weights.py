"""The weights of an executable: from arrays or files to each worker's shards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from distir_ext._params.matching import Params, Rename, match_weights
from distir_ext._params.progress import loading_bar
from distir_ext._params.stored_array import StoredArray, StoredShards
from distir_ext._runtime.global_arrays import ArgumentCutter, Sizes
from distir_ext._runtime.moved_array import bring
from distir_ext._signature.signature import ParamSpec, Signature
from distir_ext._workers.base import Takers, Workers

# By index of the parameter the shards of a function's weights, by device.
Weights = Mapping[int, Mapping[int, Any]]

# Weights are cut in steps of this many bytes, or one weight: what is mapped at a time.
_STEP_BYTES = 32 * 2**20


def load_weights(
    workers: Workers, signature: Signature, params: Params, rename: Rename, strict: bool
) -> tuple[dict[str, Weights], dict[str, Sizes]]:
    """Each worker's shards of the weights, and the sizes they bind, by function.

    Everything is checked before a worker cuts the first shard; see ``Session.load``.
    """
    given = match_weights(signature, params, rename, strict, workers.open_params)
    cutters = {name: ArgumentCutter(workers) for name in signature.functions}
    cuts: dict[ParamSpec, Any] = {}
    for name, function in signature.functions.items():
        for param in function.weights:
            value = given[param.name]
            where = f'weight "{param.name}" of "{name}"'
            if isinstance(value, StoredArray | StoredShards):
                where += f" ({value})"
            cuts.setdefault(param, cutters[name].cut(value, param.spec, where))
    held: dict[ParamSpec, Mapping[int, Any]] = {}
    sizes = {param: _num_bytes(given[param.name]) for param in cuts}
    takers = _takers(workers, signature)
    with loading_bar(sum(sizes.values())) as advance:
        for step in _steps(sizes):
            held.update(_cut(workers, step, cuts, takers))
            advance(sum(sizes[param] for param in step))
    weights = {
        name: {index: held[param] for index, param in enumerate(function.params) if param in held}
        for name, function in signature.functions.items()
    }
    return dict(weights), {name: cutter.binding.sizes for name, cutter in cutters.items()}


def _takers(workers: Workers, signature: Signature) -> dict[tuple[int, ...], set[ParamSpec]]:
    """By ranks of workers that run the same programs the weights that these take.

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


def _steps(sizes: Mapping[ParamSpec, int]) -> Iterator[list[ParamSpec]]:
    step: list[ParamSpec] = []
    total = 0
    for param, size in sizes.items():
        if step and total + size > _STEP_BYTES:
            yield step
            step, total = [], 0
        step.append(param)
        total += size
    if step:
        yield step


def _cut(
    workers: Workers,
    step: Sequence[ParamSpec],
    cuts: Mapping[ParamSpec, Any],
    takers: Mapping[tuple[int, ...], set[ParamSpec]],
) -> dict[ParamSpec, Mapping[int, Any]]:
    """Has the workers cut their shards of some weights; what they hold then."""
    groups = [
        Takers(ranks, frozenset(i for i, param in enumerate(step) if param in taken))
        for ranks, taken in takers.items()
    ]
    held = workers.keep("cut weights", bring([cuts[param] for param in step]), groups)
    return dict(zip(step, held, strict=True))
