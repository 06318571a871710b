"""Marks the parameters of a function with shardings, by one plan of patterns on their names.

The plan maps regular expressions to one entry per tensor dimension. On a 2x4 mesh with the axes
"dp" and "tp", the plan ``{"x": ("dp", None), r".*up_proj.*": (None, "tp")}`` turns

    def main(x: R.Tensor((8, 64)), up_proj: R.Tensor((64, 256))):
        with R.dataflow(): ...

into

    def main(x: R.Tensor((8, 64)), up_proj: R.Tensor((64, 256))):
        x_1 = R.dist.annotate_sharding(x, device_mesh="mesh[0]", placement="S[0], R")
        up_proj_1 = R.dist.annotate_sharding(up_proj, device_mesh="mesh[0]", placement="R, S[1]")
        with R.dataflow(): ...                  # as before, on x_1 and up_proj_1

Parameters stay Tensor-typed: PropagateSharding gives them their DTensor types.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import tvm
from tvm import relax
from tvm.relax.distributed import DeviceMesh, DTensorType, Placement

from distir_ext.mesh import DimSharding, Mesh
from distir_ext.notation import mesh_axes, with_mesh_axes

Dims: TypeAlias = Sequence[DimSharding]
"""One entry per tensor dimension: a mesh axis, several (major to minor), or None."""

Plan: TypeAlias = Mapping[str, Dims | tuple[Mesh, Dims | None] | None]
"""From a pattern on parameter names to dims, to dims on another mesh, or to None: replicated."""

_NAMES_IN_A_MESSAGE = 12


def annotate(mod: tvm.IRModule, mesh: Mesh, plan: Plan, func: str = "main") -> tvm.IRModule:
    """Inserts ``dist.annotate_sharding`` for the parameters of a function that a plan names.

    A pattern must match the whole name (``re.fullmatch``), so a part of a name needs ``.*`` around
    it. The first pattern of the plan that matches a name decides. Fields of a tuple parameter
    ``weights`` have the names ``weights.0``, ``weights.1``, and so on for tuples in tuples.
    Parameters that no pattern matches are left to propagation.

    Args:
        mod: The module; it is not changed.
        mesh: The mesh that dims without a mesh of their own refer to.
        plan: From pattern to dims: a tuple with one entry per tensor dimension, each the name of a
            mesh axis, a tuple of names (major to minor), or None. None instead of dims replicates
            over the whole mesh. A pair ``(other_mesh, dims)`` places on another mesh.
        func: The name of the function.

    Returns:
        The annotated module. Meshes that are used are in its global infos under "mesh", those that
        were there already first and in their order.

    Raises:
        ValueError: The function does not exist; a pattern is not a regular expression, matches no
            parameter or only parameters that are not tensors; dims do not have one entry per
            dimension, name an axis that the mesh lacks, or name one twice; or a static dimension
            has fewer elements than shards.
        TypeError: The mesh, the plan or dims have a wrong type.
    """
    if not isinstance(mesh, Mesh):
        raise TypeError(f"the mesh to annotate with is a {type(mesh).__name__}, not a Mesh")
    function = relax_function(mod, func)
    leaves = [leaf for param in function.params for leaf in _leaves(param.name, param.ty)]
    chosen = _match(_compile(plan), leaves, func)

    meshes = MeshTable(mod)
    marks: dict[str, _Mark] = {}
    for leaf in leaves:
        if leaf.name not in chosen:
            continue
        other_mesh, dims = split_mesh(plan[chosen[leaf.name]], mesh)
        placement = checked_placement(f"parameter {leaf.name}", other_mesh, dims, leaf.type)
        marks[leaf.name] = _Mark(meshes.add(other_mesh), placement)
    if not marks:
        return mod

    result = meshes.store(mod.clone())
    result.update_func(result.get_global_var(func), _insert(function, marks))
    return result


def AnnotateSharding(  # noqa: N802 - passes are named as TVM names its own
    mesh: Mesh, plan: Plan, func: str = "main"
) -> tvm.transform.Pass:
    """:func:`annotate` as a pass, for ``tvm.transform.Sequential``."""

    def run(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        return annotate(mod, mesh, plan, func)

    return tvm.transform.module_pass(run, opt_level=0, name="AnnotateSharding")


class MeshTable:
    """The device meshes in a module's global infos, where TVMScript refers to them by index.

    The printer finds a mesh by object identity, so a mesh that is equal to a known one has to be
    replaced by the known object wherever it is used.
    """

    def __init__(self, mod: tvm.IRModule) -> None:
        infos = mod.global_infos
        self._meshes: list[DeviceMesh] = list(infos["mesh"]) if "mesh" in infos else []
        self._known = len(self._meshes)
        self._axes = mesh_axes(mod)
        self._known_axes = list(self._axes)

    def add(self, mesh: Mesh | DeviceMesh) -> DeviceMesh:
        """The entry for a mesh: one with its shape and devices if there is one, else its own.

        Raises:
            ValueError: The module has other names for the axes of this mesh.
        """
        device_mesh, names = (
            (mesh.device_mesh, mesh.axis_names) if isinstance(mesh, Mesh) else (mesh, ())
        )
        for index, known in enumerate(self._meshes):
            if _same_devices(known, device_mesh):
                self._name(index, names)
                return known
        self._meshes.append(device_mesh)
        self._axes.append(names)
        return device_mesh

    def _name(self, index: int, names: tuple[str, ...]) -> None:
        known = self._axes[index]
        if known and names and known != names:
            raise ValueError(
                f"the axes of one mesh have two names: the module says {known}, and the mesh of "
                f"the same shape and devices that is given now says {names}"
            )
        self._axes[index] = known or names

    def store(self, mod: tvm.IRModule) -> tvm.IRModule:
        """The module with the table in it; the same one if the table has not changed."""
        if len(self._meshes) > self._known:
            mod = mod.clone()
            mod.update_global_info("mesh", self._meshes)
        is_new = any(self._axes) and self._axes != self._known_axes
        return with_mesh_axes(mod, self._axes) if is_new else mod


def relax_function(mod: tvm.IRModule, func: str) -> relax.Function:
    """The Relax function of this name.

    Raises:
        ValueError: There is none; names those that exist.
    """
    names = sorted(
        var.name_hint for var, base in mod.functions.items() if isinstance(base, relax.Function)
    )
    if func not in names:
        raise ValueError(
            f"the module has no Relax function named {func!r}; "
            f"it has {', '.join(names) if names else 'none'}"
        )
    return mod[func]


def split_mesh(entry: Any, default: Mesh) -> tuple[Mesh, Dims | None]:
    """Takes a plan's entry apart: ``dims`` or ``(mesh, dims)``."""
    if isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[0], Mesh):
        return entry[0], entry[1]
    return default, entry


def checked_placement(entity: str, mesh: Mesh, dims: Dims | None, tensor: Any) -> Placement:
    """The placement that dims mean for a tensor of this type.

    Args:
        entity: What is placed, for messages: "parameter w1".
        mesh: The mesh whose axes dims name.
        dims: One entry per tensor dimension, or None for replicated.
        tensor: The ``relax.TensorType`` of what is placed.

    Raises:
        ValueError: See :func:`annotate`.
        TypeError: Dims are neither a tuple or list of names nor None.
    """
    if not isinstance(tensor, relax.TensorType):
        raise ValueError(
            f"{entity} is not a tensor but has type {tensor}{_sharded_already(tensor)}"
        )
    if dims is None:
        return mesh.placement(*[None] * max(tensor.ndim, 0))
    if isinstance(dims, str) or not isinstance(dims, Sequence):
        raise TypeError(
            f"{entity}: dims are {dims!r}, not a tuple with one entry per tensor dimension"
        )
    if tensor.ndim < 0:
        raise ValueError(f"{entity} has an unknown number of dimensions, so it can only be None")
    if len(dims) != tensor.ndim:
        raise ValueError(
            f"{entity} has {_count(tensor.ndim, 'dimension')}, but the plan's {tuple(dims)!r} has "
            f"{_count(len(dims), 'entry', 'entries')}"
        )
    sizes = dict(zip(mesh.axis_names, mesh.shape, strict=True))
    used: set[str] = set()
    for dimension, axes in enumerate(dims):
        shards = 1
        for axis in _axis_names(entity, axes):
            if axis not in sizes:
                raise ValueError(
                    f"{entity} dimension {dimension}: the mesh has no axis {axis!r}; "
                    f"its axes are {', '.join(mesh.axis_names)}"
                )
            if axis in used:
                raise ValueError(
                    f"{entity} dimension {dimension}: axis {axis!r} already shards this tensor; "
                    "an axis can be used once per tensor"
                )
            used.add(axis)
            shards *= sizes[axis]
        size = _static_size(tensor, dimension)
        if size and shards > size:
            names = ", ".join(repr(name) for name in _axis_names(entity, axes))
            raise ValueError(
                f"{entity} dimension {dimension} of size {size} has fewer elements than the "
                f"{shards} shards of mesh axis {names}"
            )
    try:
        return mesh.placement(*dims)
    except ValueError as error:
        raise ValueError(f"{entity}: {error}") from error


@dataclass(frozen=True)
class _Leaf:
    """A parameter, or a field of a tuple parameter, that is not itself a tuple."""

    name: str
    type: Any


@dataclass(frozen=True)
class _Mark:
    """What one annotation says."""

    device_mesh: DeviceMesh
    placement: Placement


def _leaves(name: str, type_: Any) -> Iterator[_Leaf]:
    if isinstance(type_, relax.TupleType):
        for index, field in enumerate(type_.fields):
            yield from _leaves(f"{name}.{index}", field)
    else:
        yield _Leaf(name, type_)


def _compile(plan: Plan) -> dict[str, re.Pattern[str]]:
    if not isinstance(plan, Mapping):
        raise TypeError(f"the plan is a {type(plan).__name__}, not a mapping from patterns to dims")
    patterns = {}
    for text in plan:
        try:
            patterns[text] = re.compile(text)
        except re.error as error:
            raise ValueError(f"pattern {text!r} is not a regular expression: {error}") from error
    return patterns


def _match(
    patterns: Mapping[str, re.Pattern[str]], leaves: Sequence[_Leaf], func: str
) -> dict[str, str]:
    """From the name of each tensor that a pattern matches to the first such pattern."""
    chosen: dict[str, str] = {}
    for text, pattern in patterns.items():
        matched = [leaf for leaf in leaves if pattern.fullmatch(leaf.name)]
        if not matched:
            raise ValueError(
                f"pattern {text!r} matches no parameter of function {func}, which has "
                f"{_shorten([leaf.name for leaf in leaves])}; a pattern must match a whole name"
            )
        tensors = [leaf for leaf in matched if isinstance(leaf.type, relax.TensorType)]
        if not tensors:
            raise ValueError(
                f"pattern {text!r} matches no tensor: parameter {matched[0].name} has type "
                f"{matched[0].type}"
                f"{_sharded_already(matched[0].type)}"
            )
        if all(leaf.name in chosen for leaf in tensors):
            earlier = sorted({chosen[leaf.name] for leaf in tensors})
            warnings.warn(
                f"pattern {text!r} has no effect: earlier patterns match the same parameters: "
                f"{_shorten([repr(name) for name in earlier])}",
                stacklevel=3,
            )
        for leaf in tensors:
            chosen.setdefault(leaf.name, text)
    return chosen


def _insert(function: relax.Function, marks: Mapping[str, _Mark]) -> relax.Function:
    # The old parameter becomes the variable that holds the annotated value, so the body needs no
    # rewriting: the cost is that of the annotations, whatever the size of the function.
    builder = relax.BlockBuilder()
    params: list[relax.Var] = []
    bindings: list[relax.Binding] = []

    def annotated(name: str, value: relax.Var) -> relax.Expr:
        if isinstance(value.ty, relax.TupleType):
            fields = []
            for index in range(len(value.ty.fields)):
                field = bind(f"{value.name}_{index}", relax.TupleGetItem(value, index))
                rebuilt = annotated(f"{name}.{index}", field)
                fields.append(field if rebuilt is field else bind(field.name, rebuilt))
            return relax.Tuple(fields)
        if name not in marks:
            return value
        mark = marks[name]
        return relax.op.distributed.annotate_sharding(value, mark.device_mesh, mark.placement)

    def bind(name: str, value: relax.Expr) -> relax.Var:
        value = builder.normalize(value)
        var = relax.Var(name, value.ty)
        bindings.append(relax.VarBinding(var, value))
        return var

    for param in function.params:
        if all(leaf.name not in marks for leaf in _leaves(param.name, param.ty)):
            params.append(param)
            continue
        params.append(relax.Var(param.name, param.ty))
        value = builder.normalize(annotated(param.name, params[-1]))
        bindings.append(relax.VarBinding(param, value))

    body = function.body
    blocks = list(body.blocks)
    # Adjacent plain blocks print as one, so that the text would not parse back to the same module.
    if blocks and not isinstance(blocks[0], relax.DataflowBlock):
        bindings.extend(blocks.pop(0).bindings)
    body = relax.SeqExpr([relax.BindingBlock(bindings), *blocks], body.body)
    return relax.Function(
        params,
        builder.normalize(body),
        function.ret_ty,
        function.is_pure,
        function.attrs,
        function.span,
    )


def _same_devices(left: DeviceMesh, right: DeviceMesh) -> bool:
    return list(left.shape) == list(right.shape) and [int(i) for i in left.device_ids] == [
        int(i) for i in right.device_ids
    ]


def _axis_names(entity: str, axes: Any) -> tuple[str, ...]:
    names = () if axes is None else (axes,) if isinstance(axes, str) else axes
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise TypeError(
            f"{entity}: {axes!r} is neither the name of a mesh axis, nor a tuple of names, nor None"
        )
    return tuple(names)


def _static_size(tensor: relax.TensorType, dimension: int) -> int | None:
    if not isinstance(tensor.shape, relax.ShapeExpr):
        return None
    size = tensor.shape.values[dimension]
    return int(size) if isinstance(size, tvm.tirx.IntImm) else None


def _sharded_already(type_: Any) -> str:
    return "; it has a sharding already" if isinstance(type_, DTensorType) else ""


def _shorten(names: Iterable[str]) -> str:
    listed = list(names)
    rest = len(listed) - _NAMES_IN_A_MESSAGE
    shown = ", ".join(listed[:_NAMES_IN_A_MESSAGE]) or "none"
    return f"{shown} and {rest} more" if rest > 0 else shown


def _count(number: int, singular: str, plural: str | None = None) -> str:
    return f"{number} {singular if number == 1 else plural or singular + 's'}"
