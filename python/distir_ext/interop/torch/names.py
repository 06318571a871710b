"""Matches the keys of plans with modules and parameters of a model.

A key is a name with dots, in which ``*`` stands for one part (``layers.*.mlp.up_proj``, as
transformers and torch write plans), or a name as ``torch.export`` writes it
(``p_layers_0_mlp_up_proj_weight``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property

import torch

from distir_ext.text.errors.spelling import did_you_mean


class ModelNames:
    """Names in a model that keys of plans may use.

    Args:
        model: The model.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model

    @cached_property
    def modules(self) -> dict[str, torch.nn.Module]:
        """Modules by name with dots; the model itself is ``""``."""
        return dict(self._model.named_modules(remove_duplicate=False))

    @cached_property
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Parameters by name with dots; tied ones under all their names."""
        return dict(self._model.named_parameters(remove_duplicate=False))

    @cached_property
    def buffers(self) -> list[str]:
        """The names of buffers."""
        return [name for name, _ in self._model.named_buffers(remove_duplicate=False)]

    @cached_property
    def prefix(self) -> str:
        """Prefix of a transformers base model in names, such as ``model.``; empty if none."""
        prefix = str(getattr(self._model, "base_model_prefix", ""))
        return f"{prefix}." if prefix and prefix in self.modules else ""

    def find_modules(self, key: str) -> list[str]:
        """The modules that a key names, in order."""
        return self._find(key, self.modules)

    def find_parameters(self, key: str) -> list[str]:
        """The parameters that a key names, in order."""
        return self._find(key, self.parameters)

    def own_parameters(self, module: str) -> dict[str, torch.nn.Parameter]:
        """The parameters of a module itself, without those of modules in it, by whole name."""
        prefix = f"{module}." if module else ""
        own = self.modules[module].named_parameters(recurse=False, remove_duplicate=False)
        return {f"{prefix}{name}": value for name, value in own}

    def unknown(self, key: str, what: str) -> str:
        """Describes the error of a key that names nothing in the model."""
        wild = _without_numbers([*self.modules, *self.parameters])
        known = [name.removeprefix(self.prefix) for name in wild] + wild
        hint = did_you_mean(key, known)
        return f"{key!r} ({what}) names no module or parameter of the model{hint}"

    def _find(self, key: str, names: Iterable[str]) -> list[str]:
        for wanted in (key, f"{self.prefix}{key}"):
            pattern = re.compile(re.escape(wanted).replace(r"\*", r"[^.]+"))
            if found := [name for name in names if pattern.fullmatch(name)]:
                return found
        exported = re.compile(re.escape(key.removeprefix("p_")).replace(r"\*", r"\w+?"))
        return [name for name in names if name and exported.fullmatch(name.replace(".", "_"))]


def _without_numbers(names: Iterable[str]) -> list[str]:
    """Names with ``*`` for the numbers of layers, each once."""
    return list(dict.fromkeys(re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name) for name in names if name))
