"""Reads the serialised form of a signature; nothing else parses it.

LowerDistIR writes it (``src/lower/signature.h`` says how, with an example): short, since it is
printed with the module. ``dx.build`` puts the same into the executable, as JSON, with what a module
says elsewhere::

    {"version": 9, "meshes": [[[2], "0..1"]], "functions": {..},   as in the module
     "shardings": {"float32[8] S[0]": "('dp',)"},  of types, in the words of users
     "dims": {"float32[8] S[0]": [["dp"]]},        the same as lists of names
     "named_meshes": [[[2], ["dp"], [0, 1]]],      for each mesh that which has these axes, null if
                                                   there is none; then the module's others
     "device_type": 1,                             the host, if it is absent
     "partitions": [[[0, 1]]],                     groups that communicate; none, if it is absent
     "collectives": [{"kind": "all_reduce", ..}]}  see ``analysis.collectives``; may be absent
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import tvm_ffi

# Devices, or layers; a list in few characters can state any number of them.
_MOST_NUMBERS = 1 << 20

# What reading raises of what is not written like this.
DAMAGED = (LookupError, TypeError, AttributeError, OverflowError, RecursionError)

_QUOTED_NAME = re.compile(r'"((?:[A-Za-z0-9_.]|%[0-9A-F]{2})*)"')
_DTYPE = re.compile(r"bool|(?:u?int|b?float)[0-9]\w*")
_SHAPE = re.compile(r"shape\[(.*)\]")
_TENSOR = re.compile(
    r"(?P<dtype>\w*)\[(?P<shape>.*?)\] (?:mesh\[(?P<mesh>\d+)\] )?"
    r"(?P<placement>(?:(?:R|S\[\d+\])(?:, )?)*)"
)


def version() -> int:
    """The version of the form; the native library has it."""
    return int(tvm_ffi.get_global_func("distir.lower.SignatureVersion")())


@dataclass(frozen=True)
class Read:
    """A signature in full.

    Attributes:
        signature: Plain data::

                {"device_ids": [0, 1],
                 "meshes": [{"shape": [2], "device_ids": [0, 1],
                             "named": [[2], ["x"], [0, 1]]}],   sizes, names of axes, devices
                 "functions": {"main": {
                    "num_input": 1,                     the other parameters are weights
                    "fused": {"w": [1, "w_0", "w_1"]},  a dimension, and blocks along it
                    "dividing": {"n": "relax.foo"},     sizes that have to divide, and why; or
                                                        expressions of them, as in "shape"
                    "donated": [0],                     inputs whose memory results may take
                    "params": [{"name": "x", "type": TYPE}, ...],
                    "result": TYPE,
                    "programs": [{"name": "main", "device_ids": [0, 1], "params": [0],
                                  "results": [0], "sizes": [], "virtual_stage": 0}]}}}

                TYPE: {"kind": "tensor", "shape": [8, "n"], "dtype": "float32",
                       "mesh": 0, "placement": [0], "dims": [["x"], []], "sharding": ""}
                    | {"kind": "tuple", "fields": [TYPE, ...]}
                    | {"kind": "shape", "dims": [8, "n"]}   null for a dimension of unknown size,
                                                            or in place of all of them
                    | {"kind": "number", "dtype": "int64"}
                    | {"kind": "value"}         anything else, such as a cache

                Sizes are numbers, names, or expressions of Python, in which a name that is no word
                is text: ``'("2%20%2A%20n" + 1) // 2'``.

                Of a dimension cut in whole heads, "shards" has what a device holds of it: [0, 352],
                or an expression: ``["(n + 1) // 2 * 4"]``.

        tensors: The types of its tensors by their texts. Whoever reads a signature states their
            ``"sharding"`` and ``"dims"``, in the words of users, and the ``"named"`` meshes that
            these are of; where they are not stated, axes are called x, y, z, w.
    """

    signature: dict[str, Any]
    tensors: dict[str, dict[str, Any]]


def read(written: Mapping[str, Any]) -> Read:
    """A signature of this :func:`version` in full.

    Raises:
        ValueError: It is not written so, or one of :data:`DAMAGED`.
    """
    types = _Types()
    functions = {
        name: _function(each, types) for name, each in sorted(written["functions"].items())
    }
    devices = {
        device
        for function in functions.values()
        for program in function["programs"]
        for device in program["device_ids"]
    }
    signature = {
        "device_ids": sorted(devices),
        "meshes": [
            _mesh([int(size) for size in shape], _integers(ids)) for shape, ids in written["meshes"]
        ],
        "functions": functions,
    }
    return Read(signature, types.tensors)


def _mesh(shape: list[int], ids: list[int]) -> dict[str, Any]:
    names = [_axis_name(axis) for axis in range(len(shape))]
    return {"shape": shape, "device_ids": ids, "named": [shape, names, ids]}


def _axis_name(axis: int) -> str:
    return str(tvm_ffi.get_global_func("distir.mesh.AxisName")(axis))


def _function(written: Mapping[str, Any], types: _Types) -> dict[str, Any]:
    params = []
    for entry in _unfolded(written["params"]):
        name, separator, text = entry.rpartition(": ")
        if not separator:
            raise ValueError(f"the signature has a parameter without a type: {entry!r}")
        params.append({"name": name, "type": types.read(text)})
    function: dict[str, Any] = {
        # A function that does not say which parameters are weights has none.
        "num_input": int(written.get("num_input", len(params))),
        "fused": {
            str(weight): [int(entry[0]), *(str(each) for each in entry[1:])]
            for weight, entry in sorted(written.get("fused", {}).items())
        },
        "dividing": {
            str(_size(size)): str(reason)
            for size, reason in sorted(written.get("dividing", {}).items())
        },
        "donated": _integers(written.get("donated", "")),
        "params": params,
    }
    function["result"] = types.read(str(written["result"]))
    function["programs"] = [
        {
            "name": str(program["name"]),
            "device_ids": _integers(program["devices"]),
            "params": _integers(program["params"]),
            "results": _integers(program["results"]),
            "sizes": [str(size) for size in program.get("sizes", ())],
            "virtual_stage": int(program.get("virtual_stage", 0)),
        }
        for program in written["programs"]
    ]
    return function


def _integers(text: str) -> list[int]:
    """``"0..3, 7"`` as integers."""
    found: list[int] = []
    for item in filter(None, str(text).split(", ")):
        first, _, last = item.partition("..")
        numbers = range(int(first), int(last or first) + 1)
        if len(found) + len(numbers) > _MOST_NUMBERS:
            raise ValueError(f"the signature has {item} where it lists numbers")
        found.extend(numbers)
    return found


def _unfolded(entries: Sequence[Any]) -> Iterator[str]:
    """Every entry, with those of layers one by one."""
    for entry in entries:
        if isinstance(entry, str):
            yield entry
            continue
        numbers, *patterns = (str(each) for each in entry)
        for number in _integers(numbers):
            for pattern in patterns:
                yield pattern.replace("{}", str(number))


def _split(text: str, separator: str) -> list[str]:
    """Parts of a text, which is not cut inside of brackets."""
    parts, depth, begin = [], 0, 0
    for at, char in enumerate(text):
        depth += (char in "([") - (char in ")]")
        if depth == 0 and text.startswith(separator, at):
            parts.append(text[begin:at])
            begin = at + len(separator)
    return [*parts, text[begin:]] if text else []


def _sizes(text: str) -> tuple[list[int | str], list[int | str]]:
    """``"8, n, 1024:352"``: sizes, and what a shard has of each where it is stated, else 0."""
    shape: list[int | str] = []
    shards: list[int | str] = []
    for dim in _split(text, ", "):
        size, colon, shard = dim.partition(":")
        shape.append(_size(size))
        shards.append(_size(shard) if colon else 0)
        # Of a symbolic size, what a shard has is an expression.
        if colon and (not size or not shard or type(shape[-1]) is not type(shards[-1])):
            raise ValueError(f"the signature has a malformed size: {dim!r}")
    return shape, shards


def _size(text: str) -> int | str:
    """A number, a name, which is in quotes if it is no word, or an expression."""
    if text.lstrip("-").isdigit():
        return int(text)
    name = _QUOTED_NAME.fullmatch(text)
    return unquote(name[1]) if name else text


class _Types:
    """Reads types, each text once."""

    def __init__(self) -> None:
        self.tensors: dict[str, dict[str, Any]] = {}
        self._read: dict[str, dict[str, Any]] = {}

    def read(self, text: str) -> dict[str, Any]:
        if text not in self._read:
            self._read[text] = self._parse(text)
        return self._read[text]

    def _parse(self, text: str) -> dict[str, Any]:
        if text == "value":
            return {"kind": text}
        if text == "shape":
            return {"kind": text, "dims": None}
        if stated := _SHAPE.fullmatch(text):
            dims = [None if each == "?" else _size(each) for each in _split(stated[1], ", ")]
            return {"kind": "shape", "dims": dims}
        if _DTYPE.fullmatch(text):
            return {"kind": "number", "dtype": text}
        if text.startswith("("):
            fields = [self.read(each) for each in _split(text[1:-1], "; ")]
            return {"kind": "tuple", "fields": fields}
        found = _TENSOR.fullmatch(text)
        if found is None:
            raise ValueError(f"the signature has a type that is none: {text!r}")
        entries = found["placement"].split(", ") if found["placement"] else []
        shape, shards = _sizes(found["shape"])
        placement = [-1 if each == "R" else int(each[2:-1]) for each in entries]
        self.tensors[text] = {
            "kind": "tensor",
            "shape": shape,
            "dtype": found["dtype"],
            "mesh": int(found["mesh"] or 0),
            "placement": placement,
            "dims": [
                [_axis_name(axis) for axis, at in enumerate(placement) if at == dim]
                for dim in range(len(shape))
            ],
            "sharding": "",
        }
        if any(shards):
            self.tensors[text]["shards"] = shards
        return self.tensors[text]
