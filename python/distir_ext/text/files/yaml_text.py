"""Reads untrusted YAML: values, and the line of each.

Read by PyYAML's safe loader, which makes nothing but numbers, texts, lists and mappings. What is
ambiguous or can grow without bound is an error: keys that occur twice, keys that are no texts,
anchors, several documents, more than ``MOST_BYTES``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from distir_ext.text.printable import shown

MOST_BYTES = 1 << 18

_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_LONGEST_NUMBER = 100

Path = tuple[str, ...]


@dataclass(frozen=True)
class YamlDocument:
    """Content of a YAML text."""

    value: Any
    """None if the text is empty."""

    what: str
    """For messages: ``"the configuration my.yaml"``."""

    lines: dict[Path, int]
    """Lines of the keys of mappings, from 1 on; ``("passes", "PadShards")``."""

    def place(self, path: Path) -> str:
        """For messages: ``"the configuration my.yaml, line 3, passes.PadShards"``."""
        line = f", line {self.lines[path]}" if path in self.lines else ""
        return f"{self.what}{line}{', ' if path else ''}{'.'.join(map(shown, path))}"


def read_yaml(data: bytes, what: str) -> YamlDocument:
    """Reads a YAML text.

    Args:
        data: In UTF-8.
        what: For messages.

    Raises:
        ValueError: It is no YAML, or has what is not read, as above; with the line.
        ImportError: PyYAML is not installed.
    """
    try:
        import yaml
    except ImportError as error:
        raise ImportError(
            "YAML is read by PyYAML, which is not installed: pip install 'distir-ext[yaml]'"
        ) from error
    if len(data) > MOST_BYTES:
        raise ValueError(f"{what} has {len(data)} bytes; at most {MOST_BYTES} are read")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{what} is not UTF-8: byte {error.start}") from error
    try:
        loader = _loader(yaml)(text)
        node = loader.get_single_node()
        lines: dict[Path, int] = {}
        if node is None:
            return YamlDocument(None, what, lines)
        _read_lines(node, (), lines)
        return YamlDocument(loader.construct_document(node), what, lines)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ValueError(f"{what}{line}: {_problem(error)}") from error
    except yaml.YAMLError as error:  # signs that no text has
        raise ValueError(f"{what}: {_one_line(str(error))}") from error
    except RecursionError:
        raise ValueError(f"{what} is nested too deeply") from None
    except ValueError as error:  # numbers and dates that there are not
        raise ValueError(f"{what}: {_one_line(str(error))}") from error


def _loader(yaml: Any) -> Any:
    class Loader(yaml.SafeLoader):
        """Without what this module does not read."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            event = self.peek_event()
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                raise yaml.MarkedYAMLError(
                    problem="anchors and aliases are not read", problem_mark=event.start_mark
                )
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen = set()
            for key, _ in node.value:
                if key.tag != "tag:yaml.org,2002:str":
                    raise yaml.MarkedYAMLError(
                        problem="a key is no text", problem_mark=key.start_mark
                    )
                if key.value in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"'{shown(key.value)}' occurs twice", problem_mark=key.start_mark
                    )
                seen.add(key.value)
            return super().construct_mapping(node, deep)

        def construct_object(self, node: Any, deep: bool = False) -> Any:
            # PyYAML and Python take time with the square of what long ones have.
            if node.tag in _NUMBERS and len(node.value) > _LONGEST_NUMBER:
                raise yaml.MarkedYAMLError(
                    problem=f"a number has {len(node.value)} characters, more than "
                    f"{_LONGEST_NUMBER}",
                    problem_mark=node.start_mark,
                )
            return super().construct_object(node, deep)

    # YAML 1.1 takes 1e6 for a text.
    number = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)[eE][-+]?\d+")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+.0123456789"))
    return Loader


def _read_lines(root: Any, path: Path, lines: dict[Path, int]) -> None:
    pending = [(root, path)]
    while pending:
        node, path = pending.pop()
        if not isinstance(node.value, list):
            continue
        for each in node.value:
            if isinstance(each, tuple) and isinstance(each[0].value, str):
                inner = (*path, each[0].value)
                lines[inner] = each[0].start_mark.line + 1
                if len(inner) < _DEEPEST:
                    pending.append((each[1], inner))


# Keys of mappings within mappings whose lines messages may tell.
_DEEPEST = 8


def _problem(error: Any) -> str:
    return _one_line(" ".join(each for each in (error.context, error.problem) if each))


def _one_line(text: str) -> str:
    return " ".join(text.split())
