"""Reads which parameters and results of a training step are fields of its state.

A field enters the step as a parameter and leaves it as a result with its new value. The attribute
``distir.state`` of the step lists them.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import relax

STATE = "state."
"""Begin of the names of parameters that are fields of a state."""

STATE_ATTRIBUTE = "distir.state"
"""Attribute of a step: for each field of the state, its first parameters and first results, the
index of the field that holds the model's parameter that it belongs to, or -1."""


@dataclass(frozen=True)
class StateField:
    """A field of a state.

    Attributes:
        name: Of the parameter of the function.
        result: Index of the result that is its new value.
        owner: Name of the field with the model's parameter that it belongs to; None for scalars.
    """

    name: str
    result: int
    owner: str | None


def state_fields(function: relax.Function) -> list[StateField]:
    """The fields of the state of a function; none if it is no training step."""
    if function.attrs is None or STATE_ATTRIBUTE not in function.attrs:
        return []
    owners = [int(each) for each in function.attrs[STATE_ATTRIBUTE]]
    names = [str(param.name) for param in function.params[: len(owners)]]
    return [
        StateField(name, at, None if owner < 0 else names[owner])
        for at, (name, owner) in enumerate(zip(names, owners, strict=True))
    ]
