"""Manual regions: functions that are written per device, with explicit collectives."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from distir_ext.annotate.emitting import emitted, is_nn, known_type, like
from distir_ext.annotate.open_regions import Region, inside, opened
from distir_ext.annotate.regions import crossing, cuts
from distir_ext.mesh.frameworks import read_dims
from distir_ext.mesh.mesh import as_mesh
from distir_ext.text.errors.tracebacks import short_tracebacks


@short_tracebacks
def manual(
    fn: Callable[..., Any],
    mesh: Any,
    in_dims: Sequence[Any],
    out_dims: Any,
    *,
    axes: Sequence[str] | str | None = None,
) -> Callable[..., Any]:
    """A function whose body is written per device, as JAX's ``shard_map``.

    Along the manual axes ``fn`` is given the part of each argument that one device has, and sends
    with :mod:`distir_ext.collectives`; along all other axes its values have
    their full shapes, and propagation shards them as anywhere. Example, a feed-forward block of
    which each device along "tp" has some columns, while "dp" stays automatic::

        def block(x, up, down):
            hidden = relax.op.nn.relu(relax.op.matmul(x, up))
            return dx.collectives.psum(relax.op.matmul(hidden, down), "tp")

        region = dx.manual(block, mesh, [None, (None, "tp"), ("tp", None)], None, axes=["tp"])
        y = region(x, up, down)

    ``fn`` is called once, while the program is written: with a BlockBuilder, in the code of a
    ``relax.frontend.nn`` module, or in TVMScript. A value that it uses without being given it is
    the same on all devices along the manual axes, as an argument with the dims None; collectives
    take arguments only, and what is computed from them. Regions nest, over axes that are still
    automatic.

    Args:
        fn: Takes and returns tensors, of the kind that the returned function is given: Relax
            expressions or Tensors of ``relax.frontend.nn``. It returns one, or a tuple of them.
        mesh: A :class:`Mesh`, or what it can be made of.
        in_dims: For each argument its dims, with manual axes only: a dimension that names axes is
            cut into equal parts; None for an argument of which every device has all. JAX's
            ``PartitionSpec`` is understood.
        out_dims: The dims of the result, or, of a tuple, a sequence of the dims of each. What is
            returned is taken to be equal along manual axes that its dims do not name; this is not
            checked (``check_vma=False`` of ``shard_map``).
        axes: The manual axes, as ``axis_names`` of ``shard_map``: by default all of the mesh, or,
            in a region, all that are not manual yet.

    Returns:
        A function of as many values as ``in_dims`` has entries; what it returns has the form of
        what ``fn`` returns.

    Raises:
        ValueError: The mesh has no such axis, or it is manual already. When the function is called:
            dims do not fit a value, name an axis that is not manual, or do not cut it evenly.
        TypeError: The mesh, dims or a value have a wrong type.
    """
    named = as_mesh(mesh, "the mesh of a manual region")
    if not isinstance(in_dims, Sequence) or isinstance(in_dims, str):
        raise TypeError(f"in_dims of a manual region are one entry per argument, not {in_dims!r}")
    chosen = (axes,) if isinstance(axes, str) else axes
    opened(named, chosen)

    @functools.wraps(fn)
    def region_function(*args: Any) -> Any:
        if len(args) != len(in_dims):
            raise TypeError(
                f"a manual region takes {len(in_dims)} values, as in_dims has entries, and is "
                f"given {len(args)}"
            )
        region = opened(named, chosen)
        border = _Border(region)
        entered = [
            border.enter(value, dims, f"argument {number} of a manual region")
            for number, (value, dims) in enumerate(zip(args, in_dims, strict=True))
        ]
        with inside(region):
            result = fn(*entered)
        if not isinstance(result, tuple | list):
            return border.leave(result, out_dims, "the result of a manual region")
        if not isinstance(out_dims, Sequence) or len(out_dims) != len(result):
            raise ValueError(
                f"a manual region returns {len(result)} values, and its out_dims are {out_dims!r}; "
                "they need an entry for each of them"
            )
        return tuple(
            border.leave(value, dims, f"result {number} of a manual region")
            for number, (value, dims) in enumerate(zip(result, out_dims, strict=True))
        )

    return region_function


class _Border:
    """Boundary of one region, at which values enter and leave."""

    def __init__(self, region: Region) -> None:
        self._region = region
        self._divided: list[tuple[tvm.ir.PrimExpr, int, tvm.ir.PrimExpr]] = []
        """Symbolic sizes inside, of how many parts, and the sizes outside."""

    def enter(self, value: Any, dims: Any, entity: str) -> Any:
        x = emitted(_expression(value, entity))
        dims = self._read(dims, x)
        region = self._region
        outside = _shape(x)
        for number, parts in cuts(self._region.base, dims):
            size = outside[number] if number < len(outside) else None
            if isinstance(size, tvm.tirx.IntImm) and int(size) % parts:
                raise ValueError(
                    f"{entity}, dimension {number} of size {int(size)}: it does not divide into "
                    f"{parts} parts, one for each device along {dims[number]!r}"
                )
        part = crossing("enter_manual", x, region.base, dims, region.entered, entity)
        inside_shape = _shape(part)
        for number, parts in cuts(self._region.base, dims):
            if number < len(inside_shape):
                self._divided.append((inside_shape[number], parts, outside[number]))
        return like(value, part)

    def leave(self, value: Any, dims: Any, entity: str) -> Any:
        x = emitted(_expression(value, entity))
        dims = self._read(dims, x)
        region = self._region
        type_ = self._joined(x, dims)
        whole = crossing("leave_manual", x, region.base, dims, region.entered, entity, type_)
        return like(value, whole)

    def _read(self, dims: Any, x: relax.Expr) -> Any:
        """Dims, of JAX or PyTorch too."""
        if dims is None or isinstance(dims, str):
            return dims
        return read_dims(dims, self._region.base.axis_names, len(_shape(x)) or None)

    def _joined(self, x: relax.Expr, dims: Any) -> relax.TensorType | None:
        """The type outside, if a size that was divided is joined again: whole // parts * parts."""
        shape = list(_shape(x))
        found = False
        for number, parts in cuts(self._region.base, dims):
            if number >= len(shape):
                return None
            for size, divided_into, whole in self._divided:
                if divided_into == parts and tvm_ffi.structural_equal(size, shape[number]):
                    found = found or not isinstance(whole, tvm.tirx.IntImm)
                    shape[number] = whole
                    break
            else:
                shape[number] = shape[number] * parts
        return relax.TensorType(shape, x.ty.dtype) if found else None


def _shape(x: relax.Expr) -> Sequence[Any]:
    """The sizes of a tensor, none where they are not known."""
    type_ = known_type(x)
    shape = getattr(type_, "shape", None)
    return list(shape.values) if isinstance(shape, relax.ShapeExpr) else []


def _expression(value: Any, entity: str) -> relax.Expr:
    if is_nn(value):
        expr: relax.Expr = value._expr
        return expr
    if not isinstance(value, relax.Expr):
        raise TypeError(
            f"{entity} is of type {type(value).__name__}; it has to be a Relax expression, or a "
            "Tensor of relax.frontend.nn"
        )
    return value
