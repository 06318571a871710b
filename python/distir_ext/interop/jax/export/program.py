"""Exports Relax modules to StableHLO with Shardy's shardings and explicit collectives.

The program that LowerDistIR gives, on shards, is traced as the body of ``jax.shard_map``:

    def main(x: R.Tensor((4, 8))):                %0 = sdy.manual_computation(%x)
        lv = R.matmul(x, w)                  ->     %1 = stablehlo.dot_general %x_shard, %w_shard
        lv1 = R.ccl.all_reduce(lv, [[0, 1]])        %2 = stablehlo.all_reduce(%1) ...
"""

from __future__ import annotations

import inspect
import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import tvm
from jax import export
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from tvm import relax

from distir_ext.annotate.annotations import relax_function
from distir_ext.interop.jax.export.collectives import COLLECTIVES, Devices, run_collective
from distir_ext.interop.jax.export.loops import loop_of
from distir_ext.interop.jax.export.recursion import Recursions, calls_of
from distir_ext.interop.jax.export.relax_operators import OPERATORS
from distir_ext.interop.jax.stablehlo import numpy_dtype
from distir_ext.native.collective_records import records
from distir_ext.native.modules import check_module
from distir_ext.native.steps import phase
from distir_ext.passes import transform
from distir_ext.pipelines.lowering import run_pipeline
from distir_ext.pipelines.pipeline import package_pipeline
from distir_ext.signature.signature import FunctionSpec, parse_signature
from distir_ext.signature.signature_attr import signature_for_executable
from distir_ext.signature.specs import TensorSpec
from distir_ext.text.errors.spelling import counted, did_you_mean
from distir_ext.text.errors.tracebacks import short_tracebacks
from distir_ext.text.printable import TextLines

_PART = re.compile(r"(.+):\((\d+)\)(\d+)")


@short_tracebacks
def to_exported(
    mod: tvm.IRModule, func: str = "main", *, platforms: Sequence[str] = ("cpu",)
) -> export.Exported:
    """Exports a function as a program of JAX, which runs on as many devices as its mesh has.

    ``jax.jit(exported.call)(*arrays)`` runs it, under a JAX mesh of the same shape. Collectives are
    those of the module, no others: the body is one ``jax.shard_map`` over all axes.

    Args:
        mod: A module in any phase from annotated to lowered. Of one that is legalized the
            collectives stay as they are; others go through all of :func:`distir_ext.lower`.
        func: The function.
        platforms: Where the program may run, as ``jax.export.export`` takes them: "cpu", "cuda",
            "rocm", "tpu".

    Returns:
        The program. Its arguments are the function's parameters in order, global arrays, and are
        called like them where JAX keeps names, in locations; its result
        is an array or a tuple of arrays. Where shards do not divide an array, it is
        padded and cropped in the program.

    Raises:
        ValueError: Operators have no counterpart in JAX (the message lists all), a function calls
            itself in another way than a loop, shapes are not static, or the function runs on
            several meshes; or as :func:`distir_ext.lower`.
        TypeError: ``mod`` is no module.
    """
    check_module(mod)
    relax_function(mod, func)
    lowered = _lowered(mod)
    signature = parse_signature(json.dumps(signature_for_executable(lowered)))
    spec = signature.functions[func]
    if len(spec.programs) != 1:
        raise ValueError(
            f"{func} runs as {len(spec.programs)} programs, on several meshes; a program of JAX "
            "runs on one"
        )
    (program,) = spec.programs
    _check_operators(lowered, program.name)
    tensors = _tensors(func, spec)
    axes = _MeshAxes.of(func, tensors)
    body = _Body(lowered, Devices(axes.device_ids, axes.names))
    params = [tensors[index] for index in program.params]
    results = [tensors[len(spec.params) + index] for index in program.results]
    is_tuple = isinstance(lowered[program.name].ret_ty, relax.TupleType)

    def local(*arrays: Any) -> Any:
        made = body.run(lowered[program.name], list(arrays))
        return tuple(jax.tree.leaves(made))

    mesh = axes.mesh()
    sharded = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=tuple(axes.spec(each) for each in params),
        out_specs=tuple(axes.spec(each) for each in results),
        check_vma=False,
    )

    def program_of(*arrays: Any) -> Any:
        padded = [_padded(array, each) for array, each in zip(arrays, params, strict=True)]
        made = sharded(*padded)
        cropped = [_cropped(array, each) for array, each in zip(made, results, strict=True)]
        return tuple(cropped) if is_tuple else cropped[0]

    program_of.__name__ = func
    names = [spec.params[index].name for index in program.params]
    signature_of_names = inspect.Signature([_Parameter(name) for name in names])
    program_of.__signature__ = signature_of_names  # type: ignore[attr-defined]
    with jax.enable_x64(True):
        given = [
            jax.ShapeDtypeStruct(
                each.shape, numpy_dtype(each.dtype), sharding=axes.sharding(mesh, each)
            )
            for each in params
        ]
        out = tuple(axes.sharding(mesh, each) for each in results)
        jitted = jax.jit(program_of, out_shardings=out if is_tuple else out[0])
        return export.export(jitted, platforms=list(platforms))(*given)


@short_tracebacks
def to_stablehlo(
    mod: tvm.IRModule, func: str = "main", *, platforms: Sequence[str] = ("cpu",)
) -> str:
    """Exports a program like :func:`to_exported`, and returns the text of its StableHLO.

    Meshes are ``sdy.mesh``, arguments and results have ``sdy.sharding``, and what runs on shards
    is one ``sdy.manual_computation`` with ``stablehlo.all_reduce``, ``all_gather``,
    ``reduce_scatter``, ``all_to_all`` and ``collective_permute``.

    Args:
        mod: As for :func:`to_exported`.
        func: The function.
        platforms: As for :func:`to_exported`. Of several, the first argument of the text's ``main``
            is the number of the one that it runs on.

    Raises:
        TypeError: As for :func:`to_exported`.
        ValueError: As for :func:`to_exported`.
    """
    return str(to_exported(mod, func, platforms=platforms).mlir_module())


class _Parameter(inspect.Parameter):
    """A parameter as JAX asks a function for it, of any name: ``params.layers.0.w``."""

    def __init__(self, name: str) -> None:
        super().__init__("array", inspect.Parameter.POSITIONAL_ONLY)
        self._called = name

    @property
    def name(self) -> str:
        return self._called


def _lowered(mod: tvm.IRModule) -> tvm.IRModule:
    reached = phase(mod)
    if reached == "runtime":
        raise ValueError(
            "the module calls the runtime already; export it before LowerCCL, as it is legalized "
            "or lowered"
        )
    if reached == "legalized":
        return transform.LowerDistIR()(mod)
    if reached == "lowered":
        return mod
    # JAX has no collectives of sizes that are computed.
    of_tokens = {each.optimization for each in records().values() if each.family == "rows"}
    options = {"disable": tuple(sorted(of_tokens))}
    return run_pipeline(mod, None, package_pipeline(), "lowered", options)


def _tensors(func: str, spec: FunctionSpec) -> list[TensorSpec]:
    """The tensors that go in, then those that come out."""
    named = [(f"parameter {each.name}", each.spec) for each in spec.params]
    named += [(f"result {i}", leaf) for i, leaf in enumerate(spec.result_leaves)]
    for name, tensor in named:
        if not isinstance(tensor, TensorSpec):
            raise ValueError(f"{name} of {func} is no tensor; JAX takes and returns arrays")
        if not all(isinstance(size, int) for size in tensor.shape):
            raise ValueError(f"{name} of {func} has the shape {tensor.shape}, which is not static")
    return [tensor for _, tensor in named if isinstance(tensor, TensorSpec)]


@dataclass(frozen=True)
class _MeshAxes:
    """The axes of a JAX mesh, cut so that every sharding is stated by whole axes.

    Attributes:
        axes: By the name of an axis of the module's mesh, its parts: names and sizes, major first.
        device_ids: In the order of the mesh.
    """

    axes: dict[str, list[tuple[str, int]]]
    device_ids: tuple[int, ...]

    @staticmethod
    def of(func: str, tensors: Sequence[TensorSpec]) -> _MeshAxes:
        """The axes that these tensors are sharded by.

        Raises:
            ValueError: They are on several meshes, or on one without names.
        """
        meshes = {each.named_mesh for each in tensors if each.named_mesh is not None}
        if len(meshes) != 1:
            raise ValueError(
                f"the tensors of {func} are on {counted(len(meshes), 'mesh', 'meshes')} with "
                "named axes; a program of JAX runs on one"
            )
        (mesh,) = meshes
        cuts = {name: {1, size} for name, size in zip(mesh.axis_names, mesh.shape, strict=True)}
        for tensor in tensors:
            for name in (name for names in tensor.dims for name in names):
                if part := _PART.fullmatch(name):
                    before, size = int(part[2]), int(part[3])
                    cuts[part[1]] |= {before, before * size}
        axes = {}
        for name, points in cuts.items():
            ordered = sorted(points)
            sizes = [high // low for low, high in itertools.pairwise(ordered)] or [1]
            names = [name] if len(sizes) == 1 else [f"{name}_{i}" for i in range(len(sizes))]
            axes[name] = list(zip(names, sizes, strict=True))
        return _MeshAxes(axes, tuple(mesh.device_ids))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all axes."""
        return tuple(name for parts in self.axes.values() for name, _ in parts)

    def mesh(self) -> AbstractMesh:
        """The mesh, of no devices in particular."""
        sizes = tuple(size for parts in self.axes.values() for _, size in parts)
        return AbstractMesh(sizes, self.names, axis_types=(AxisType.Auto,) * len(sizes))

    def spec(self, tensor: TensorSpec) -> P:
        """Returns the partition spec of a tensor."""
        return P(*(tuple(self._whole(names)) or None for names in tensor.dims))

    def _whole(self, names: Sequence[str]) -> Iterator[str]:
        for name in names:
            part = _PART.fullmatch(name)
            before = 1
            for axis, size in self.axes[part[1] if part else name]:
                low, high = (int(part[2]), int(part[2]) * int(part[3])) if part else (1, math.inf)
                if low <= before and before * size <= high:
                    yield axis
                before *= size

    def sharding(self, mesh: AbstractMesh, tensor: TensorSpec) -> NamedSharding | None:
        """The sharding of a global array; None where shards do not divide it."""
        if tensor.uneven(_sizes(tensor)):
            return None
        return NamedSharding(mesh, self.spec(tensor))


def _sizes(tensor: TensorSpec) -> list[int]:
    return [int(size) for size in tensor.shape]


def _padded(array: Any, tensor: TensorSpec) -> Any:
    local = tensor.local_shape(_sizes(tensor))
    widths = [
        (0, size * parts - extent)
        for size, parts, extent in zip(local, tensor.parts, array.shape, strict=True)
    ]
    return jnp.pad(array, widths) if any(high for _, high in widths) else array


def _cropped(array: Any, tensor: TensorSpec) -> Any:
    return array[tuple(slice(size) for size in _sizes(tensor))]


# ---- the body


def _check_operators(mod: tvm.IRModule, start: str) -> None:
    """Raises an error that lists all operators without a counterpart in JAX."""
    problems: dict[str, None] = {}
    done: set[str] = set()
    recursions = Recursions(mod)

    def visit(name: str, recursion: frozenset[str]) -> None:
        if name not in recursion:
            recursion = recursions.of(name)
            if recursion and loop_of(mod, name, recursion) is None:
                problems[f"{name}, which calls itself in another way than a loop"] = None
        if name in done:
            return
        done.add(name)
        for call in calls_of(mod[name]):
            if isinstance(call.op, tvm.ir.GlobalVar):
                if isinstance(mod[call.op], relax.Function):
                    visit(call.op.name_hint, recursion)
                    continue
                problems[f"{call.op.name_hint}, which is a kernel (in {name})"] = None
                continue
            op = getattr(call.op, "name", type(call.op).__name__)
            plain = str(op).removeprefix("relax.")
            if op not in COLLECTIVES and plain not in OPERATORS:
                hint = did_you_mean(plain, OPERATORS)
                problems[f"R.{plain} (in {name}){hint}"] = None

    visit(start, frozenset())
    if problems:
        head = f"{counted(len(problems), 'operator')} of the module cannot be exported:"
        raise ValueError(TextLines([head, *(f"  {each}" for each in problems)]))


@dataclass
class _Body:
    """Computes Relax functions on JAX's arrays.

    Attributes:
        mod: The lowered module.
        devices: Those that run it.
    """

    mod: tvm.IRModule
    devices: Devices
    _jitted: dict[str, Callable[..., Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._recursions = Recursions(self.mod)

    def run(self, function: relax.Function, arguments: Sequence[Any]) -> Any:
        """Computes the results of a function for these arguments."""
        return self._sequence(function.body, dict(zip(function.params, arguments, strict=True)))

    def _sequence(self, body: relax.SeqExpr, values: dict[Any, Any]) -> Any:
        for block in body.blocks:
            for binding in block.bindings:
                if not isinstance(binding, relax.VarBinding):
                    raise ValueError(f"{type(binding).__name__} has no counterpart in JAX")
                values[binding.var] = self._value(binding.value, values)
        return self._value(body.body, values)

    def _value(self, expr: Any, values: dict[Any, Any]) -> Any:
        if isinstance(expr, relax.Var):
            return values[expr]
        if isinstance(expr, tvm.ir.GenericConst):
            return jnp.asarray(expr.value.numpy())
        if isinstance(expr, relax.Tuple):
            return tuple(self._value(each, values) for each in expr.fields)
        if isinstance(expr, relax.TupleGetItem):
            return self._value(expr.tuple_value, values)[expr.index]
        if isinstance(expr, relax.ShapeExpr):
            return tuple(int(size) for size in expr.values)
        if isinstance(expr, relax.Call):
            return self._call(expr, values)
        if isinstance(expr, relax.If):
            return self._if(expr, values)
        if isinstance(expr, relax.SeqExpr):
            return self._sequence(expr, dict(values))
        if hasattr(expr, "value"):  # numbers of TIR
            return expr.value
        raise ValueError(f"{type(expr).__name__} has no counterpart in JAX")

    def _call(self, call: relax.Call, values: dict[Any, Any]) -> Any:
        arguments = [self._value(each, values) for each in call.args]
        if isinstance(call.op, tvm.ir.GlobalVar):
            return self._function(call.op)(*arguments)
        name = str(call.op.name)
        if name in COLLECTIVES:
            return run_collective(self.devices, name, arguments[0], call.attrs)
        made = OPERATORS[name.removeprefix("relax.")](call.attrs, *arguments)
        return _of_type(name, made, call.ty)

    def _function(self, symbol: tvm.ir.GlobalVar) -> Callable[..., Any]:
        """A private function, which is traced once for all of its calls."""
        if symbol.name_hint not in self._jitted:
            function = self.mod[symbol]
            recursion = self._recursions.of(symbol.name_hint)
            loop = loop_of(self.mod, symbol.name_hint, recursion) if recursion else None

            def called(*arguments: Any) -> Any:
                if loop is not None:
                    return loop(self._value, arguments)
                return self.run(function, list(arguments))

            called.__name__ = symbol.name_hint
            self._jitted[symbol.name_hint] = jax.jit(called)
        return self._jitted[symbol.name_hint]

    def _if(self, expr: relax.If, values: dict[Any, Any]) -> Any:
        return jax.lax.cond(
            self._value(expr.cond, values),
            lambda: self._sequence(expr.true_branch, dict(values)),
            lambda: self._sequence(expr.false_branch, dict(values)),
        )


def _of_type(name: str, made: Any, kind: relax.Type) -> Any:
    """A value with the dtype that its type has."""
    if isinstance(kind, relax.TupleType):
        return tuple(_of_type(name, *pair) for pair in zip(made, kind.fields, strict=True))
    made = jnp.asarray(made).astype(numpy_dtype(str(kind.dtype)))
    if made.shape != tuple(int(size) for size in kind.shape.values):
        raise ValueError(
            f"R.{name.removeprefix('relax.')} gives {kind} in Relax, but the shape {made.shape} "
            "in JAX"
        )
    return made
