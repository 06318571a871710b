"""The layers of a function, found by structure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from tvm import relax

from distir_ext._hints.groups import Group, groups_of
from distir_ext._hints.kinds import kind_of
from distir_ext._hints.modes import Mode, modes_of
from distir_ext._hints.program import Program
from distir_ext._hints.regions import Stream


@dataclass(frozen=True)
class Layer:
    """A layer that was found.

    Attributes:
        name: What the names of its weights have in common.
        layer_type: As hints have it.
        why: What shows its type.
        modes: Of its weights.
        group: Its products.
    """

    name: str
    layer_type: str
    why: str
    modes: tuple[Mode, ...]
    group: Group

    def below(self, param: relax.Var) -> str:
        """What a weight is called within the layer."""
        name = str(param.name)
        has = name.startswith(self.name) and len(name) > len(self.name)
        return re.sub(r"^[._]", "", name[len(self.name) :]) if has else name


def find_layers(function: relax.Function) -> list[Layer]:
    """The layers of a function without branches, in order."""
    stream = Stream(Program(function))
    found: list[Layer] = []
    for region in stream.regions():
        for group in groups_of(stream, region):
            kind = kind_of(group)
            modes = tuple(modes_of(group, kind.layer_type))
            names = [str(mode.param.name) for mode in modes]
            name = _free(_common(names) or kind.layer_type, [layer.name for layer in found])
            found.append(Layer(name, kind.layer_type, kind.why, modes, group))
    return found


def _common(names: Sequence[str]) -> str:
    """What names have in common, up to a dot or an underscore: ``layers_0_mlp``."""
    if len(names) == 1:
        return re.sub(r"[._]weight$", "", names[0])
    common = _prefix(names)
    whole = all(len(name) == len(common) or name[len(common)] in "._" for name in names)
    return common if whole else re.sub(r"[._]?[^._]*$", "", common)


def _prefix(names: Sequence[str]) -> str:
    first, last = min(names), max(names)
    alike = (a == b for a, b in zip(first, last, strict=False))
    return first[: sum(1 for _ in takewhile(bool, alike))]


def _free(name: str, taken: Sequence[str]) -> str:
    if name not in taken:
        return name
    return next(f"{name}_{i}" for i in range(len(taken) + 1) if f"{name}_{i}" not in taken)
