"""Texts, and what XLA 0.10.2's parser and printer make of them: pairs of lines in golden.txt."""

from __future__ import annotations

from pathlib import Path

_LINES = Path(__file__).with_name("golden.txt").read_text("utf-8").splitlines()

GOLDEN = [(text, printed.strip()) for text, printed in zip(_LINES[::2], _LINES[1::2], strict=True)]
