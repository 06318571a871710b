"""Reads calls of collectives, as operators of ``R.ccl`` or as calls of the runtime."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, sym

from distir_ext.native.collective_records import (
    CollectiveRecord,
    record_on_tensors,
    records,
)

_BUILTIN = "distir.runtime."
_CHOICES = 3  # of what exchanges of rows take: x, the mask, groups, choices


@dataclass(frozen=True)
class CalledCollective:
    """One call."""

    record: CollectiveRecord
    """Of the operator of ``R.ccl``, or of the builtin: permutes are transfers there."""

    sent: Any
    """The first tensor that it is given; None of a receive, which is given none."""

    groups: Sequence[Sequence[int]]
    """Device ids; none where there is a plan."""

    plan: str
    """As JSON; empty where there are groups."""

    rows: tuple[Any, ...] = ()
    """Of exchanges of slots or of pairs, the rows that a worker has or asks for, its own included,
    with as many choices as the operator says, as sizes whose product they are: ``(2, n)``, if the
    number of tokens is symbolic. Empty of other collectives."""


def read_collective(value: Any) -> CalledCollective | None:
    """Reads a call of a collective or a slice; None for any other value."""
    if not isinstance(value, relax.Call):
        return None
    callee = value.op
    record = record_on_tensors(callee.name) if isinstance(callee, tvm.ir.Op) else None
    if record is not None:
        attrs = value.attrs
        groups = (
            [[int(device) for device in group] for group in attrs["groups"]]
            if "groups" in attrs
            else []
        )
        return CalledCollective(
            record,
            value.args[0] if value.args else None,
            groups,
            str(attrs["plan"]) if "plan" in attrs else "",
            _rows(record, value.args[1], attrs["choices"], groups) if record.rows else (),
        )
    name, args = _builtin(value)
    record = records().get(name)
    if record is None or record.family == "kernel":  # it computes, or it is about memory
        return None
    texts = [str(arg.value) for arg in args if isinstance(arg, tvm.ir.StringImm)]
    tensors = [arg for arg in args if isinstance(arg.ty, relax.TensorType)]
    # Groups and plans come before the kind of a reduction; groups are a list.
    text = texts[0] if texts else ""
    is_list = text.startswith("[")
    groups = json.loads(text) if is_list else []
    return CalledCollective(
        record,
        tensors[0] if tensors else None,
        groups,
        "" if is_list else text,
        _rows(record, tensors[1], args[_CHOICES], groups) if record.rows else (),
    )


def _rows(
    record: CollectiveRecord, mask: Any, choices: Any, groups: Sequence[Sequence[int]]
) -> tuple[Any, ...]:
    tokens, places = mask.ty.shape
    if record.rows == "slots":
        return (min(int(tokens) * int(choices), int(places)),)
    # Of the tokens of all devices, those that have a choice on one of them; no more than there are.
    members = len(groups[0])
    chosen = min(int(choices), members)
    if isinstance(tokens, tvm.tirx.IntImm):
        return (int(tokens) * chosen // members,)
    rows = sym.Analyzer().simplify(tokens * chosen // members)
    if isinstance(rows, tvm.tirx.Mul) and isinstance(rows.b, tvm.tirx.IntImm):
        return int(rows.b), rows.a
    return (rows,)


def _builtin(call: relax.Call) -> tuple[str, Sequence[Any]]:
    """Returns the builtin that a call invokes, and its arguments; nothing for other calls."""
    callee, is_operator = call.op, isinstance(call.op, tvm.ir.Op)
    if is_operator and callee.name == "relax.call_dps_packed":
        callee = call.args[0]
    if not isinstance(callee, relax.ExternFunc):
        return "", ()
    name = str(callee.global_symbol)
    if not name.startswith(_BUILTIN):
        return "", ()
    return name.removeprefix(_BUILTIN), list(call.args[1].fields if is_operator else call.args)
