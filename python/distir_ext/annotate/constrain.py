"""Constrains propagation inside a model's code: shardings, sharding groups and barriers.

``constrain`` is JAX's ``with_sharding_constraint``. Users call these functions while a
BlockBuilder, an ``nn.Module`` or TVMScript builds a function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import relax

from distir_ext.annotate.annotations import MeshTable
from distir_ext.annotate.emitting import is_nn, like, module_being_written
from distir_ext.annotate.open_regions import automatic
from distir_ext.mesh.frameworks import read_sharding
from distir_ext.text.errors.spelling import did_you_mean
from distir_ext.text.errors.tracebacks import short_tracebacks

_DIRECTIONS = ("forward", "backward", "both")


@short_tracebacks
def constrain(x: Any, *more: Any, mesh: Any = None, dims: Any = None) -> Any:
    """Annotates an intermediate value, as JAX's ``with_sharding_constraint``, or ties several.

    ``dx.constrain(x, mesh, dims)`` shards a value. In the code of a ``relax.frontend.nn`` module::

        def forward(self, x):
            hidden = dx.constrain(self.up(x), mesh, (None, "tp"))
            return self.down(nn.op.gelu(hidden))

    With a BlockBuilder, ``bb.emit(dx.constrain(hidden, mesh, (None, "tp")))``; the same call may
    stand in TVMScript. What is built has the mesh in its global infos, so that it prints.

    ``dx.constrain(a, b, c)`` makes a sharding group of values, which are then sharded alike,
    however far apart they are computed: ``left, right = dx.constrain(left, right)``. With a mesh
    and dims behind the values, all of them are annotated, too.

    In a function that :func:`manual` calls, dims name axes that stay automatic there.

    Args:
        x: A Relax expression that is a tensor, or a Tensor of ``relax.frontend.nn``.
        *more: A mesh and dims; or more values, of the shape of ``x``, and then, if they are to be
            annotated, a mesh and dims. The mesh is a :class:`Mesh`, or what it can
            be made of; or a ``jax.sharding.NamedSharding``, which has dims too. Dims are as in a
            plan of :func:`annotate`; None, or no dims, for replicated.
        mesh: The mesh, if it is given by name.
        dims: Dims, if they are given by name.

    Returns:
        The annotated value, an expression to be emitted or a Tensor of ``relax.frontend.nn``. Of
        several values a tuple of them: an expression to be emitted, or a Python tuple of Tensors.

    Raises:
        ValueError: Dims do not fit the mesh or the tensor, see :func:`annotate`, or name an axis
            that is manual; or the values of a group have different shapes.
        TypeError: A value, the mesh or dims have a wrong type; or a value stands alone.
    """
    values = [x]
    rest = list(more)
    while rest and _is_value(rest[0]):
        values.append(rest.pop(0))
    mesh, dims = _mesh_and_dims(rest, mesh, dims)
    if mesh is None and len(values) == 1:
        raise TypeError("constrain takes a value, a mesh and dims; or several values, to tie them")
    if len({is_nn(value) for value in values}) > 1:
        raise TypeError("a sharding group has Relax expressions or Tensors of nn, not both")
    if len(values) > 1:
        _check_shapes(values)
    if mesh is not None:
        mesh, dims = read_sharding(mesh) or (mesh, dims)
        mesh = automatic(mesh, dims)
        values = [_applied(value, "constrained", _annotator(mesh, dims)) for value in values]
    return values[0] if len(values) == 1 else _group(values)


@short_tracebacks
def barrier(x: Any, blocks: str = "both") -> Any:
    """A value as it is, through which shardings do not spread.

    Example: ``dx.barrier(x, blocks="backward")`` is sharded as ``x`` is, and its users do not
    decide how ``x`` is sharded. Where both sides are sharded differently in the end, the value is
    redistributed at the barrier. It may stand wherever :func:`constrain` may.

    Args:
        x: A Relax expression that is a tensor, or a Tensor of ``relax.frontend.nn``.
        blocks: What does not spread: ``"forward"``, from ``x`` to the users of the result;
            ``"backward"``, from them to ``x``; or ``"both"``.

    Returns:
        The value, an expression to be emitted or a Tensor of ``relax.frontend.nn``.

    Raises:
        ValueError: ``blocks`` is something else.
        TypeError: The value has a wrong type.
    """
    if blocks not in _DIRECTIONS:
        raise ValueError(
            f"a barrier blocks {', '.join(map(repr, _DIRECTIONS))}, not {blocks!r}"
            f"{did_you_mean(str(blocks), _DIRECTIONS)}"
        )

    def behind(value: relax.Expr) -> relax.Call:
        attrs = tvm.ir.make_node("ir.DictAttrs", blocks=blocks)
        return relax.Call(tvm.ir.Op.get("relax.dist.propagation_barrier"), [value], attrs)

    return _applied(x, "barrier", behind)


def _mesh_and_dims(rest: Sequence[Any], mesh: Any, dims: Any) -> tuple[Any, Any]:
    """Returns mesh and dims, which follow the values or are given by name."""
    names = ("mesh", "dims")
    if len(rest) > len(names):
        raise TypeError(f"constrain takes values, then a mesh and dims; {rest[-1]!r} is too much")
    given = {"mesh": mesh, "dims": dims}
    for name, value in zip(names, rest, strict=False):
        if given[name] is not None:
            raise TypeError(f"constrain is given {name} twice")
        given[name] = value
    if given["dims"] is not None and given["mesh"] is None:
        raise TypeError("constrain is given dims without a mesh")
    return given["mesh"], given["dims"]


def _is_value(value: Any) -> bool:
    return isinstance(value, relax.Expr) or is_nn(value)


def _applied(x: Any, what: str, make: Callable[[relax.Expr], relax.Call]) -> Any:
    """A value made from another one; of nn's Tensors it is emitted."""
    if isinstance(x, relax.Expr):
        return make(x)
    if not is_nn(x):
        raise TypeError(
            f"a value of type {type(x).__name__} cannot be constrained: it is no Relax expression"
        )
    expr = x._expr
    name = f"{expr.name}_{what}" if isinstance(expr, relax.Var) else what
    return like(x, _builder_of_nn().emit(make(expr), name))


def _builder_of_nn() -> relax.BlockBuilder:
    builder = relax.BlockBuilder.current()
    if builder is None:
        raise ValueError(
            "a Tensor of relax.frontend.nn is constrained while its module is exported"
        )
    return builder


def _group(values: Sequence[Any]) -> Any:
    """A sharding group of values of one kind."""
    exprs = [value._expr if is_nn(value) else value for value in values]
    op = tvm.ir.Op.get("relax.dist.sharding_group")
    call = relax.Call(op, [relax.Tuple(exprs)], None)
    if not is_nn(values[0]):
        return call
    builder = _builder_of_nn()
    tied = builder.emit(call, "tied")
    return tuple(
        type(value)(_expr=builder.emit(relax.TupleGetItem(tied, index)))
        for index, value in enumerate(values)
    )


def _check_shapes(values: Sequence[Any]) -> None:
    types: dict[str, relax.TensorType] = {}
    for number, value in enumerate(values):
        expr = value._expr if is_nn(value) else value
        name = f"`{expr.name}`" if isinstance(expr, relax.Var) else f"value {number}"
        if type(expr.ty) is tvm.ir.Type:  # of a call that was not emitted yet nothing is known
            continue
        if not isinstance(expr.ty, relax.TensorType):
            raise TypeError(f"{name} of a sharding group is no tensor but has type {expr.ty}")
        types[name] = expr.ty
    if len({type_.ndim for type_ in types.values()}) > 1:
        found = ", ".join(f"{name} has {type_.ndim}" for name, type_ in types.items())
        raise ValueError(
            f"the values of a sharding group have different numbers of dimensions: {found}"
        )
    shapes = [type_.shape for type_ in types.values()]
    if not all(isinstance(shape, relax.ShapeExpr) for shape in shapes):
        return
    for sizes in zip(*(shape.values for shape in shapes), strict=True):
        # Sizes that are not known yet may be the same.
        if len({int(size) for size in sizes if isinstance(size, tvm.tirx.IntImm)}) > 1:
            found = ", ".join(f"{name} has {type_.shape}" for name, type_ in types.items())
            raise ValueError(f"the values of a sharding group have different sizes: {found}")


def _annotator(mesh: Any, dims: Any) -> Callable[[relax.Expr], relax.Call]:
    def annotated(x: relax.Expr) -> relax.Call:
        entity = f"constrained value {x.name}" if isinstance(x, relax.Var) else "constrained value"
        # A call that was not emitted yet has no type; propagation checks what it gets then.
        type_ = None if type(x.ty) is tvm.ir.Type else x.ty
        mod = module_being_written()
        meshes = MeshTable(mod)
        mark = meshes.mark(entity, mesh, dims, type_)
        meshes.store_in_place(mod)
        return mark.on(x)

    return annotated
