"""Converts YAML values to the types that are expected; errors name file and line."""

from __future__ import annotations

from typing import Any

from distir_ext.text.files.yaml_text import Path, YamlDocument

_LONGEST = 60


def mapping_at(document: YamlDocument, path: Path, value: Any) -> dict[str, Any]:
    """A mapping whose keys are texts.

    Raises:
        ValueError: It is something else; says where.
    """
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"{document.place(path)}: a mapping is expected, not {short(value)}")
    return value


def converted(value: Any, type_: Any, place: str) -> Any:
    """A value as a type: a list of numbers as a tuple of int, and so on.

    Args:
        value: As YAML has it.
        type_: Type that msgspec knows.
        place: For messages.

    Raises:
        ValueError: It is none; says where.
        ImportError: msgspec is not installed.
    """
    try:
        import msgspec
    except ImportError as error:
        raise ImportError(
            "configurations are checked by msgspec, which is not installed: "
            "pip install 'distir-ext[yaml]'"
        ) from error
    try:
        return msgspec.convert(value, type_)
    except msgspec.ValidationError as error:
        raise ValueError(f"{place}: {_small(str(error))}, in {short(value)}") from error


def short(value: Any) -> str:
    """A value for a message."""
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _small(text: str) -> str:
    return (text[:1].lower() + text[1:]).replace("`", "")
