"""Prints modules as Python source, in which no name can become code.

TVM prints names of functions as they are, and a variable may be called ``class`` or ``1a``. Files
of others name functions and parameters, and who runs what is printed would run these names.
"""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Callable, Container
from typing import Any

import tvm

from distir_ext.text.printable import printable_line, shown

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UNREADABLE = "|".join([*keyword.kwlist, r"[0-9]+[A-Za-z_]\w*", r"[0-9]+"])
# Where TVM prints a variable that it defines: at the begin of a line, among parameters, in a loop.
_UNREADABLE_VARIABLE = re.compile(
    rf"(?:^\s*|[(,]\s?|\bfor )(?:{_UNREADABLE})(?=: | = |\[| in |, \w+ in )", re.MULTILINE
)
_BYTES = re.compile(r"(?<!\\)((?:\\\\)*)((?:\\x[89A-F][0-9A-F])+)")
# The fields of nodes of TVM's JSON that name something in its script.
_VARIABLES = ("ir.Var", "relax.expr.DataflowVar")
_FUNCTION = "ir.GlobalVar"


def comment(text: str) -> str:
    """A text as it may stand in a comment of Python: one line."""
    return printable_line(text)


def identifier(name: str, taken: Container[str] = ()) -> str:
    """A name as Python can read it; the same one if it can be read and is not taken.

    Example:
        >>> identifier("up_proj"), identifier("<lambda>"), identifier("class"), identifier("1a")
        ('up_proj', '_lambda_', 'class_', '_1a')
    """
    found = re.sub(r"[^A-Za-z0-9_]", "_", name)
    if keyword.iskeyword(found):
        found += "_"
    if not _IDENTIFIER.match(found):
        found = f"_{found}"
    number, base = 0, found
    while found in taken:
        number += 1
        found = f"{base}_{number}"
    return found


def source(mod: tvm.IRModule, script: Callable[[tvm.IRModule], str]) -> str:
    """Returns a module's script, with names changed that Python cannot read.

    Args:
        mod: A module.
        script: Prints it; called again of a module with such names, if there are any.

    Raises:
        ValueError: Such a name is in a module that TVM cannot write as JSON.
    """
    names = [gv.name_hint for gv in mod.get_global_vars()]
    wrong = [name for name in names if identifier(name) != name]
    if not wrong:
        text = script(mod)
        if not _UNREADABLE_VARIABLE.search(text):
            return _with_characters(text)
    try:
        graph = json.loads(tvm.ir.save_json(mod))
    except Exception as error:  # of many kinds
        what = f"the function '{shown(wrong[0])}'" if wrong else "a variable"
        raise ValueError(
            f"{what} has a name that Python cannot read, and TVM cannot rename it: "
            f"{shown(str(error))}"
        ) from error
    _rename(graph["nodes"], names)
    return _with_characters(script(tvm.ir.load_json(json.dumps(graph))))


def _with_characters(text: str) -> str:
    """The text with characters in strings, where TVM prints the bytes of their UTF-8."""

    def character(found: re.Match[str]) -> str:
        data = bytes.fromhex(found[2].replace("\\x", ""))
        return found[1] + ascii(data.decode("utf-8", "replace"))[1:-1]

    return _BYTES.sub(character, text) if "\\x" in text else text


def _rename(nodes: list[Any], names: list[str]) -> None:
    texts: dict[str, int] = {}  # new nodes by what they say

    def renamed(number: int, new: str) -> int:
        if new == nodes[number]["data"]:
            return number
        if new not in texts:
            texts[new] = len(nodes)
            nodes.append({"type": "ffi.String", "data": new})
        return texts[new]

    functions: dict[str, str] = {}
    taken = {name for name in names if identifier(name) == name}
    for name in sorted(set(names) - taken):
        functions[name] = identifier(name, taken)
        taken.add(functions[name])
    for node in list(nodes):
        fields = node.get("data")
        if node["type"] in _VARIABLES:
            name = nodes[fields["name"]]["data"]
            if name:
                fields["name"] = renamed(fields["name"], identifier(name))
        elif node["type"] == _FUNCTION:
            name = nodes[fields["name_hint"]]["data"]
            fields["name_hint"] = renamed(fields["name_hint"], functions.get(name, name))
        elif node["type"] == "ffi.Map":  # keys and values in turn
            for place in range(1, len(fields), 2):
                if nodes[fields[place - 1]].get("data") == "global_symbol":
                    name = nodes[fields[place]]["data"]
                    fields[place] = renamed(fields[place], functions.get(name, name))
        elif node["type"] == "ir.IRModule":
            table = nodes[fields["global_var_map_"]]["data"]  # keys and values in turn
            for place in range(0, len(table), 2):
                name = nodes[table[place]]["data"]
                table[place] = renamed(table[place], functions.get(name, name))
