"""Reads the native library's records of collectives and of operators of experts.

``src/abi/collective.cc`` is the one list of their names. Code asks a record, or writes
``names.all_reduce`` for a certain one; no other module has a collective's name as a string.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import tvm_ffi

_BUILTIN = "distir.runtime."
_ON_TENSORS = "relax.ccl."
_ON_DTENSORS = "relax.dist."


@dataclass(frozen=True)
class CollectiveRecord:
    """One collective, or one operator of experts."""

    name: str
    """``"all_gather"``; its operators are ``R.dist.all_gather`` and ``R.ccl.all_gather``."""

    family: str
    """``"redistribution"`` between two shardings of a tensor, ``"side"`` of a transfer,
    ``"segments"``, ``"fused"`` with what is computed of its result, ``"rows"`` of tokens to their
    experts or back, ``"kernel"`` on rows of experts, which sends nothing."""

    sends: str
    """Bytes that a device sends, of b bytes of its argument and n members of its group, as
    ``"(n-1) b / n"``; ``"plan"`` if its plan says it; empty if it sends nothing."""

    members: str
    """Form in which a call states the devices that take part: ``"groups"``, a plan of a
    ``"transfer"`` or of ``"segments"``; empty if it does not communicate."""

    timed_as: str
    """The collective whose measured times are its own."""

    builtin: str
    """The builtin that compiled programs call, without ``distir.runtime.``; empty if lowering
    removes it."""

    only_backend: str
    """The only communication backend that has the builtin; empty if all have it."""

    optimization: str
    """The optimisation that writes it; empty if programs state it or lowering writes it."""

    arguments: tuple[str, ...]
    """The tensors that it takes."""

    is_on_dtensors: bool
    """True if it is an operator ``R.dist``."""

    states_target: bool
    """True if ``R.dist`` states a device mesh and a placement behind the arguments."""

    is_on_tensors: bool
    """True if it is an operator ``R.ccl``."""

    has_result: bool
    reduces: bool
    rows: str
    """Source of the number of rows that it moves: ``"slots"`` or ``"pairs"``; empty for the shape
    of its argument."""

    text: str
    """Documentation of the operators."""

    manual_text: str
    """Documentation of ``R.dist.manual_<name>``; empty if there is no such operator."""

    @property
    def parameters(self) -> tuple[str, ...]:
        """Parameters of ``R.dist`` in TVMScript that have a position; attributes follow."""
        target = ("device_mesh", "placement") if self.states_target else ()
        return (*self.arguments, *target)

    @property
    def is_timed(self) -> bool:
        """True if a cluster may state times of the collective."""
        return bool(self.sends) and self.timed_as == self.name

    @property
    def is_side(self) -> bool:
        """True if it is one side of a transfer to other devices."""
        return self.family == "side"


class _Names:
    """Names of collectives as attributes, which must be those of a record."""

    def __getattr__(self, name: str) -> str:
        if name not in records():
            raise AttributeError(f"there is no collective {name}")
        return name


names = _Names()
"""``names.all_reduce`` is ``"all_reduce"``."""


@cache
def records() -> Mapping[str, CollectiveRecord]:
    """All records by name, in the order of ``src/abi/collective.h``."""
    found = {}
    for row in tvm_ffi.get_global_func("distir.abi.CollectiveRecords")():
        fields = {str(key): value for key, value in row.items()}
        fields = {
            key: value if isinstance(value, bool | int) else _text(value)
            for key, value in fields.items()
        }
        found[str(row["name"])] = CollectiveRecord(**fields)
    return found


def _text(value: object) -> object:
    if isinstance(value, tvm_ffi.Array):
        return tuple(map(str, value))
    return str(value)


def find_record(callee: str) -> CollectiveRecord | None:
    """The record of an operator ``relax.dist`` or ``relax.ccl``, or of a builtin; else None."""
    for prefix in (_ON_DTENSORS, _ON_TENSORS, _BUILTIN):
        if callee.startswith(prefix):
            return records().get(callee.removeprefix(prefix))
    return None


def on_tensors(name: str) -> str:
    """The operator of ``relax.ccl`` by the collective's name."""
    return _ON_TENSORS + name


def on_dtensors(name: str) -> str:
    """The operator of ``relax.dist`` by the collective's name."""
    return _ON_DTENSORS + name


def builtin(name: str) -> str:
    """The global function of the runtime by the collective's name."""
    return _BUILTIN + records()[name].builtin
