"""Matches given values to weights: by name, in order, by function, or from files."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from distir_ext.params.blocks import blocks_of
from distir_ext.signature.signature import FusedWeight, Signature
from distir_ext.text.errors.spelling import nearest, plain

# What users may pass as weights: by name, in order, by function, or the path of files with them.
Params = Mapping[str, Any] | Iterable[Any] | str | os.PathLike[str] | None

# From names of values to those of weights; several if they are tied.
Names = str | Sequence[str]
Rename = Callable[[str], Names] | Mapping[str, Names] | None

_NAMES_IN_A_MESSAGE = 8
_NEAREST_IN_A_MESSAGE = 3
# How torch.export marks parameters, buffers and constants in the names of inputs.
_EXPORT_PREFIX = re.compile(r"[pbc]_")


def match_weights(
    signature: Signature,
    params: Params,
    rename: Rename,
    strict: bool,
    open_params: Callable[[Any], Mapping[str, Any]],
) -> dict[str, Any]:
    """The given value of every weight of the executable's functions, by name.

    Args:
        signature: The executable's.
        params: See ``Session.load``.
        rename: From names in ``params`` to those of weights.
        strict: Whether values of no weight are an error.
        open_params: Reads files.

    Raises:
        TypeError: ``params`` are none of these; or ``rename`` for values without names.
        ValueError: a weight without a value, a value without a weight, or an ambiguous one.
    """
    weights = _weights(signature)
    fused = _fused(signature)
    source = ""
    if isinstance(params, str | os.PathLike):
        source = f" in {os.fspath(params)}"
        params = open_params(params)
    given = _known_by_exported_names(_by_name(signature, weights, params, rename), weights)
    blocks = {block for each in fused if each.name not in given for block in each.blocks}
    unknown = [name for name in given if name not in weights and name not in blocks]
    in_blocks = {each.name for each in fused if all(block in given for block in each.blocks)}
    missing = [name for name in weights if name not in given and name not in in_blocks]
    if unknown and not weights and strict:
        raise ValueError(_no_weights(signature))
    if missing:
        raise ValueError(
            f"no value was given for {_counted(missing, len(weights))}{source}"
            + _others(unknown, missing)
        )
    if unknown and strict:
        raise ValueError(
            f"the executable has no {_counted(unknown)}, which {_are(unknown)} given{source}; it "
            f"has {_listed(weights)}{_near(unknown, weights)}. rename= says which is which, "
            "strict=False ignores what it has no weight for"
        )
    return _of_parameters(signature, fused, given)


def _weights(signature: Signature) -> dict[str, None]:
    """The names of all weights, in the order of functions and parameters."""
    functions = signature.functions.values()
    return dict.fromkeys(name for function in functions for name in function.given_weights)


def _fused(signature: Signature) -> set[FusedWeight]:
    """The weights that are several parameters.

    Raises:
        ValueError: functions cut one differently.
    """
    found = {each for function in signature.functions.values() for each in function.fused}
    by_block: dict[str, FusedWeight] = {}
    for each in found:
        for block in each.blocks:
            if by_block.setdefault(block, each) != each:
                raise ValueError(
                    f'functions cut the weights "{by_block[block].name}" and "{each.name}" into '
                    f'different blocks "{block}"; load them in models of their own'
                )
    return found


def _of_parameters(
    signature: Signature, fused: Iterable[FusedWeight], given: Mapping[str, Any]
) -> dict[str, Any]:
    """The value of every parameter that is a weight: of fused ones, of every block."""
    found = {name: _array(name, value) for name, value in given.items()}
    for each in fused:
        if each.name in given:
            blocks = blocks_of(each.name, found[each.name], each.dim, each.sizes)
            found.update(zip(each.blocks, blocks, strict=True))
    return {
        param.name: found[param.name]
        for function in signature.functions.values()
        for param in function.weights
    }


def _by_name(
    signature: Signature, weights: Collection[str], params: Any, rename: Rename
) -> dict[str, Any]:
    if params is None:
        return {}
    if isinstance(params, Mapping):
        if not _is_by_function(signature, weights, params):
            return _renamed(params.items(), rename)
        return _of_functions(signature, params, rename)
    if not isinstance(params, Iterable) or hasattr(params, "__array__"):
        raise TypeError(
            "params= takes weights by name or in order, or a path; this is of type "
            f"{type(params).__name__}"
        )
    values = list(params)
    if values and all(_is_pair(value) for value in values):
        return _renamed(values, rename)
    lists = {(each.weights, each.fused) for each in signature.functions.values() if each.weights}
    if len(lists) > 1:
        raise ValueError(
            "the functions of the executable have different weights; pass them by name"
        )
    return _in_order(signature, weights, values, rename, "the executable")


def _is_pair(value: Any) -> bool:
    """Returns whether a value is a name with a value, as in ``named_parameters``."""
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str)


def _is_by_function(
    signature: Signature, weights: Collection[str], params: Mapping[Any, Any]
) -> bool:
    """Returns whether ``params`` lists each function's weights, as ``detach_params`` does."""
    return bool(params) and all(
        name in signature.functions and name not in weights and isinstance(values, list | tuple)
        for name, values in params.items()
    )


def _of_functions(
    signature: Signature, params: Mapping[str, Sequence[Any]], rename: Rename
) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for function, values in params.items():
        names = signature.functions[function].given_weights
        mine = _in_order(signature, names, values, rename, f'"{function}"')
        for name, value in mine.items():
            if name in given and not _equal(given[name], value):
                raise ValueError(
                    f'functions were given different values for the weight "{name}", which they '
                    "have in common"
                )
            given[name] = value
    return given


def _equal(left: Any, right: Any) -> bool:
    return left is right or np.array_equal(_numpy(left), _numpy(right))


def _numpy(value: Any) -> np.ndarray[Any, Any]:
    return np.asarray(value.numpy() if hasattr(value, "numpy") else value)


def _in_order(
    signature: Signature,
    weights: Collection[str],
    values: Sequence[Any],
    rename: Rename,
    where: str,
) -> dict[str, Any]:
    if rename is not None:
        raise TypeError("rename= needs weights by name, not in order")
    if len(values) != len(weights):
        if not _weights(signature):
            raise ValueError(_no_weights(signature))
        raise ValueError(
            f"{where} has {len(weights)} {'weight' if len(weights) == 1 else 'weights'} "
            f"({_listed(weights)}), {len(values)} {_are(values)} given"
        )
    return dict(zip(weights, values, strict=True))


def renamed_to(rename: Rename, name: str) -> Sequence[str]:
    """The names of weights that a name in ``params`` stands for: several if they are tied."""
    new = rename(name) if callable(rename) else (rename or {}).get(name, name)
    return [new] if isinstance(new, str) else new


def _renamed(params: Iterable[tuple[Any, Any]], rename: Rename) -> dict[str, Any]:
    given: dict[str, Any] = {}
    first: dict[str, str] = {}
    for name, value in params:
        text = str(name)
        for each in renamed_to(rename, text):
            if each in given:
                cause = "rename= calls" if rename is not None else "params= call"
                raise ValueError(f'{cause} both "{first[each]}" and "{text}" "{each}"')
            given[each] = value
            first[each] = text
    return given


def _known_by_exported_names(given: dict[str, Any], weights: Collection[str]) -> dict[str, Any]:
    """Values under the names of weights, where these are theirs as an exporter writes them.

    ``fc1.weight`` is ``p_fc1_weight`` to torch.export, and ``fc1_weight`` in TVMScript that
    ``relax.frontend.nn`` exported. What could be two weights keeps its name.
    """
    unknown = [name for name in given if name not in weights]
    missing = [name for name in weights if name not in given]
    wanted: dict[str, list[str]] = {}
    for name in missing:
        whole = plain(name)
        for key in {whole, _EXPORT_PREFIX.sub("", whole, count=1)} if unknown else ():
            wanted.setdefault(key, []).append(name)
    named: dict[str, list[str]] = {}
    for name in unknown:
        for weight in wanted.get(plain(name), ()):
            named.setdefault(weight, []).append(name)
    found = {
        names[0]: weight
        for weight, names in named.items()
        if len(names) == 1 and len(wanted[plain(names[0])]) == 1
    }
    return {found.get(name, name): value for name, value in given.items()}


def _array(name: str, value: Any) -> Any:
    """The array of a weight; that of a Parameter of ``relax.frontend.nn`` is its data."""
    if hasattr(value, "_expr") and hasattr(value, "data"):
        if value.data is None:
            raise ValueError(
                f'the parameter "{name}" of relax.frontend.nn has no data yet: set its .data to a '
                "tensor, or pass arrays by name"
            )
        return value.data
    return value


def _no_weights(signature: Signature) -> str:
    functions = ", ".join(
        f"{name}({_listed([param.name for param in function.params])})"
        for name, function in signature.functions.items()
    )
    return (
        "values were given for weights, but the executable has none: all parameters are inputs of "
        f"every call, {functions}. dx.annotate(..., inputs=[...]) states which are inputs, or the "
        "function's attribute num_input how many; the others are weights then"
    )


def _others(unknown: Sequence[str], missing: Sequence[str]) -> str:
    if not unknown:
        return ""
    example = next(iter(_nearest(missing, unknown)), (missing[0], unknown[0]))
    return (
        f"; other names were given: {_listed(unknown)}{_near(missing, unknown)}. rename= says "
        f'which is which: a function, or rename={{"{example[1]}": "{example[0]}", ...}}'
    )


def _near(names: Collection[str], known: Collection[str]) -> str:
    pairs = _nearest(names, known)
    text = ", ".join(f'"{near}" is like "{name}"' for name, near in pairs)
    return f" ({text})" if text else ""


def _nearest(names: Collection[str], known: Collection[str]) -> list[tuple[str, str]]:
    """Pairs of a name and the known one that is most like it; of few names."""
    return [
        (name, near)
        for name in islice(names, _NEAREST_IN_A_MESSAGE)
        for near in nearest(name, known, count=1)
    ]


def _counted(names: Sequence[str], of: int | None = None) -> str:
    kind = "weight" if len(names) == 1 else "weights"
    count = f" ({len(names)} of {of})" if of is not None and len(names) != of else ""
    return f"{kind} {_listed(names)}{count}"


def _listed(names: Collection[str]) -> str:
    shown = ", ".join(f'"{name}"' for name in islice(names, _NAMES_IN_A_MESSAGE))
    rest = len(names) - _NAMES_IN_A_MESSAGE
    return f"{shown} and {rest} more" if rest > 0 else shown


def _are(names: Sequence[Any]) -> str:
    return "was" if len(names) == 1 else "were"
