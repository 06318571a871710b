"""Writes modules as TVM's JSON, and reads untrusted JSON.

TVM reads it as a list of nodes that refer to each other by number, and trusts it: a circle of them,
and some of TVM's own types, end the process. What TVM gets from here has nodes that refer to
earlier ones only, of the types that a module is made of. None of these holds compiled code.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from functools import cache
from typing import Any

import tvm
import tvm_ffi

from distir_ext.params.param_dict import check_tensor
from distir_ext.text.files.json_file import read_json, require
from distir_ext.text.files.regular_file import MOST_INDEX_BYTES

MOST_BYTES = MOST_INDEX_BYTES
"""Most bytes of a module's text; longer ones are refused."""

_NAMESPACES = ("ir", "prim", "relax", "s_tir", "target", "tirx")
_VALUES = ("None", "bool", "int", "float", "ffi.String", "ffi.Bytes")
_LISTS = ("ffi.Array", "ffi.Map")
_TENSOR = "ffi.Tensor"
_OTHERS = ("ffi.Shape", "DataType", "Device")
# Nodes in nodes in nodes: TVM reads them by recursion.
_MOST_LEVELS = 5000


def write_module(mod: tvm.IRModule) -> bytes:
    """The text of a module.

    Raises:
        ValueError: It is too large, or has what is no part of a program, as compiled code.
    """
    try:
        text = str(tvm.ir.save_json(mod)).encode()
    except Exception as error:  # of many kinds
        raise ValueError(f"the module cannot be saved: {_reason(error)}") from error
    if len(text) > MOST_BYTES:
        raise ValueError(
            f"the module takes {len(text)} bytes, more than {MOST_BYTES}: its constants are part of"
            " it; make them parameters, which params= takes"
        )
    _check(text, "the module")
    return text


def read_module(text: bytes, where: str) -> tvm.IRModule:
    """The module of a text.

    Args:
        text: As :func:`write_module` gives it.
        where: The file, for messages.

    Raises:
        ValueError: It is none, or one that this version of TVM cannot read; names the file.
    """
    _check(text, where)
    try:
        mod = tvm.ir.load_json(text.decode())
    except Exception as error:  # of many kinds
        raise ValueError(f"{where} cannot be read: {_reason(error)}") from error
    require(isinstance(mod, tvm.IRModule), f"{where} has no module, but a {type(mod).__name__}")
    return mod


def _reason(error: Exception) -> str:
    """Returns the message of an error of TVM, without places in TVM's sources."""
    return f"{type(error).__name__}: {str(error).strip().rpartition(chr(10))[2]}"


def _check(text: bytes, where: str) -> None:
    graph = read_json(text, where)
    nodes = graph.get("nodes")
    require(isinstance(nodes, list), f"{where} is damaged: it has no list of nodes")
    assert isinstance(nodes, list)
    levels: list[int] = []
    for number, node in enumerate(nodes):
        what = f"{where} is damaged: node {number}"
        kind = node.get("type") if isinstance(node, dict) else None
        require(isinstance(kind, str), f"{what} has no type")
        assert isinstance(kind, str)
        level = 0
        for other in _references(kind, node.get("data"), what):
            require(0 <= other < number, f"{what} refers to node {other}, which is not before it")
            level = max(level, levels[other] + 1)
        require(level < _MOST_LEVELS, f"{what} has more than {_MOST_LEVELS} levels below it")
        levels.append(level)


def _references(kind: str, data: Any, what: str) -> Iterator[int]:
    """The nodes that a node refers to."""
    if kind in _LISTS:
        require(isinstance(data, list), f"{what} has no list")
        require(all(type(each) is int for each in data), f"{what} has another list")
        yield from data
    elif kind == _TENSOR:
        require(isinstance(data, str), f"{what} has no tensor")
        try:
            check_tensor(base64.b64decode(data, validate=True), what)
        except binascii.Error as error:
            raise ValueError(f"{what} has no tensor: {error}") from error
    elif kind.partition(".")[0] in _NAMESPACES:
        plain = _plain_fields(kind)
        require(plain is not None, f"{what} is a {kind[:80]!r}, which this version of TVM lacks")
        assert plain is not None
        if isinstance(data, dict):  # some types are a text
            others = {name: value for name, value in data.items() if name not in plain}
            require(all(type(each) is int for each in others.values()), f"{what} has another field")
            yield from others.values()
    elif kind not in (*_VALUES, *_OTHERS):
        raise ValueError(f"{what} is a {kind[:80]!r}, which is no part of a program")


@cache
def _plain_fields(kind: str) -> frozenset[str] | None:
    """The fields of a type that are no nodes; None of a type that TVM lacks."""
    found = tvm_ffi.get_global_func("distir.ir.PlainFields")(kind)
    return None if found is None else frozenset(map(str, found))
