"""Reads the signature that LowerDistIR leaves in a module, into the form that executables carry.

``src/lower/signature.h`` says how it is written: short, since it is printed with the module. What
the rest of a module says already is filled in here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.distributed import DeviceMesh, DTensorType, Placement

from distir_ext._signature import SIGNATURE_VERSION

SIGNATURE_ATTR = "distir.signature"

# Devices, or layers; a list in few characters can state any number of them.
_MOST_NUMBERS = 1 << 20

# What reading raises of what is not written like this.
_DAMAGED = (
    LookupError,
    TypeError,
    AttributeError,
    OverflowError,
    RecursionError,
    tvm.error.InternalError,
)

_TENSOR = re.compile(
    r"(?P<dtype>\w*)\[(?P<shape>.*?)\] (?:mesh\[(?P<mesh>\d+)\] )?"
    r"(?P<placement>(?:(?:R|S\[\d+\])(?:, )?)*)"
)


def has_signature(mod: tvm.IRModule) -> bool:
    """Whether LowerDistIR has been run."""
    return mod.attrs is not None and SIGNATURE_ATTR in mod.attrs


def read_signature(mod: tvm.IRModule) -> dict[str, Any]:
    """The signature of a lowered module, as :func:`distir_ext._signature.parse_signature` says.

    Raises:
        ValueError: It was written by another version of this package, or is damaged.
    """
    try:
        return _read(mod)
    except _DAMAGED as error:
        raise ValueError(
            f"the module's attribute {SIGNATURE_ATTR} is damaged ({error}); lower the module again"
        ) from error


def _read(mod: tvm.IRModule) -> dict[str, Any]:
    attr = mod.attrs[SIGNATURE_ATTR]
    version = tvm_ffi.get_global_func("distir.lower.SignatureVersion")()
    if isinstance(attr, str) or int(attr["version"]) != version:
        raise ValueError(
            "the module was lowered by another version of this package; lower it again"
        )
    meshes = [
        ([int(size) for size in shape], _integers(devices)) for shape, devices in attr["meshes"]
    ]
    types = _Types(mod, meshes)
    functions = {}
    for name, written in sorted(attr["functions"].items()):
        function: dict[str, Any] = {}
        if "num_input" in written:
            function["num_input"] = int(written["num_input"])
        params = (entry.rsplit(": ", 1) for entry in _unfolded(written["params"]))
        function["params"] = [{"name": name, "type": types.read(text)} for name, text in params]
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
        functions[str(name)] = function
    devices = {
        device
        for function in functions.values()
        for program in function["programs"]
        for device in program["device_ids"]
    }
    return {
        "version": SIGNATURE_VERSION,
        "device_ids": sorted(devices),
        "meshes": [{"shape": shape, "device_ids": ids} for shape, ids in meshes],
        "functions": functions,
    }


def _integers(text: str) -> list[int]:
    """``"0..3, 7"`` as integers."""
    found: list[int] = []
    for item in filter(None, str(text).split(", ")):
        first, _, last = item.partition("..")
        numbers = range(int(first), int(last or first) + 1)
        if len(found) + len(numbers) > _MOST_NUMBERS:
            raise ValueError(f"the module's signature has {item} where it lists numbers")
        found.extend(numbers)
    return found


def _unfolded(entries: Sequence[Any]) -> Iterator[str]:
    """Every entry, with those of layers one by one."""
    for entry in entries:
        if isinstance(entry, str):
            yield str(entry)
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


class _Types:
    """Reads types, each text once."""

    def __init__(self, mod: tvm.IRModule, meshes: Sequence[tuple[list[int], list[int]]]) -> None:
        # All devices of a module may be no mesh of it; all that is on them is replicated.
        notation = tvm_ffi.get_global_func("distir.op.Notation")
        of_module, of_none = notation(mod), notation(None)
        known = {
            (tuple(mesh.shape), tuple(mesh.device_ids)): mesh
            for mesh in reversed(mod.global_infos.get("mesh", ()))
            if isinstance(mesh, DeviceMesh)
        }
        self._meshes: list[DeviceMesh] = []
        self._notations: list[Any] = []
        for shape, ids in meshes:
            same = known.get((tuple(shape), tuple(ids)))
            self._meshes.append(DeviceMesh(tuple(shape), list(ids)) if same is None else same)
            self._notations.append(of_none if same is None else of_module)
        self._read: dict[str, dict[str, Any]] = {}

    def read(self, text: str) -> dict[str, Any]:
        """A type as the signature of an executable states it."""
        if text not in self._read:
            self._read[text] = self._parse(text)
        return self._read[text]

    def _parse(self, text: str) -> dict[str, Any]:
        if text in ("shape", "value"):
            return {"kind": text}
        if text.startswith("("):
            return {
                "kind": "tuple",
                "fields": [self.read(each) for each in _split(text[1:-1], "; ")],
            }
        found = _TENSOR.fullmatch(text)
        if found is None:
            raise ValueError(f"the module's signature has a type that is none: {text!r}")
        shape = [
            int(dim) if dim.lstrip("-").isdigit() else dim for dim in _split(found["shape"], ", ")
        ]
        entries = found["placement"].split(", ") if found["placement"] else []
        mesh = int(found["mesh"] or 0)
        placement = Placement.from_text(found["placement"])
        local = relax.TensorType(ndim=len(shape), dtype=found["dtype"] or None)
        type_ = DTensorType(local, self._meshes[mesh], placement)
        return {
            "kind": "tensor",
            "shape": shape,
            "dtype": found["dtype"],
            "mesh": mesh,
            "placement": [-1 if each == "R" else int(each[2:-1]) for each in entries],
            "sharding": str(self._notations[mesh](type_, True)),
        }
