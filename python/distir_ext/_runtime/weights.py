"""The weights of an executable: from arrays or files to each worker's shards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from distir_ext._params.matching import Params, Rename, match_weights
from distir_ext._params.progress import loading_bar
from distir_ext._params.stored_array import StoredArray, StoredShards
from distir_ext._runtime.global_arrays import ArgumentCutter, Sizes, shard_for
from distir_ext._runtime.moved_array import bring
from distir_ext._signature.signature import ParamSpec, Signature
from distir_ext._workers.base import Workers

# Per rank the worker's shards of a function's weights, by parameter index.
Weights = Sequence[Mapping[int, Any]]

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
    held: list[dict[ParamSpec, Any]] = [{} for _ in workers.device_ids]
    sizes = {param: _num_bytes(given[param.name]) for param in cuts}
    needed = _needed(workers, signature)
    with loading_bar(sum(sizes.values())) as advance:
        for step in _steps(sizes):
            mine = [[param for param in step if param in each] for each in needed]
            for each, shards in zip(held, _cut(workers, mine, cuts), strict=True):
                each.update(shards)
            advance(sum(sizes[param] for param in step))
    weights = {
        name: [
            {index: mine[param] for index, param in enumerate(function.params) if param in mine}
            for mine in held
        ]
        for name, function in signature.functions.items()
    }
    return dict(weights), {name: cutter.binding.sizes for name, cutter in cutters.items()}


def _needed(workers: Workers, signature: Signature) -> list[set[ParamSpec]]:
    """Per rank the weights that its programs take.

    Functions that take the same weight with the same type share its shards.
    """
    return [
        {
            function.params[index]
            for function in signature.functions.values()
            for program in function.programs_of.get(device, ())
            for index in program.params
            if index >= function.num_input
        }
        for device in workers.device_ids
    ]


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
    workers: Workers, mine: Sequence[Sequence[ParamSpec]], cuts: Mapping[ParamSpec, Any]
) -> list[dict[ParamSpec, Any]]:
    """Has the workers cut their shards of some weights; per rank what it holds then."""
    results = workers.hold(
        "cut weights",
        bring(
            [
                [shard_for(device, cuts[param]) for param in params]
                for device, params in zip(workers.device_ids, mine, strict=True)
            ]
        ),
    )
    return [
        dict(zip(params, kept, strict=True)) for params, kept in zip(mine, results, strict=True)
    ]
