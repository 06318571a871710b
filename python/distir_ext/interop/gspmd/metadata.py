"""Reads and writes the metadata of HLO shardings, which is kept as text."""

from __future__ import annotations

import re

from distir_ext.interop._text import Scanner

_PLAIN = re.compile(r'[^{}"]*')
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


def read_metadata(scanner: Scanner) -> str:
    """Reads ``{op_name="a"}`` or ``{{...}, {...}}``; returns what stands in the outer braces."""
    scanner.expect("{")
    begin, depth = scanner.position, 1
    while depth:
        found = _PLAIN.match(scanner.text, scanner.position)
        assert found is not None
        scanner.position = found.end()
        letter = scanner.text[scanner.position : scanner.position + 1]
        if letter == '"':
            string = _STRING.match(scanner.text, scanner.position)
            if string is None:
                scanner.fail("a string that ends with '\"'")
            scanner.position = string.end()
        elif letter:
            depth += 1 if letter == "{" else -1
            scanner.position += 1
        else:
            scanner.fail("'}' that ends the metadata")
    return scanner.text[begin : scanner.position - 1]


def metadata_text(metadata: str) -> str:
    """The attribute that :func:`read_metadata` has read."""
    return f"metadata={{{metadata}}}"
