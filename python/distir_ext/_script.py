"""Lets TVMScript parse the operators that this package adds.

TVM prints an operator ``relax.dist.all_gather`` as ``R.dist.all_gather(...)`` by itself; parsing
needs a function of that name under ``R.dist`` (on DTensors) or ``R.ccl`` (on local tensors) that
returns the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax
from tvm.relax.distributed import DeviceMesh, Placement
from tvm.relax.script.builder.distributed.ir import _lookup_device_mesh
from tvm.relax.script.parser import dist as _dist
from tvm.script.parser import relax as _parser

_DTENSOR_COLLECTIVES = (
    "all_gather",
    "all_to_all",
    "all_reduce",
    "reduce_scatter",
    "slice",
    "permute",
    "transfer",
    "view",
)
_LOCAL_COLLECTIVES = (
    "all_gather",
    "all_to_all",
    "all_reduce",
    "reduce_scatter",
    "slice",
    "transfer",
    "send",
    "recv",
)


def _call(
    name: str, args: Sequence[relax.Expr], attrs: dict[str, Any], ty_args: Sequence[Any] = ()
) -> tvm.ir.Call:
    attributes = tvm.ir.make_node("ir.DictAttrs", **attrs) if attrs else None
    return relax.Call(tvm.ir.Op.get(name), list(args), attributes, list(ty_args))


def _dtensor_function(name: str) -> Any:
    def collective(
        x: relax.Expr,
        device_mesh: str | DeviceMesh,
        placement: str | Placement,
        **attrs: Any,
    ) -> tvm.ir.Call:
        mesh = _lookup_device_mesh(device_mesh) if isinstance(device_mesh, str) else device_mesh
        target = Placement.from_text(placement) if isinstance(placement, str) else placement
        return _call(f"relax.dist.{name}", [x], {"device_mesh": mesh, "placement": target, **attrs})

    collective.__name__ = name
    return collective


def _local_function(name: str) -> Any:
    def collective(*args: relax.Expr, ty_args: Sequence[Any] = (), **attrs: Any) -> tvm.ir.Call:
        types = ty_args if isinstance(ty_args, (tuple, list)) else [ty_args]
        return _call(f"relax.ccl.{name}", args, attrs, [_as_type(t) for t in types])

    collective.__name__ = name
    return collective


def _as_type(annotation: Any) -> Any:
    return annotation.as_ty() if hasattr(annotation, "as_ty") else annotation


def install() -> None:
    """Adds the functions to the parser's namespaces ``R.dist`` and ``R.ccl``."""
    for name in _DTENSOR_COLLECTIVES:
        setattr(_dist, name, _dtensor_function(name))
    for name in _LOCAL_COLLECTIVES:
        setattr(_parser.ccl, name, _local_function(name))
