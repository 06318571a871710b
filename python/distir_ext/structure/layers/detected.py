"""Detects the layers of a function (attention, feed-forward, experts) by their structure.

Input is a Relax function without branches. Each layer has a type, the reason for it, and the column
or row mode of its weights, as hints state them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from tvm import relax

from distir_ext.structure.layers.groups import Group, groups_of
from distir_ext.structure.layers.kinds import kind_of
from distir_ext.structure.layers.modes import NONE, Mode, modes_of
from distir_ext.structure.layers.regions import Stream
from distir_ext.structure.layers.sequences import in_sequence
from distir_ext.structure.program import Program


@dataclass(frozen=True)
class Layer:
    """A layer that was found.

    Attributes:
        name: Common prefix of the names of its weights.
        layer_type: As hints have it.
        why: Evidence for its type.
        modes: Of its weights.
        group: Its products.
    """

    name: str
    layer_type: str
    why: str
    modes: tuple[Mode, ...]
    group: Group

    def below(self, param: relax.Var) -> str:
        """Returns the name of a weight within the layer."""
        name = str(param.name)
        has = name.startswith(self.name) and len(name) > len(self.name)
        return re.sub(r"^[._]", "", name[len(self.name) :]) if has else name


def find_layers(function: relax.Function) -> list[Layer]:
    """The layers of a function without branches, in order.

    Weights that several layers share are of the first one alone.
    """
    stream = Stream(Program(function))
    groups = [
        group
        for region in stream.regions()
        for each in groups_of(stream, region)
        for group in in_sequence(stream, each)
    ]
    kinds = [kind_of(group) for group in groups]
    modes = [modes_of(group, kind) for group, kind in zip(groups, kinds, strict=True)]
    uses: dict[relax.Var, list[Mode]] = {}
    for mode in (mode for each in modes for mode in each):
        uses.setdefault(mode.param, []).append(mode)
    found: list[Layer] = []
    known: set[relax.Var] = set()
    for group, kind, each in zip(groups, kinds, modes, strict=True):
        own = tuple(_of_all(uses[mode.param]) for mode in each if mode.param not in known)
        known |= {mode.param for mode in own}
        if own:
            names = [str(mode.param.name) for mode in own]
            name = _free(_common(names) or kind.layer_type, [layer.name for layer in found])
            why = kind.why + _sharing(each, own, uses)
            found.append(Layer(name, kind.layer_type, why, own, group))
    return found


def _of_all(uses: Sequence[Mode]) -> Mode:
    """The mode of a weight that layers share; none where they want it differently."""
    if len({(mode.tp_mode, mode.output_sizes, mode.units, mode.size) for mode in uses}) == 1:
        return uses[0]
    tp_modes = dict.fromkeys(mode.tp_mode for mode in uses)
    why = f"layers that share it want it {' and '.join(tp_modes)}"
    if len(tp_modes) == 1:
        why = "layers that share it cut it at other places"
    return Mode(uses[0].param, NONE, why=why)


def _sharing(
    modes: Sequence[Mode], own: Sequence[Mode], uses: Mapping[relax.Var, Sequence[Mode]]
) -> str:
    """Describes the weights that a layer shares with others, as the end of a sentence."""
    kept = {mode.param for mode in own}
    others = [str(mode.param.name) for mode in modes if mode.param not in kept]
    counts = {len(uses[mode.param]) for mode in own}
    text = f"; {len(others)} weights are those of a layer before" if others else ""
    return f"; {max(counts)} layers share its weights{text}" if max(counts) > 1 else text


def _common(names: Sequence[str]) -> str:
    """Returns the common prefix of names, up to a dot or an underscore: ``layers_0_mlp``."""
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
