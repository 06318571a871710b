r"""Parses and prints HLO's named shardings (version 3).

named ::= "{" mesh ["," ("replicated" | "manual" | "unreduced" | dims extra*)] "}"
mesh  ::= "mesh" "[" [name "=" int ("," name "=" int)*] "]" ["," "device_ids=(" order ")"]
| "maximal_mesh" "[" "device_id" "=" int "]"
dims  ::= "[" ["{" [axis ("," axis)*] ["," "?"] "}" ("," ...)*] "]"
extra ::= "," ("replicated" | "unreduced" | "manual") "=" ["max" | "min"] "{" axes "}"
axis  ::= name [":" "(" int ")" int]
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from distir_ext.interop._text import Scanner
from distir_ext.interop.gspmd.iota import Iota, find_iota
from distir_ext.interop.gspmd.metadata import metadata_text, read_metadata
from distir_ext.interop.shardy.axis_text import read_dim, read_part, read_reduction
from distir_ext.interop.shardy.model import (
    AxisRef,
    DimSharding,
    LogicalMesh,
    Sharding,
)

_IN_NAME = re.compile(r"[^'\"\\\n]*")
_ESCAPES = {"n": "\n", "t": "\t", "'": "'", '"': '"', "\\": "\\"}
_UNESCAPED = str.maketrans({letter: f"\\{key}" for key, letter in _ESCAPES.items() if key != '"'})
_LISTS = ("replicated", "unreduced", "manual")


def read_named(scanner: Scanner) -> tuple[Sharding, str]:
    """Reads a named sharding behind its brace, up to the closing one; and its metadata."""
    begin = scanner.skip()
    mesh = _read_mesh(scanner)
    dims: list[DimSharding] = []
    lists: dict[str, tuple[AxisRef, ...]] = {}
    reduction = "sum"
    metadata = ""
    if not mesh.is_maximal:
        scanner.expect(",")
        here = scanner.skip()
        word = scanner.word()
        whole = tuple(AxisRef(name) for name, _ in mesh.axes)
        if word in ("manual", "unreduced"):
            lists[word] = whole
        elif not word and scanner.accept("["):
            dims = scanner.until("]", lambda: _read_dim(scanner))
        elif word != "replicated":
            scanner.fail("'[', 'replicated', 'manual' or 'unreduced'", here)
    while scanner.accept(","):
        here = scanner.skip()
        word = scanner.word()
        if word == "metadata" and not metadata:
            scanner.expect("=")
            metadata = read_metadata(scanner)
            continue
        if mesh.is_maximal or word not in _LISTS or word in lists:
            scanner.fail("'replicated=', 'unreduced=', 'manual=' or 'metadata='", here)
        scanner.expect("=")
        if word == "unreduced":
            reduction = read_reduction(scanner)
        scanner.expect("{")
        lists[word] = tuple(scanner.until("}", lambda: _read_axis(scanner)))
    sharding = Sharding(mesh, tuple(dims), reduction=reduction, **lists)
    try:
        sharding.on(mesh)
    except ValueError as error:
        scanner.fail(f"a valid sharding ({error})", begin)
    return sharding, metadata


def named_text(sharding: Sharding, metadata: str = "") -> str:
    """A named sharding, with braces.

    Raises:
        ValueError: It names a mesh instead of having one, has priorities, or its mesh is none of
            XLA's.
    """
    mesh = sharding.mesh
    if not isinstance(mesh, LogicalMesh):
        raise ValueError(f"the sharding is on mesh @{mesh}; HLO's text has the mesh itself")
    if any(dim.priority is not None for dim in sharding.dims):
        raise ValueError("HLO's named shardings have no priorities; closed() leaves them out")
    parts = [_mesh_text(mesh)]
    if not mesh.is_maximal:
        parts += _axes_parts(sharding, mesh)
    if metadata:
        parts.append(metadata_text(metadata))
    return f"{{{', '.join(parts)}}}"


def _axes_parts(sharding: Sharding, mesh: LogicalMesh) -> list[str]:
    whole = tuple(AxisRef(name) for name, _ in mesh.axes)
    lists = {name: getattr(sharding, name) for name in _LISTS}
    present = [name for name in _LISTS if lists[name]]
    if not sharding.dims and not present:
        return ["replicated"]
    is_one_word = present in (["manual"], ["unreduced"]) and sharding.reduction == "sum"
    if not sharding.dims and is_one_word and lists[present[0]] == whole:
        return present
    parts = [f"[{', '.join(_dim_text(dim) for dim in sharding.dims)}]"]
    for name in present:
        kind = sharding.reduction if name == "unreduced" and sharding.reduction != "sum" else ""
        parts.append(f"{name}={kind}{{{_axes_text(lists[name])}}}")
    return parts


def _mesh_text(mesh: LogicalMesh) -> str:
    if mesh.is_maximal:
        return f"maximal_mesh[device_id={mesh.device_ids[0]}]"
    mesh.body()  # refuses what XLA and Shardy have no mesh of
    text = f"mesh[{','.join(f'{_quoted(name)}={size}' for name, size in mesh.axes)}]"
    if not mesh.device_ids:
        return text
    iota = find_iota(mesh.device_ids)
    order = ",".join(map(str, mesh.device_ids)) if iota is None else str(iota).removeprefix("<=")
    return f"{text}, device_ids=({order})"


def _quoted(name: str) -> str:
    return f"'{name.translate(_UNESCAPED)}'"


def _axes_text(axes: Iterable[AxisRef]) -> str:
    return ", ".join(
        _quoted(ref.name) + ("" if ref.size is None else f":({ref.pre_size}){ref.size}")
        for ref in axes
    )


def _dim_text(dim: DimSharding) -> str:
    parts = [*([_axes_text(dim.axes)] if dim.axes else []), *(["?"] if dim.open else [])]
    return f"{{{', '.join(parts)}}}"


def _read_mesh(scanner: Scanner) -> LogicalMesh:
    begin = scanner.skip()
    word = scanner.word()
    scanner.expect("[")
    if word == "maximal_mesh":
        scanner.expect("device_id")
        scanner.expect("=")
        device = scanner.integer("a device id")
        scanner.expect("]")
        return LogicalMesh((), (device,))
    axes = tuple(scanner.until("]", lambda: _read_mesh_axis(scanner)))
    mesh = _valid_mesh(scanner, begin, axes, ())
    before = scanner.position
    if not (scanner.accept(",") and scanner.accept("device_ids")):
        scanner.position = before
        return mesh
    scanner.expect("=")
    scanner.expect("(")
    here = scanner.skip()
    if scanner.sees("["):
        iota = read_iota(scanner)
        if iota.size != mesh.size:
            scanner.fail(f"{mesh.size} devices, as the mesh has, not {iota.size}", here)
        ids = iota.devices
    else:
        ids = tuple(scanner.one_or_more(lambda: scanner.integer("a device id")))
        if not axes:
            scanner.fail("no devices, as the mesh has no axes", here)
    scanner.expect(")")
    return _valid_mesh(scanner, begin, axes, ids)


def _valid_mesh(
    scanner: Scanner, begin: int, axes: tuple[tuple[str, int], ...], ids: tuple[int, ...]
) -> LogicalMesh:
    try:
        mesh = LogicalMesh(axes, ids)
        mesh.body()
    except ValueError as error:
        scanner.fail(f"a valid mesh ({error})", begin)
    return mesh


def _read_mesh_axis(scanner: Scanner) -> tuple[str, int]:
    name = _read_name(scanner)
    scanner.expect("=")
    return name, scanner.integer("the size of a mesh axis")


def read_iota(scanner: Scanner) -> Iota:
    """Reads ``[2,4]T(1,0)``; the permutation may be missing behind a single size."""
    begin = scanner.skip()
    scanner.expect("[")
    dims = tuple(scanner.one_or_more(scanner.integer))
    scanner.expect("]")
    perm: tuple[int, ...] = (0,)
    if scanner.accept("T"):
        scanner.expect("(")
        perm = tuple(scanner.one_or_more(scanner.integer))
        scanner.expect(")")
    elif len(dims) > 1:
        scanner.fail("'T(' and a permutation of the reshape dims")
    try:
        return Iota(dims, perm)
    except ValueError as error:
        scanner.fail(f"a valid order of devices ({error})", begin)


def _read_dim(scanner: Scanner) -> DimSharding:
    return DimSharding(*read_dim(scanner, lambda: _read_axis(scanner)))


def _read_axis(scanner: Scanner) -> AxisRef:
    return read_part(scanner, _read_name(scanner))


def _read_name(scanner: Scanner) -> str:
    """A name in quotes of either kind; older texts have none."""
    quote = "'" if scanner.accept("'") else '"' if scanner.accept('"') else ""
    if not quote:
        name = scanner.word()
        if not name:
            scanner.fail("the name of a mesh axis, as 'x'")
        return name
    text, parts = scanner.text, []
    while True:
        found = _IN_NAME.match(text, scanner.position)
        assert found is not None
        parts.append(found[0])
        scanner.position = found.end()
        letter = text[scanner.position : scanner.position + 1]
        if letter == quote:
            scanner.position += 1
            return "".join(parts)
        if letter == "\\":
            escape = text[scanner.position + 1 : scanner.position + 2]
            if escape not in _ESCAPES:
                scanner.fail(r"an escape, as \' or \\", scanner.position)
            parts.append(_ESCAPES[escape])
            scanner.position += 2
        elif letter in ("'", '"') and letter:
            parts.append(letter)
            scanner.position += 1
        else:
            scanner.fail(f"a {quote} that ends the name", scanner.position)
