"""Chooses the parameters of a forward function that a training step trains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import relax

from distir_ext.structure.training_state import STATE
from distir_ext.text.errors.spelling import did_you_mean
from distir_ext.text.printable import shown

_LOW = ("float16", "bfloat16")


@dataclass(frozen=True)
class Param:
    """A parameter that is trained.

    Attributes:
        name: In the forward function.
        var: There.
        state: Of the step: its value in the precision of the state.
    """

    name: str
    var: relax.Var
    state: relax.Var


def trained_params(
    function: relax.Function, params: Sequence[str] | None, func: str
) -> list[relax.Var]:
    """The parameters with these names; None: those behind the function's inputs.

    Raises:
        ValueError: There is none, or a name is unknown.
    """
    known = {str(each.name): each for each in function.params}
    if len(known) < len(function.params):
        raise ValueError(f"several parameters of {func} have one name: {', '.join(known)}")
    if params is None:
        if function.attrs is None or "num_input" not in function.attrs:
            raise ValueError(
                f"{func} does not say which of its parameters are trained: params=[..] names them, "
                f"of {', '.join(known)}"
            )
        chosen = list(function.params)[int(function.attrs["num_input"]) :]
        chosen = [each for each in chosen if float_of(each) is not None]
    else:
        if isinstance(params, str):
            raise ValueError(f"params is {params!r}, not a list of names")
        for name in params:
            if name not in known:
                raise ValueError(
                    f"params has {name!r}, which is no parameter of {func}"
                    f"{did_you_mean(name, known)}"
                )
        chosen = [each for name, each in known.items() if name in set(params)]
    if not chosen:
        raise ValueError(f"no parameter of {func} is trained")
    return chosen


def float_of(var: relax.Var) -> str | None:
    """The dtype of a tensor of floats; None of all else."""
    dtype = getattr(var.ty, "dtype", None)
    return str(dtype) if dtype is not None and "float" in str(dtype) else None


def field_of(var: relax.Var, func: str) -> Param:
    """A parameter with its field of the state.

    Raises:
        ValueError: It is no tensor of floats with a shape.
    """
    dtype = float_of(var)
    if dtype is None or var.ty.shape is None:
        raise ValueError(
            f"parameter {shown(str(var.name))} of {func} is {var.ty}, which cannot be trained: it "
            "is no tensor of floats with a shape"
        )
    name = str(var.name)
    state = relax.TensorType(var.ty.shape, "float32" if dtype in _LOW else dtype)
    return Param(name, var, relax.Var(f"{STATE}params.{name}", state))
