"""Lists the collectives of a lowered program with the bytes that each device sends."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from distir_ext.communication.calls import CalledCollective, read_collective
from distir_ext.mesh.mesh_axes import MeshAxes, NamedMesh
from distir_ext.mesh.notation import meshes
from distir_ext.native.collective_records import names, records
from distir_ext.native.executables import executable_module
from distir_ext.signature.signature_attr import has_signature, read_signature
from distir_ext.structure.circles import circles
from distir_ext.text.display import Printed
from distir_ext.text.size_text import size_text
from distir_ext.text.tracebacks import short_tracebacks

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
    """One collective of a function."""

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


SYMBOLIC_SIZE = 1024
"""Value of a symbolic size where redistributions are planned (``redistribute/steps.h``)."""


def collective_calls(mod: tvm.IRModule) -> dict[str, list[CollectiveCall]]:
    """The collectives of each function of a lowered module, in program order.

    Those of branches stand behind what comes before the ``If``; slices are left out.
    """
    return {
        name: [each for each in calls if isinstance(each, CollectiveCall)]
        for name, calls in communicating_calls(mod).items()
    }


def communicating_calls(mod: tvm.IRModule) -> dict[str, list[CollectiveCall | str]]:
    """Lists calls as :func:`collective_calls` does, with the names of called functions."""
    found = _FunctionCollectives(mod)
    return {
        str(name.name_hint): list(found.calls(str(name.name_hint)))
        for name, function in mod.functions_items()
        if isinstance(function, relax.Function)
    }


class _FunctionCollectives:
    """Collectives per function, found once per function however often it is called."""

    def __init__(self, mod: tvm.IRModule) -> None:
        self._functions = {gv.name_hint: function for gv, function in mod.functions.items()}
        self._meshes = MeshAxes(
            NamedMesh(each.shape, each.axis_names, each.device_ids) for each in meshes(mod)
        )
        self._found: dict[str, dict[CollectiveKey, _Tally]] = {}
        self._bindings: dict[str, list[Any]] = {}
        self._devices = self._devices_by_function(mod)

    def _devices_by_function(self, mod: tvm.IRModule) -> dict[str, list[int]]:
        """Returns the devices that run each function."""
        found: dict[str, set[int]] = {}
        programs = [
            program
            for function in read_signature(mod)["functions"].values()
            for program in function["programs"]
        ]
        pending = [(str(program["name"]), set(program["device_ids"])) for program in programs]
        while pending:
            name, devices = pending.pop()
            if devices <= found.get(name, set()):
                continue
            found.setdefault(name, set()).update(devices)
            if isinstance(self._functions.get(name), relax.Function):
                pending += [(callee, devices) for callee in _callees(self._bindings_of(name))]
        return {name: sorted(devices) for name, devices in found.items()}

    @cached_property
    def _loops(self) -> Collection[str]:
        """The functions that call themselves, maybe by others."""
        return circles(
            {
                name: set(_callees(self._bindings_of(name)))
                for name, function in self._functions.items()
                if isinstance(function, relax.Function)
            }
        )

    def of(self, name: str) -> Mapping[CollectiveKey, _Tally]:
        if name not in self._found:
            self._found[name] = {}  # of a loop one iteration counts
            function = self._functions.get(name)
            if function is None:
                raise ValueError(
                    f'the module has no function "{name}", which its signature has as a program'
                )
            if isinstance(function, relax.Function):
                self._found[name] = self._find(name)
        return self._found[name]

    def _find(self, name: str) -> dict[CollectiveKey, _Tally]:
        found: dict[CollectiveKey, _Tally] = {}
        is_loop = name in self._loops
        for each in self.calls(name):
            if isinstance(each, str):
                for key, tally in self.of(each).items():
                    key = replace(key, per_iteration=True) if is_loop else key
                    found.setdefault(key, _Tally()).add(tally.count, tally.tensors, tally.operators)
            elif each.key is not None:
                key = replace(each.key, per_iteration=is_loop)
                found.setdefault(key, _Tally()).add(1, each.tensors, each.operators)
        return found

    def calls(self, name: str) -> Iterator[CollectiveCall | str]:
        """Yields collectives and the names of called functions, in program order."""
        function = self._functions[name]
        assert isinstance(function, relax.Function)
        devices = self._devices.get(name)
        bindings = self._bindings_of(name)
        context = _Context(function, bindings)
        for binding in bindings:
            call = binding.value
            if not isinstance(call, relax.Call):
                continue
            if isinstance(call.op, tvm.ir.GlobalVar):
                yield str(call.op.name_hint)
            elif (called := read_collective(call)) is not None and called.record.sends:
                record = called.record
                moved = binding.var if called.sent is None else called.sent
                asks_before = record.reduces or not record.has_result
                operators = context.makers(moved) if asks_before else context.readers(binding.var)
                sized = _sized(called, binding.var.ty)
                key = self._key(called, sized, devices)
                yield CollectiveCall(
                    record.name,
                    key,
                    tuple(_names(moved)),
                    tuple(dict.fromkeys(operators)),
                    str(binding.var.name),
                    *_priced(called, sized, binding.var.ty),
                )

    def _bindings_of(self, name: str) -> list[Any]:
        """Returns the bindings of a function, those of branches after their ``If``."""
        if name not in self._bindings:
            self._bindings[name] = list(_bindings(self._functions[name].body))
        return self._bindings[name]

    def _key(
        self, called: CalledCollective, moved: Any, devices: Sequence[int] | None
    ) -> CollectiveKey | None:
        if called.record.members != "groups":
            return self._planned(called, moved, devices)
        size, unit = _tensor_bytes(moved)
        group = called.groups[0]
        sent = sent_in_group(called.record.name, len(group), size)
        return CollectiveKey(
            called.record.name, len(group), self._meshes.of_group(group), sent, unit
        )

    def _planned(
        self, called: CalledCollective, moved: Any, among: Sequence[int] | None
    ) -> CollectiveKey | None:
        local, unit = _tensor_bytes(moved)
        record = called.record
        devices, size = sent_by_plan(record.name, called.plan, among, local)
        if not devices:
            return None
        axes: tuple[str, ...] = ()
        if not record.is_side:
            axes_of = tvm_ffi.get_global_func(record.plan_function("Axes"))
            axes = self._meshes.of_move(partial(axes_of, called.plan))
        return CollectiveKey(record.name, devices, axes, size, unit if size else "")


def _sized(called: CalledCollective, given: Any) -> Any:
    """Returns the type of the value that a worker sends to all."""
    # The operand of a combination has room for the rows of all devices.
    if called.sent is None or called.record.name == names.combine_tokens:
        return given
    if not called.rows:
        return called.sent.ty
    return relax.TensorType((*called.rows, called.sent.ty.shape[1]), called.sent.ty.dtype)


def _priced(called: CalledCollective, moved: Any, given: Any) -> tuple[str, float]:
    """Groups or plan as JSON, and the bytes of what is sent, or of what a plan gives."""
    if called.record.members != "groups":
        return called.plan, estimated_bytes(*_tensor_bytes(given))
    groups = [list(group) for group in called.groups]
    return json.dumps(groups, separators=(",", ":")), estimated_bytes(*_tensor_bytes(moved))


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
    traffic = tvm_ffi.get_global_func(records()[kind].plan_function("Traffic"))
    devices, sent, block = map(int, traffic(plan, among))
    return devices, 0.0 if kind == names.recv or not devices else sent * size / block


def estimated_bytes(size: float, unit: str) -> float:
    """Bytes where each symbolic size of the unit counts as :data:`SYMBOLIC_SIZE`."""
    return size * SYMBOLIC_SIZE ** len(unit.split(" * ")) if unit else float(size)


class _Context:
    """Producers and readers of the variables of a function."""

    def __init__(self, function: relax.Function, bindings: Sequence[Any]) -> None:
        self._bindings = bindings
        self._returned = set(_variables(function.body.body))

    @cached_property
    def _made(self) -> Mapping[Any, Any]:
        """Values by the variables that they are bound to."""
        return {binding.var: binding.value for binding in self._bindings}

    @cached_property
    def _read(self) -> Mapping[Any, list[Any]]:
        """Readers by the variables that they read."""
        found: dict[Any, list[Any]] = {}
        for binding in self._bindings:
            for var in _variables(binding.value):
                found.setdefault(var, []).append(binding)
        return found

    def makers(self, value: Any) -> list[str]:
        """The operators that give a value, seen through tuples and other collectives."""
        while isinstance(value, relax.Var) and value in self._made:
            value = self._made[value]
            if isinstance(value, relax.TupleGetItem):
                value = value.tuple_value
            elif (called := read_collective(value)) is not None and called.sent is not None:
                value = called.sent
        if isinstance(value, relax.Tuple):
            return [name for field in value.fields for name in self.makers(field)]
        return [_operator(value)] if isinstance(value, relax.Call) else []

    def readers(self, var: Any) -> list[str]:
        """The operators that read a variable, seen through tuples and other collectives."""
        names = ["return"] if var in self._returned else []
        for binding in self._read.get(var, ()):
            value = binding.value
            if isinstance(value, relax.Call) and read_collective(value) is None:
                names.append(_operator(value))
            else:
                names += self.readers(binding.var)
        return names


def _operator(call: relax.Call) -> str:
    """The operator's name; of kernels, packed functions and functions of the module theirs."""
    callee = call.op
    if isinstance(callee, tvm.ir.Op) and callee.name.startswith(("relax.call_tir", "relax.call_")):
        callee = call.args[0] if call.args else callee
    if isinstance(callee, tvm.ir.GlobalVar):
        return str(callee.name_hint)
    return str(callee.global_symbol if isinstance(callee, relax.ExternFunc) else callee.name)


def _callees(bindings: Iterable[Any]) -> Iterator[str]:
    """The functions of the module that are called."""
    for binding in bindings:
        if isinstance(binding.value, relax.Call) and isinstance(binding.value.op, tvm.ir.GlobalVar):
            yield str(binding.value.op.name_hint)


def _bindings(body: relax.SeqExpr) -> Iterator[Any]:
    """Bindings of values in program order, those of branches behind their ``If``."""
    for block in body.blocks:
        for binding in block.bindings:
            if isinstance(binding, relax.VarBinding):
                yield binding
                if isinstance(binding.value, relax.If):
                    yield from _bindings(binding.value.true_branch)
                    yield from _bindings(binding.value.false_branch)


def _variables(value: Any) -> Iterator[Any]:
    if isinstance(value, relax.Var):
        yield value
    elif isinstance(value, relax.Call):
        for arg in value.args:
            yield from _variables(arg)
    elif isinstance(value, relax.Tuple):
        for field in value.fields:
            yield from _variables(field)
    elif isinstance(value, relax.TupleGetItem):
        yield from _variables(value.tuple_value)
    elif isinstance(value, relax.If):
        for part in (value.cond, value.true_branch.body, value.false_branch.body):
            yield from _variables(part)


def _names(value: Any) -> Iterator[str]:
    return (str(var.name) for var in _variables(value))


def _tensor_bytes(type_: Any) -> tuple[int, str]:
    """Bytes of a tensor, and what they are to be multiplied by: its symbolic sizes."""
    if isinstance(type_, relax.TupleType):
        sizes = [_tensor_bytes(field) for field in type_.fields]
        units = dict.fromkeys(unit for _, unit in sizes)
        if len(units) == 1:
            return sum(size for size, _ in sizes), next(iter(units))
        return 1, " + ".join(f"{size} * {unit}" if unit else str(size) for size, unit in sizes)
    size, symbols = 1, []
    if type_.dtype is None:
        symbols.append("(bytes of an element of unknown dtype)")
    else:
        size = max(int(tvm.DataType(str(type_.dtype)).bits), 8) // 8
    shape = type_.shape
    if not isinstance(shape, relax.ShapeExpr):
        return size, " * ".join([*symbols, "(elements of unknown shape)"])
    for dim in shape.values:
        if isinstance(dim, tvm.tirx.IntImm):
            size *= int(dim)
        else:
            text = size_text(dim)
            symbols.append(text if text.isidentifier() else f"({text})")
    return size, " * ".join(symbols)
