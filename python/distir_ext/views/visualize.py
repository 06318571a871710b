"""Draws the blocks of an array, with the devices that hold each block."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tvm
from tvm import relax
from tvm.relax.distributed import DTensorType

from distir_ext.annotate.annotations import checked_mark, relax_function
from distir_ext.explain.provenance import propagated
from distir_ext.mesh.device_text import device_text
from distir_ext.mesh.frameworks import read_sharding
from distir_ext.mesh.mesh import as_mesh
from distir_ext.mesh.notation import Notation
from distir_ext.session.sharded_array import ShardedArray
from distir_ext.signature.dtensor_shardings import sharding_of_dtensor
from distir_ext.signature.sharding import Sharding, sharding_of
from distir_ext.structure.annotated_function import (
    parameter_sites,
    result_sites,
    variable_sites,
)
from distir_ext.text.errors.spelling import did_you_mean
from distir_ext.text.errors.tracebacks import short_tracebacks
from distir_ext.views.drawing.sharding_picture import ShardingPicture

__all__ = ["Sharding", "ShardingPicture", "visualize"]

_NAMES_IN_A_MESSAGE = 12


@short_tracebacks
def visualize(
    what: ShardedArray | Sharding | tvm.IRModule | Sequence[int],
    where: Any = None,
    dims: Any = None,
    *,
    func: str | None = None,
    devices: int | Iterable[int] | None = None,
) -> ShardingPicture:
    """Draws which device has which block of an array.

    It takes one of these::

        dx.visualize(y)                              # a result of a program, or its y.sharding
        dx.visualize((8, 256), mesh, ("dp", "tp"))   # a shape, a mesh and dims
        dx.visualize(mod, "lv3")                     # a variable of a module

    Args:
        what: Object with a sharding: a :class:`ShardedArray`, a :class:`Sharding`, a module, or the
            shape of an array.
        where: Of a shape, the mesh, as :func:`annotate` takes it. Of a module, the variable: its
            name, ``"return"`` for the result, ``"lv3.0"`` for a field of a tuple, or the
            ``relax.Var``.
        dims: Of a shape, one entry per dimension, as :func:`annotate` takes them; None if it is
            replicated.
        func: The function of the module that has the variable; by default the one that has it. A
            module that is only annotated is propagated first.
        devices: Devices whose blocks are to stand out; others have no colour. Their blocks are
            drawn even where there are too many to draw all.

    Returns:
        The picture, which ``print`` draws, notebooks show, and ``to_svg`` and ``plot`` write. A
        matrix has rows and columns. Of arrays of other ranks the sharded dimensions are drawn,
        those beyond two as grids beside each other. Of many blocks the first and the last are
        drawn; the picture says so.

    Raises:
        ValueError: There is no such function, variable, mesh axis or device; the dims do not fit
            the shape; or the variable has no sharding.
        TypeError: An argument has a wrong type.

    Example:
        >>> from distir_ext import Mesh
        >>> print(visualize((5, 8), Mesh(dp=2, tp=2), ("dp", None)))
        [5, 8] sharded ('dp', None) on dp=2, tp=2
        ↓ dim 0: 5 over dp (2)   → dim 1: 8
        <BLANKLINE>
                 0:8
               ┌──────┐
               │      │
           0:3 │ 0, 1 │
               │      │
               ├──────┤
               │      │
        3:5 +1 │ 2, 3 │
               │░░░░░░│
               └──────┘
        <BLANKLINE>
        dp = 2  shards dim 0
        tp = 2  replicates
        2 blocks of 3 x 8 on 4 devices, each on 2; the numbers are device ids
        ░ and +n: padding at the end of shards
    """
    if isinstance(what, tvm.IRModule):
        if dims is not None:
            raise TypeError("of a variable of a module, visualize takes no dims")
        sharding, name = _of_variable(what, where, func)
    elif func is not None:
        raise TypeError("only a module has a function func=")
    elif isinstance(what, ShardedArray | Sharding):
        if where is not None or dims is not None:
            raise TypeError(f"a {type(what).__name__} has its own mesh and dims")
        sharding, name = what.sharding if isinstance(what, ShardedArray) else what, ""
    else:
        sharding, name = _of_shape(what, where, dims), ""
    return ShardingPicture(sharding, name, _marked(sharding, devices))


def _of_shape(shape: Any, mesh: Any, dims: Any) -> Sharding:
    if isinstance(shape, str) or not isinstance(shape, Sequence):
        raise TypeError(
            "visualize takes a ShardedArray, a Sharding, a module and the name of a variable, or a "
            f"shape, a mesh and dims, not a {type(shape).__name__}"
        )
    if not all(isinstance(size, int) and size >= 0 for size in shape):
        raise TypeError(f"a shape has sizes, not {tuple(shape)!r}")
    if mesh is None:
        raise TypeError("visualize needs a mesh for a shape: visualize(shape, mesh, dims)")
    mesh, dims = read_sharding(mesh) or (mesh, dims)
    named = as_mesh(mesh, "the mesh")
    entity = f"the array of shape {tuple(shape)}"
    tensor = relax.TensorType(tuple(shape), "float32")
    ordered, mark = checked_mark(entity, named, dims, tensor)
    names = [
        tuple(
            axis
            for axis, entry in zip(ordered.axis_names, mark.placement.dim_specs, strict=True)
            if int(entry.axis) == dim
        )
        for dim in range(len(shape))
    ]
    return sharding_of(tuple(shape), "", named, names)


def _of_variable(mod: tvm.IRModule, which: Any, func: str | None) -> tuple[Sharding, str]:
    if not isinstance(which, str | relax.Var):
        raise TypeError(
            f"visualize takes the name of a variable of the module, not {type(which).__name__}"
        )
    mod = propagated(mod)
    name = which if isinstance(which, str) else str(which.name)
    names = [
        var.name_hint for var, base in mod.functions.items() if isinstance(base, relax.Function)
    ]
    if func is not None:
        relax_function(mod, func)
        names = [func]
    found: dict[str, list[Any]] = {}
    known: dict[str, None] = {}
    for function in sorted(names):
        for label, type_ in _values(mod[function]):
            known[label] = None
            if label == name:
                found.setdefault(function, []).append(type_)
    where = ", ".join(sorted(names))
    if not found:
        listed = ", ".join(list(known)[:_NAMES_IN_A_MESSAGE])
        raise ValueError(
            f"no variable {name!r} in {where}{did_you_mean(name, known)}; there are: {listed}"
            f"{' and others' if len(known) > _NAMES_IN_A_MESSAGE else ''}"
        )
    if len(found) > 1:
        raise ValueError(f"{name!r} is a variable of {', '.join(found)}; say which with func=")
    ((function, types),) = found.items()
    notation = Notation(mod)
    shardings = [_of_type(notation, type_, f"{name} of {function}") for type_ in types]
    if any(each != shardings[0] for each in shardings):
        raise ValueError(f"{len(types)} variables of {function} are called {name!r}")
    return shardings[0], f"{name} in {function}"


def _values(function: relax.Function) -> Iterable[tuple[str, Any]]:
    for site, type_ in {**parameter_sites(function), **result_sites(function)}.items():
        yield site.label, type_
    for label, sites in variable_sites(function).items():
        for _, type_ in sites:
            yield label, type_


def _of_type(notation: Notation, type_: Any, entity: str) -> Sharding:
    if not isinstance(type_, DTensorType):
        raise ValueError(
            f"{entity} has no sharding: its type is {type_}. Shardings are in types after "
            "PropagateSharding and before LowerDistIR"
        )
    if type_.tensor_ty.ndim < 0:
        raise ValueError(f"{entity} has an unknown number of dimensions")
    return sharding_of_dtensor(notation, type_)


def _marked(sharding: Sharding, devices: int | Iterable[int] | None) -> tuple[int, ...]:
    if devices is None:
        return ()
    chosen = (devices,) if isinstance(devices, int) else tuple(devices)
    for device in chosen:
        if device not in sharding.devices:
            raise ValueError(
                f"device {device!r} is not one of those that hold the array: "
                f"{device_text(sorted(sharding.devices))}"
            )
    return chosen
