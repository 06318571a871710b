r"""Parses and prints Shardy's attributes in MLIR's syntax.

sharding    ::= ["#sdy.sharding"] "<" mesh_or_ref "," "[" [dim ("," dim)*] "]" extra* ">"
mesh_or_ref ::= "@" name | "mesh" mesh
mesh        ::= "<" "[" [string "=" int ("," string "=" int)*] "]" ["," "device_ids=[" ints "]"]
">"
dim         ::= "{" [axis ("," axis)*] ["," "?"] | "?" "}" ["p" int]
axis        ::= string [":" "(" int ")" int]
extra       ::= "," "replicated" "=" axes | "," "unreduced" "=" ["max" | "min"] axes
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from distir_ext.interop._text import Scanner
from distir_ext.interop.shardy.axis_text import read_dim, read_part, read_reduction
from distir_ext.interop.shardy.model import (
    SYMBOL,
    AxisRef,
    DimSharding,
    LogicalMesh,
    Sharding,
)
from distir_ext.text.errors.tracebacks import short_tracebacks

_IN_STRING = re.compile(r'[^"\\\n]*')
_PRIORITY = re.compile(r"(0|[1-9][0-9]{0,17})(?![0-9])")
_HEX = re.compile(r"[0-9A-Fa-f]{2}")
_ESCAPES = {"n": b"\n", "t": b"\t", '"': b'"', "\\": b"\\"}


@short_tracebacks
def parse(text: str) -> Sharding:
    """Reads a sharding of a tensor.

    Args:
        text: ``#sdy.sharding<@mesh, [{"x", ?}, {"y":(1)2}p1], replicated={"z"}>``, or from "<" on.

    Raises:
        FormatError: It is none: a ValueError that says where, and what could stand there.
        TypeError: It is no text.

    Example:
        >>> print(parse('<@mesh,[{"x",?},{"y":(1)2}p1]>'))
        #sdy.sharding<@mesh, [{"x", ?}, {"y":(1)2}p1]>
    """
    scanner = Scanner(text, "Shardy sharding")
    scanner.accept("#sdy.sharding")
    sharding = _sharding(scanner)
    scanner.nothing_more()
    return sharding


@short_tracebacks
def parse_per_value(text: str) -> tuple[Sharding, ...]:
    """Reads the shardings of several results, ``#sdy.sharding_per_value<[<...>, <...>]>``.

    Args:
        text: The attribute, as MLIR prints it.

    Returns:
        One sharding for each result.

    Raises:
        FormatError: See :func:`parse`.
        TypeError: It is no text.
    """
    scanner = Scanner(text, "list of Shardy shardings")
    scanner.accept("#sdy.sharding_per_value")
    scanner.expect("<")
    scanner.expect("[")
    shardings = scanner.until("]", lambda: _sharding(scanner))
    scanner.expect(">")
    scanner.nothing_more()
    return tuple(shardings)


@short_tracebacks
def per_value_text(shardings: Iterable[Sharding]) -> str:
    """The text that :func:`parse_per_value` reads, as MLIR prints it.

    Args:
        shardings: One for each result.

    Raises:
        ValueError: A sharding has manual axes, or a mesh that Shardy does not have.
    """
    bodies = (str(sharding).removeprefix("#sdy.sharding") for sharding in shardings)
    return f"#sdy.sharding_per_value<[{', '.join(bodies)}]>"


@short_tracebacks
def parse_mesh(text: str) -> LogicalMesh:
    """Reads a mesh.

    Args:
        text: ``#sdy.mesh<["x"=2, "y"=4]>``, from "<" on, or as a module has it,
            ``sdy.mesh @mesh = <["x"=2, "y"=4]>``.

    Raises:
        FormatError: See :func:`parse`.
        TypeError: It is no text.

    Example:
        >>> parse_mesh('sdy.mesh @m = <["x"=2, "y"=2], device_ids=[0, 2, 1, 3]>').device_ids
        (0, 2, 1, 3)
    """
    scanner = Scanner(text, "Shardy mesh")
    if scanner.accept("sdy.mesh"):
        scanner.expect("@")
        _symbol(scanner)
        scanner.expect("=")
    else:
        scanner.accept("#sdy.mesh")
    mesh = _mesh(scanner)
    scanner.nothing_more()
    return mesh


def _sharding(scanner: Scanner) -> Sharding:
    scanner.expect("<")
    mesh: str | LogicalMesh
    if scanner.accept("@"):
        mesh = _symbol(scanner)
    elif scanner.accept("mesh"):
        mesh = _mesh(scanner)
    else:
        scanner.fail("'@' and the name of a mesh, or 'mesh<'")
    scanner.expect(",")
    scanner.expect("[")
    dims = scanner.until("]", lambda: _dim(scanner))
    lists: dict[str, tuple[AxisRef, ...]] = {}
    reduction = "sum"
    while scanner.accept(","):
        begin = scanner.skip()
        keyword = scanner.word()
        if keyword not in ("replicated", "unreduced") or keyword in lists:
            scanner.fail(
                " or ".join(repr(each) for each in ("replicated", "unreduced") if each not in lists)
                or "'>'",
                begin,
            )
        scanner.expect("=")
        if keyword == "unreduced":
            reduction = read_reduction(scanner)
        scanner.expect("{")
        lists[keyword] = tuple(scanner.one_or_more(lambda: _axis(scanner)))
        scanner.expect("}")
    scanner.expect(">")
    return Sharding(
        mesh, tuple(dims), lists.get("replicated", ()), lists.get("unreduced", ()), reduction
    )


def _dim(scanner: Scanner) -> DimSharding:
    axes, is_open = read_dim(scanner, lambda: _axis(scanner))
    return DimSharding(axes, is_open, _priority(scanner))


def _priority(scanner: Scanner) -> int | None:
    if not scanner.accept("p"):
        return None
    found = _PRIORITY.match(scanner.text, scanner.position)
    if found is None:
        scanner.fail("a priority, as p1", scanner.position)
    scanner.position = found.end()
    return int(found[0])


def _axis(scanner: Scanner) -> AxisRef:
    if not scanner.sees('"'):
        scanner.fail('the name of a mesh axis in quotes, as "x"')
    return read_part(scanner, _string(scanner))


def _mesh(scanner: Scanner) -> LogicalMesh:
    begin = scanner.skip()
    scanner.expect("<")
    scanner.expect("[")
    axes = scanner.until("]", lambda: _mesh_axis(scanner))
    ids: list[int] = []
    if scanner.accept(","):
        for literal in ("device_ids", "=", "["):
            scanner.expect(literal)
        ids = scanner.one_or_more(lambda: scanner.integer("a device id"))
        scanner.expect("]")
    scanner.expect(">")
    try:
        mesh = LogicalMesh(tuple(axes), tuple(ids))
        str(mesh)
    except ValueError as error:
        scanner.fail(f"a valid mesh ({error})", begin)
    return mesh


def _mesh_axis(scanner: Scanner) -> tuple[str, int]:
    if not scanner.sees('"'):
        scanner.fail('the name of a mesh axis in quotes, as "x"')
    name = _string(scanner)
    scanner.expect("=")
    return name, scanner.integer("the size of a mesh axis")


def _symbol(scanner: Scanner) -> str:
    if scanner.text.startswith('"', scanner.position):
        return _string(scanner)
    found = SYMBOL.match(scanner.text, scanner.position)
    if found is None:
        scanner.fail("the name of a mesh")
    scanner.position = found.end()
    return found[0]


def _string(scanner: Scanner) -> str:
    """A string of MLIR, which is bytes; escapes are two hexadecimal digits or a character."""
    scanner.expect('"')
    text, data = scanner.text, bytearray()
    while True:
        found = _IN_STRING.match(text, scanner.position)
        assert found is not None
        try:
            data += found[0].encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            scanner.fail("a character of Unicode", scanner.position + error.start)
        scanner.position = found.end()
        if text.startswith('"', scanner.position):
            scanner.position += 1
            return data.decode("utf-8", "surrogateescape")
        if not text.startswith("\\", scanner.position):
            scanner.fail("a '\"' that ends the string")
        escape = text[scanner.position + 1 : scanner.position + 3]
        if escape[:1] in _ESCAPES and escape:
            data += _ESCAPES[escape[0]]
            scanner.position += 2
        elif _HEX.fullmatch(escape):
            data.append(int(escape, 16))
            scanner.position += 3
        else:
            scanner.fail(r"an escape, as \22, \n or \\", scanner.position)
