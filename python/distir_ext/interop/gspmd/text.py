"""Parses and prints the text of HLO shardings.

sharding ::= single | "{" [single ("," single)*] "}" | single without its braces
single   ::= "{" word* "}" | named (see ``named.py``)
word     ::= "replicated" | "manual" | "unknown" | "unreduced" | "maximal" | "device=" int
| "devices=[" ints "]" (ints | "<=[" ints "]" ["T(" ints ")"])
| "last_tile_dim_replicate" | "last_tile_dims={" kinds "}"
| ("shard_as" | "shard_like") int | "metadata={" ... "}"
"""

from __future__ import annotations

from typing import Any

from distir_ext.interop._text import Scanner
from distir_ext.interop.gspmd.metadata import read_metadata
from distir_ext.interop.gspmd.named import read_iota, read_named
from distir_ext.interop.gspmd.sharding import SIMPLE_KINDS, HloSharding, ShardGroup
from distir_ext.interop.gspmd.tiles import SUBGROUPS
from distir_ext.text.errors.tracebacks import short_tracebacks

_KINDS = (*SIMPLE_KINDS, "maximal", "device", "devices")
_WORDS = (
    *_KINDS,
    "last_tile_dim_replicate",
    "last_tile_dims",
    "shard_as",
    "shard_like",
    "metadata",
)
_UNBRACED = ("devices", "maximal", "mesh", "maximal_mesh")
"""First words of texts that name devices, which are also written without braces."""


@short_tracebacks
def parse(text: str) -> HloSharding:
    """Reads a sharding as it stands in HLO behind ``sharding=``, or in ``mhlo.sharding``.

    Nothing is changed: ``str`` of the result is the text, up to white space and comments, and with
    the braces, which a text that names devices may lack: ``devices=[4,2]<=[8]``.

    Args:
        text: Of any version, also a tuple.

    Raises:
        FormatError: It is none: a ValueError that says where, and what could stand there.
        TypeError: It is no text.

    Example:
        >>> parse("{devices=[4,2]<=[2,4]T(1,0)}").device_list
        (0, 4, 1, 5, 2, 6, 3, 7)
        >>> parse("{devices=[4,2]<=[2,4}")
        Traceback (most recent call last):
            ...
        distir_ext.interop._text.FormatError: GSPMD sharding, column 21: expected ']', ...
    """
    scanner = Scanner(text, "GSPMD sharding")
    if _sees_word(scanner):
        sharding = _single(scanner, is_braced=False)
        scanner.nothing_more()
        return sharding
    scanner.expect("{")
    if scanner.sees("{") or scanner.sees("}"):
        elements = scanner.until("}", lambda: _element(scanner))
        sharding = HloSharding("tuple", elements=tuple(elements))
    else:
        sharding = _single(scanner)
    scanner.nothing_more()
    return sharding


def _element(scanner: Scanner) -> HloSharding:
    scanner.expect("{")
    return _single(scanner)


def _sees_word(scanner: Scanner) -> bool:
    """Returns whether a sharding begins without its brace."""
    begin = scanner.skip()
    word = scanner.word()
    scanner.position = begin
    return word in _UNBRACED


def _single(scanner: Scanner, is_braced: bool = True) -> HloSharding:
    """Reads a sharding after its opening brace, with the closing one if it is braced."""
    if scanner.sees("mesh") or scanner.sees("maximal_mesh"):
        named, metadata = read_named(scanner)
        if is_braced:
            scanner.expect("}")
        return HloSharding("named", named=named, metadata=metadata)
    begin = scanner.skip()
    found: dict[str, Any] = {}
    while not (scanner.accept("}") if is_braced else scanner.skip() == len(scanner.text)):
        here = scanner.skip()
        word = scanner.word()
        if word not in _WORDS:
            expected = "what a sharding is" if not found else "'}' or what a sharding has"
            scanner.fail(f"{expected}: one of {', '.join(_WORDS)}", here)
        if word in found:
            scanner.fail(f"{word!r} once", here)
        found[word] = _value(scanner, word)
    return _made(scanner, begin, found)


def _value(scanner: Scanner, word: str) -> Any:
    """Reads the value of a word; None for a word that has none."""
    if word in ("shard_as", "shard_like"):
        return scanner.integer("the number of a group")
    if word in (*SIMPLE_KINDS, "maximal", "last_tile_dim_replicate"):
        return None
    scanner.expect("=")
    if word == "device":
        return scanner.integer("a device id")
    if word == "metadata":
        return read_metadata(scanner)
    if word == "last_tile_dims":
        scanner.expect("{")
        return tuple(scanner.until("}", lambda: _subgroup(scanner)))
    scanner.expect("[")
    dims = tuple(scanner.one_or_more(lambda: scanner.integer("the size of a tile dimension")))
    scanner.expect("]")
    if scanner.accept("<="):
        return dims, read_iota(scanner)
    return dims, tuple(scanner.one_or_more(lambda: scanner.integer("a device id, or '<='")))


def _subgroup(scanner: Scanner) -> str:
    here = scanner.skip()
    word = scanner.word()
    if word not in SUBGROUPS:
        scanner.fail(f"one of {', '.join(SUBGROUPS)}", here)
    return word


def _made(scanner: Scanner, begin: int, found: dict[str, Any]) -> HloSharding:
    kinds = [word for word in _KINDS if word in found]
    if kinds not in ([kind] for kind in (*SIMPLE_KINDS, "devices")) and (
        kinds != ["maximal", "device"]
    ):
        scanner.fail(
            "one kind of sharding (devices=, maximal device=, replicated, manual, unknown or "
            f"unreduced) instead of {' and '.join(kinds) or 'none'}",
            begin,
        )
    groups = [word for word in ("shard_as", "shard_like") if word in found]
    if len(groups) > 1:
        scanner.fail("one of shard_as and shard_like", begin)
    fields: dict[str, Any] = {"metadata": found.get("metadata", "")}
    if groups:
        fields["shard_group"] = ShardGroup(groups[0], found[groups[0]])
    subgroups = [word for word in ("last_tile_dim_replicate", "last_tile_dims") if word in found]
    if subgroups and (len(subgroups) > 1 or kinds != ["devices"]):
        scanner.fail(
            "last_tile_dims or last_tile_dim_replicate, behind devices=, and not both", begin
        )
    if kinds == ["devices"]:
        fields["tile_dims"], fields["devices"] = found["devices"]
        replicate = "last_tile_dim_replicate" in found
        fields["subgroups"] = ("replicated",) if replicate else found.get("last_tile_dims", ())
    if kinds[0] == "maximal":
        fields["device"] = found["device"]
    kind = "tiled" if kinds == ["devices"] else kinds[0]
    try:
        return HloSharding(kind, **fields)
    except ValueError as error:
        scanner.fail(f"a valid sharding ({error})", begin)
