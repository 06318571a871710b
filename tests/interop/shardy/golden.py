"""Texts, and what MLIR of jaxlib 0.10.2 prints of them: pairs of lines in golden.txt."""

from __future__ import annotations

from pathlib import Path

from distir_ext.interop import shardy

_LINES = Path(__file__).with_name("golden.txt").read_text("utf-8").splitlines()

GOLDEN = [(text, printed.strip()) for text, printed in zip(_LINES[::2], _LINES[1::2], strict=True)]


def printed_again(text):
    """Parses a Shardy attribute of any kind, and prints it."""
    if text.startswith("#sdy.mesh"):
        return str(shardy.parse_mesh(text))
    if text.startswith("#sdy.sharding_per_value"):
        return shardy.per_value_text(shardy.parse_per_value(text))
    return str(shardy.parse(text))
