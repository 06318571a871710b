"""Shards an intermediate value where a program is written."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.script.ir_builder.base import IRBuilder
from tvm.script.ir_builder.ir import IRModuleFrame

from distir_ext._frameworks import read_sharding
from distir_ext.annotations import MeshTable


def constrain(x: Any, mesh: Any, dims: Any = None) -> Any:
    """Annotates an intermediate value, as ``jax.lax.with_sharding_constraint`` does.

    In the code of a ``relax.frontend.nn`` module::

        def forward(self, x):
            hidden = dx.constrain(self.up(x), mesh, (None, "tp"))
            return self.down(nn.op.gelu(hidden))

    With a BlockBuilder, ``bb.emit(dx.constrain(hidden, mesh, (None, "tp")))``; the same call may
    stand in TVMScript. What is built has the mesh in its global infos, so that it prints.

    Args:
        x: A Relax expression that is a tensor, or a Tensor of ``relax.frontend.nn``.
        mesh: A :class:`Mesh`, or what it can be made of; or a ``jax.sharding.NamedSharding``, which
            has dims too.
        dims: As in a plan of :func:`annotate`; None for replicated.

    Returns:
        The annotated value, an expression to be emitted or a Tensor of ``relax.frontend.nn``.

    Raises:
        ValueError: Dims do not fit the mesh or the tensor, see :func:`annotate`.
        TypeError: The value, the mesh or dims have a wrong type.
    """
    mesh, dims = read_sharding(mesh) or (mesh, dims)
    if isinstance(x, relax.Expr):
        return _annotated(x, mesh, dims)
    # An nn.Tensor; nn is not imported, as most programs do without it.
    expr = getattr(x, "_expr", None)
    builder = relax.BlockBuilder.current()
    if not isinstance(expr, relax.Expr):
        raise TypeError(
            f"a value of type {type(x).__name__} cannot be constrained: it is no Relax expression"
        )
    if builder is None:
        raise ValueError(
            "a Tensor of relax.frontend.nn is constrained while its module is exported"
        )
    name = f"{expr.name}_constrained" if isinstance(expr, relax.Var) else "constrained"
    return type(x)(_expr=builder.emit(_annotated(expr, mesh, dims), name))


def _annotated(x: relax.Expr, mesh: Any, dims: Any) -> relax.Call:
    entity = f"constrained value {x.name}" if isinstance(x, relax.Var) else "constrained value"
    # A call that was not emitted yet has no type; propagation checks what it gets then.
    type_ = None if type(x.ty) is tvm.ir.Type else x.ty
    mod = _module_being_written()
    meshes = MeshTable(mod)
    mark = meshes.mark(entity, mesh, dims, type_)
    meshes.store_in_place(mod)
    return mark.on(x)


def _module_being_written() -> Any:
    """The module of the builder in use, TVMScript's frame of one, or an empty one."""
    builder = relax.BlockBuilder.current()
    if builder is not None:
        return builder.get()  # what it builds, not a copy
    frames = IRBuilder.current().frames if IRBuilder.is_in_scope() else ()
    modules = [frame for frame in frames if isinstance(frame, IRModuleFrame)]
    return modules[0] if modules else tvm.IRModule({})
