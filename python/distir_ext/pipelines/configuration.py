"""Reads pipelines of passes from configurations, in YAML or as mappings.

::

    passes:
      OutlineRepeats:
        enabled: true
        min_operators: 16
      OptimizeCollectives:
        disable: [combine_collectives]
      my_fusion:
        enabled: false

What a configuration does not speak of stays as it is; ``default.yaml`` beside this file lists all
passes of this package as they are by default. Several are merged in order, the last one wins.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from distir_ext.pipelines.pipeline import PassPipeline, PipelinePass, in_order, with_options
from distir_ext.pipelines.registry import (
    RESERVED,
    load_entry_points,
    package_passes,
    registered_passes,
)
from distir_ext.text.errors.spelling import did_you_mean
from distir_ext.text.errors.tracebacks import short_tracebacks
from distir_ext.text.files.regular_file import read_file
from distir_ext.text.files.typed_yaml import converted, mapping_at, short
from distir_ext.text.files.yaml_text import MOST_BYTES, YamlDocument, read_yaml

_KEY = "passes"


@short_tracebacks
def load(*configurations: str | os.PathLike[str] | Mapping[str, Any]) -> PassPipeline:
    """A pipeline: the passes that are registered, as configurations state them.

    Args:
        configurations: YAML files, or what they would say as mappings; merged in this order over
            the defaults.

    Returns:
        The pipeline, for ``pipeline=`` of :func:`distir_ext.lower` and :func:`distir_ext.build`.

    Raises:
        ValueError: A file is no YAML, or names a pass or an option that there is not, has an option
            of another type or outside of its range, leaves out a pass without which nothing runs,
            or enables one without an option that it needs. The message has the file and the line.
        OSError: A file cannot be read.
        ImportError: No reader of YAML is installed (``pip install 'distir-ext[yaml]'``), or a
            package that has passes cannot be imported.

    Example:
        >>> pipeline = load({"passes": {"OptimizeCollectives": {"combine_bytes": 4096}}})
        >>> pipeline["OptimizeCollectives"].options
        {'combine_bytes': 4096}
    """
    load_entry_points()
    found = {
        name: PipelinePass(each, each.is_enabled) for name, each in registered_passes().items()
    }
    mentioned: dict[str, None] = {}
    for configuration in configurations:
        document = _document(configuration)
        for name, stated in _passes(document, found):
            mentioned[name] = None
            found[name] = _merged(found[name], stated, document)
    for each in found.values():
        _check(each)
    # Passes of this package keep their order; others come as configurations mention them.
    names = [*(name for name in found if name in package_passes()), *mentioned, *found]
    return PassPipeline(in_order([found[name] for name in dict.fromkeys(names)]))


def read_configuration(data: bytes, what: str) -> None:
    """Reads a text of YAML as :func:`load` does, for its errors.

    Raises:
        ValueError: As :func:`load`.
    """
    document = read_yaml(data, what)
    known = {name: PipelinePass(each, each.is_enabled) for name, each in package_passes().items()}
    for name, stated in _passes(document, known):
        known[name] = _merged(known[name], stated, document)
    for each in known.values():
        _check(each)


@short_tracebacks
def default_text() -> str:
    """Returns the text of ``default.yaml``: every pass of this package, with its options."""
    lines = [_HEAD]
    for each in package_passes().values():
        lines.append(f"  {each.name}:  # {each.summary}")
        lines.append(f"    phase: {each.phase}")
        if each.target:
            lines.append(f"    target: {each.target}")
        lines.append(f"    enabled: {str(each.is_enabled).lower()}")
        for option in each.options.values():
            value = "" if option.is_required else f" {_as_yaml(option.default)}"
            lines.append(f"    # {option.name}:{value}")
    return "\n".join(lines) + "\n"


_HEAD = """\
# The passes of this package as they run by default, in order. Made by `distir passes --yaml`.
#
# A configuration states what is to be different; what it does not speak of stays as it is here:
#
#     distir partition model.py --mesh tp=2 --shard 'x=-,tp' --config mine.yaml
#
# phase: of the module that the pass is given. Behind '#' stand options with what holds if they are
# not stated. dx.build chooses those of OptimizeCollectives for the target.
passes:"""


def _as_yaml(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(str, value))}]"
    return str(value)


def _document(configuration: str | os.PathLike[str] | Mapping[str, Any]) -> YamlDocument:
    if isinstance(configuration, Mapping):
        return YamlDocument(dict(configuration), "the configuration", {})
    path = Path(configuration)
    return read_yaml(read_file(path, MOST_BYTES), f"the configuration {path}")


def _passes(
    document: YamlDocument, known: Mapping[str, PipelinePass]
) -> Iterable[tuple[str, dict[str, Any]]]:
    """Yields the passes of a configuration by name, with their settings."""
    if document.value is None:
        return
    for key in mapping_at(document, (), document.value):
        if key != _KEY:
            raise ValueError(
                f"{document.place((key,))}: there is no such key, a configuration has {_KEY!r}"
                f"{did_you_mean(key, [_KEY])}"
            )
    every = document.value.get(_KEY)
    if every is None:
        return
    for name, stated in mapping_at(document, (_KEY,), every).items():
        if name not in known:
            raise ValueError(
                f"{document.place((_KEY, name))}: there is no such pass, 'distir passes' lists them"
                f"{did_you_mean(name, known)}"
            )
        yield name, mapping_at(document, (_KEY, name), stated or {})


def _merged(each: PipelinePass, stated: Mapping[str, Any], document: YamlDocument) -> PipelinePass:
    registered, path = each.registered, (_KEY, each.name)
    found: dict[str, Any] = {}
    for key, value in stated.items():
        place = document.place((*path, key))
        if key in ("phase", "target"):
            if value != getattr(registered, key):
                is_ = getattr(registered, key) or "any"
                raise ValueError(f"{place}: the {key} of {each.name} is {is_}, not {short(value)}")
        elif key == "enabled":
            found[key] = converted(value, bool, place)
        elif key in registered.options:
            found[key] = converted(value, registered.options[key].type, place)
        else:
            keys = [*RESERVED, *registered.options]
            raise ValueError(
                f"{place}: {each.name} has no such option, it has "
                f"{', '.join(registered.options) or 'none'}{did_you_mean(key, keys)}"
            )
    if registered.is_required and not found.get("enabled", True):
        raise ValueError(
            f"{document.place((*path, 'enabled'))}: {each.name} cannot be left out, since passes "
            "behind it need what it does"
        )
    return with_options(each, found, document.place(path))


def _check(each: PipelinePass) -> None:
    """Refuses options that a pass does not take; each is made once for it."""
    if not each.is_enabled:
        return
    registered = each.registered
    lacking = [
        name
        for name, option in registered.options.items()
        if option.is_required and name not in each.options
    ]
    if lacking:
        raise ValueError(
            f"{each.stated_in or each.name}: {each.name} needs {', '.join(lacking)} where it is "
            "enabled"
        )
    try:
        registered.make(**each.options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{each.stated_in or each.name}: {error}") from error
