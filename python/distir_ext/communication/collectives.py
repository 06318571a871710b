"""Lists the collectives of a lowered program with the bytes that each device sends."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, SupportsIndex, overload

import tvm
import tvm_ffi

from distir_ext.mesh.notation import meshes
from distir_ext.native.executables import executable_module
from distir_ext.signature.signature_attr import has_signature, read_signature
from distir_ext.structure.circles import circles
from distir_ext.text.display import Printed
from distir_ext.text.errors.tracebacks import short_tracebacks

_SHOWN = 4  # tensors and operators


@dataclass(frozen=True)
class Collective:
    """One kind of collective in one per-worker function; equal ones are counted together."""

    kind: str
    """The operators name under ``R.ccl``, such as ``all_reduce``, ``send`` or ``recv``."""

    group_size: int
    """Devices per group; for transfers and segment exchanges, the devices that take part."""

    bytes_per_device: int | None
    """Bytes that a device sends, for transfers and segment exchanges the one that sends most.

    None if symbolic; then :attr:`bytes_per_unit` says it."""

    count: int
    """Number of runs in one call of the function, calls of other functions included; of a loop
    (:attr:`per_iteration`), in one iteration."""

    function: str
    """The per-worker entry function."""

    axes: tuple[str, ...] = ()
    """The mesh axes that it communicates over; none for transfers between meshes."""

    bytes_per_unit: float | None = None
    """Of a tensor of symbolic sizes, what :attr:`unit` times this is the bytes that a device sends.

    None if all sizes are static."""

    unit: str = ""
    """The product of the symbolic sizes, such as ``"n"`` or ``"batch * (n // 4)"``; else empty."""

    tensors: tuple[str, ...] = ()
    """The variables that are sent, in program order; of a receive, those that it gives."""

    operators: tuple[str, ...] = ()
    """The operators because of which it is there. Their partial results are reduced, or sent to
    another mesh; for other kinds they read the result (``"return"`` if it is returned)."""

    per_iteration: bool = False
    """True in a loop, which is a function that calls itself. Only the run knows how often it runs,
    so one iteration is counted; ``Session.statistics`` counts them all."""

    def __repr__(self) -> str:
        fields = {name: value for name, value in vars(self).items() if value not in ((), None, "")}
        listed = (f"{name}={_shortened(value)}" for name, value in fields.items())
        return f"Collective({', '.join(listed)})"


def _shortened(value: Any) -> str:
    """The text of a field, of a long list only the first of it."""
    if not isinstance(value, tuple) or len(value) <= _SHOWN:
        return repr(value)
    shown = ", ".join(map(repr, value[:_SHOWN]))
    return f"({shown}, .. {len(value) - _SHOWN} more)"


class Collectives(Printed, list[Collective]):
    """Collectives of a program; prints as a table, in which equal ones share a row."""

    def __str__(self) -> str:
        return super().__str__() if self else "no collectives"

    @overload
    def __getitem__(self, index: SupportsIndex, /) -> Collective: ...

    @overload
    def __getitem__(self, index: slice, /) -> Collectives: ...

    def __getitem__(self, index: SupportsIndex | slice, /) -> Collective | Collectives:
        """One of them, or some, which print as a table, too."""
        found = super().__getitem__(index)
        return Collectives(found) if isinstance(found, list) else found


@short_tracebacks
def collectives(mod: Any) -> list[Collective]:
    """The collectives of every per-worker entry function of a module or an executable.

    What sends nothing, as slices, is left out. Bytes follow the ring algorithms.

    Args:
        mod: A module after LowerDistIR; or an executable of ``dx.build``, also one that was
            exported and loaded, or the path of what was exported. Behind LowerCCL permutes and
            exchanges are ``transfer``, since they are one to the runtime; such a transfer has axes.

    Returns:
        In the order of first occurrence, entry functions by name; a list that prints as a table.

    Raises:
        ValueError: the module has not been lowered; the executable is not one of ``dx.build``, or
            is for devices that this process cannot load.
        TypeError: it is neither a module nor an executable.
    """
    if not isinstance(mod, tvm.IRModule):
        return _of_executable(mod)
    if not has_signature(mod):
        raise ValueError(
            "the module has no SPMD programs; run distir_ext.transform.LowerDistIR first"
        )
    signature = read_signature(mod)
    entries = sorted(
        program["name"]
        for function in signature["functions"].values()
        for program in function["programs"]
    )
    found = _FunctionCollectives(mod)
    return Collectives(
        Collective(
            key.kind,
            key.group_size,
            None if key.unit else math.ceil(key.bytes),
            tally.count,
            entry,
            key.axes,
            key.bytes if key.unit else None,
            key.unit,
            tuple(tally.tensors),
            tuple(tally.operators),
            key.per_iteration,
        )
        for entry in entries
        for key, tally in found.of(entry).items()
    )


def to_data(found: Sequence[Collective]) -> list[dict[str, Any]]:
    """Converts collectives to data for JSON, for the signature of an executable."""
    return [dict(vars(each)) for each in found]


def _of_executable(exe: Any) -> list[Collective]:
    text = getattr(exe, "distir_signature", None)
    if text is None:
        text = _signature_of(executable_module(exe))
    listed = json.loads(str(text)).get("collectives")
    if listed is None:
        raise ValueError("the executable does not list its collectives; build it again by dx.build")
    return Collectives(_from_data(each) for each in listed)


def _from_data(data: Mapping[str, Any]) -> Collective:
    fields: Any = {
        name: tuple(value) if isinstance(value, list) else value for name, value in data.items()
    }
    return Collective(**fields)


def _signature_of(module: tvm.runtime.Module) -> Any:
    try:
        machine = tvm_ffi.get_global_func("distir.runtime.load_virtual_machine")(module, None)
    except RuntimeError as error:
        raise ValueError(f"the executable cannot be loaded in this process: {error}") from error
    if not machine.implements_function("distir_signature"):
        raise ValueError("the executable has no distir_signature; build it with dx.build")
    return machine["distir_signature"]()


@dataclass(frozen=True)
class CollectiveKey:
    """Key that equal collectives share."""

    kind: str
    group_size: int
    axes: tuple[str, ...]
    bytes: float
    unit: str
    per_iteration: bool = False


class _Tally:
    """Equal collectives: how many, of what, why."""

    def __init__(self) -> None:
        self.count = 0
        self.tensors: dict[str, None] = {}
        self.operators: dict[str, None] = {}

    def add(self, count: int, tensors: Iterable[str], operators: Iterable[str]) -> None:
        self.count += count
        self.tensors.update(dict.fromkeys(tensors))
        self.operators.update(dict.fromkeys(operators))


@dataclass(frozen=True)
class CollectiveCall:
    """One collective of a function, as ``src/analysis/collective_calls.h`` lists it."""

    kind: str
    key: CollectiveKey | None
    """None where nothing is sent."""
    tensors: tuple[str, ...]
    operators: tuple[str, ...]
    variable: str
    """The variable that the result is bound to."""
    how: str
    """The groups or the plan of who sends to whom, as JSON."""
    priced_bytes: float
    """Bytes for ``distir.analysis.CollectiveSeconds``: of the argument for groups, of the result
    for a plan. A symbolic size counts as :data:`SYMBOLIC_SIZE`."""

    @staticmethod
    def of(data: Mapping[str, Any]) -> CollectiveCall:
        """Reads what the native library gives."""
        kind, devices = str(data["kind"]), int(data["devices"])
        axes, tensors, operators = (
            tuple(map(str, data[key])) for key in ("axes", "tensors", "operators")
        )
        key = CollectiveKey(kind, devices, axes, float(data["bytes"]), str(data["unit"]))
        return CollectiveCall(
            kind,
            key if devices else None,
            tensors,
            operators,
            str(data["variable"]),
            str(data["how"]),
            estimated_bytes(float(data["priced_bytes"]), str(data["priced_unit"])),
        )


SYMBOLIC_SIZE = 1024
"""Value of a symbolic size where redistributions are planned (``redistribute/steps.h``)."""


def communicating_calls(mod: tvm.IRModule) -> dict[str, list[CollectiveCall | str]]:
    """The collectives of each function of a lowered module, with the names of called functions.

    They are in program order, those of branches behind what comes before the ``If``; slices are
    left out.
    """
    listed = tvm_ffi.get_global_func("distir.analysis.CollectiveCalls")(mod, *_devices_of(mod))
    return {
        str(name): [str(row) if isinstance(row, str) else CollectiveCall.of(row) for row in rows]
        for name, rows in listed
    }


def with_notes(mod: tvm.IRModule) -> tvm.IRModule:
    """A copy of a lowered module in which each collective carries what is known of it.

    ``dx.transform.LowerCCL`` and TVM's passes keep it, and ``distir.analysis.Steps`` gives it back.
    """
    return tvm_ffi.get_global_func("distir.analysis.NoteCollectives")(mod, *_devices_of(mod))


def _devices_of(mod: tvm.IRModule) -> tuple[list[Any], list[Any]]:
    """The programs of a module with their devices, and its meshes."""
    programs = [
        [str(program["name"]), [int(device) for device in program["device_ids"]]]
        for function in read_signature(mod)["functions"].values()
        for program in function["programs"]
    ]
    named = [
        [list(each.shape), list(each.axis_names), list(each.device_ids)] for each in meshes(mod)
    ]
    return programs, named


class _FunctionCollectives:
    """Collectives per function, found once per function however often it is called."""

    def __init__(self, mod: tvm.IRModule) -> None:
        self._names = {str(gv.name_hint) for gv in mod.functions}
        self._calls = communicating_calls(mod)
        self._found: dict[str, dict[CollectiveKey, _Tally]] = {}
        self._loops: Collection[str] = circles(
            {
                name: {each for each in calls if isinstance(each, str)}
                for name, calls in self._calls.items()
            }
        )

    def of(self, name: str) -> Mapping[CollectiveKey, _Tally]:
        if name not in self._found:
            self._found[name] = {}  # of a loop one iteration counts
            if name not in self._names:
                raise ValueError(
                    f'the module has no function "{name}", which its signature has as a program'
                )
            self._found[name] = self._find(name)
        return self._found[name]

    def _find(self, name: str) -> dict[CollectiveKey, _Tally]:
        found: dict[CollectiveKey, _Tally] = {}
        is_loop = name in self._loops
        for each in self._calls.get(name, ()):
            if isinstance(each, str):
                for key, tally in self.of(each).items():
                    key = replace(key, per_iteration=True) if is_loop else key
                    found.setdefault(key, _Tally()).add(tally.count, tally.tensors, tally.operators)
            elif each.key is not None:
                key = replace(each.key, per_iteration=is_loop)
                found.setdefault(key, _Tally()).add(1, each.tensors, each.operators)
        return found


def sent_in_group(kind: str, group_size: int, size: float) -> float:
    """Returns the bytes that a device sends in a grouped collective, for an argument's bytes."""
    return float(tvm_ffi.get_global_func("distir.cost.BytesSent")(kind, group_size, float(size)))


def sent_by_plan(
    kind: str, plan: str, among: Sequence[int] | None, size: float
) -> tuple[int, float]:
    """Returns the number of devices in a transfer plan, and the bytes that the busiest one sends.

    Args:
        kind: Of the collective; who receives sends nothing.
        plan: As JSON.
        among: The devices that run it, of which the busiest is sought; None for all.
        size: Bytes of its argument on a device.
    """
    devices, sent = tvm_ffi.get_global_func("distir.abi.SentByPlan")(
        kind, plan, None if among is None else list(among), float(size)
    )
    return int(devices), float(sent)


def estimated_bytes(size: float, unit: str) -> float:
    """Bytes where each symbolic size of the unit counts as :data:`SYMBOLIC_SIZE`."""
    return size * SYMBOLIC_SIZE ** len(unit.split(" * ")) if unit else float(size)
