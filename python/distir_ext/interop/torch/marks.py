"""Names the values that enter and leave torch modules, so that plans can shard them.

While a model is exported, hooks of its modules pass such values through an operator that does
nothing but carry a name:

    hidden = norm(x)                          hidden = norm(x)
    y = attention(hidden)                     entered = mark(hidden, "attention_input_0")
                                              y = attention(entered)
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

OPERATOR = "mark.default"
"""Name of the operator in an exported program."""


class ModuleValue(NamedTuple):
    """A tensor that a module takes or returns."""

    module: str
    """With dots; empty for the model itself."""

    side: str
    """``"input"`` or ``"output"``."""

    which: int | str
    """The position, or the name of a named argument."""

    @property
    def label(self) -> str:
        """Such as ``layers.0.attention, input 0``."""
        return f"{self.module or 'the model'}, {self.side} {self.which}"

    def variable(self, number: int) -> str:
        """The name of the variable that is the value after its ``number``-th mark."""
        text = f"{self.module or 'model'}_{self.side}_{self.which}"
        return re.sub(r"\W", "_", text) + ("" if number == 0 else f"_{number}")


@torch.library.custom_op(
    "distir_ext::mark", mutates_args=(), schema="(Tensor value, str name) -> Tensor"
)
def mark(value: torch.Tensor, name: str) -> torch.Tensor:
    """The value itself, under a name."""
    return value.clone()


@mark.register_fake
def _(value: torch.Tensor, name: str) -> torch.Tensor:
    return torch.empty_like(value)


class Marker:
    """Marks values of modules while a model is exported.

    Args:
        layouts: For each value what is stated of it, one mark for each, one behind the other. What
            is the same tensor, of which the same is stated, has the same marks.
    """

    def __init__(self, layouts: Mapping[ModuleValue, Sequence[Hashable]]) -> None:
        self._layouts = {value: tuple(stated) for value, stated in layouts.items()}
        self._done: dict[tuple[int, tuple[Hashable, ...]], _Marked] = {}
        self.names: dict[ModuleValue, tuple[str, ...]] = {}
        """The names of the marks of values that were met."""

    @contextlib.contextmanager
    def on(self, model: torch.nn.Module) -> Iterator[None]:
        """Makes the modules of a model mark their values, until the block ends."""
        modules = dict(model.named_modules())
        handles = []
        for name in dict.fromkeys(value.module for value in self._layouts):
            enter = functools.partial(self._enter, name)
            leave = functools.partial(self._leave, name)
            handles.append(modules[name].register_forward_pre_hook(enter, with_kwargs=True))
            handles.append(modules[name].register_forward_hook(leave))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def missing(self) -> list[ModuleValue]:
        """The values that no module has taken or returned."""
        return [value for value in self._layouts if value not in self.names]

    def _enter(
        self, name: str, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        parameters = list(inspect.signature(module.forward).parameters)
        given, named = list(args), dict(kwargs)
        for value in self._layouts:
            if value.module != name or value.side != "input":
                continue
            which = value.which
            if isinstance(which, int) and which < len(given):
                given[which] = self._marked(value, given[which])
                continue
            if isinstance(which, int):
                which = parameters[which] if which < len(parameters) else ""
            if which in named:
                named[which] = self._marked(value, named[which])
            elif which in parameters[: len(given)]:
                position = parameters.index(which)
                given[position] = self._marked(value, given[position])
        return tuple(given), named

    def _leave(self, name: str, module: torch.nn.Module, args: Any, result: Any) -> Any:
        fields = list(result) if isinstance(result, tuple) else [result]
        for value in self._layouts:
            if (
                value.module == name
                and value.side == "output"
                and value.which in range(len(fields))
            ):
                fields[int(value.which)] = self._marked(value, fields[int(value.which)])
        return tuple(fields) if isinstance(result, tuple) else fields[0]

    def _marked(self, value: ModuleValue, tensor: Any) -> Any:
        if not isinstance(tensor, torch.Tensor):
            return tensor
        stated = self._layouts[value]
        done = self._done.get((id(tensor), stated))
        if done is None:
            names = tuple(value.variable(number) for number in range(len(stated)))
            done = _Marked(tensor, functools.reduce(mark, names, tensor), names)
            self._done[id(tensor), stated] = done
        self.names[value] = (*self.names.get(value, ()), *done.names)
        return done.marked


class _Marked(NamedTuple):
    tensor: torch.Tensor  # kept, so that no other one has its id
    marked: torch.Tensor
    names: tuple[str, ...]
