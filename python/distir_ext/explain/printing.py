"""Prints modules as Python files that run, with shardings in the users' notation as comments."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import relax

from distir_ext.explain.variables import variable_shardings
from distir_ext.native.modules import check_module
from distir_ext.text.errors.tracebacks import short_tracebacks
from distir_ext.text.printable import shown
from distir_ext.text.python_source import comment, source

_LONGEST_ATTRIBUTE = 120  # characters of a module attribute before the functions
_HEADER = re.compile(r"^# (?=(?:from|import) )", re.MULTILINE)
_CLASS = re.compile(r"^class (\w+):", re.MULTILINE)
_FUNCTION = re.compile(r"^    def (\w+)[(\[].*$", re.MULTILINE)


@short_tracebacks
def script(mod: tvm.IRModule, *, comments: bool = True) -> str:
    """A module as the text of a Python file, which makes the same module when it is run.

    ``mod.script()`` prints for the parser; this prints for people and files: imports are there,
    every DTensor has a comment with its sharding as plans state it, also where it is a worker's
    shard, and long attributes, such as the signature that LowerDistIR leaves, come behind the
    functions. Functions and variables have names that Python can read: one of a file, such as
    ``<lambda>`` or ``class``, is printed as ``_lambda_`` or ``class_``.

    Args:
        mod: A module after any pass.
        comments: Whether shardings are added as comments.

    Returns:
        Python source. Large constants are in it, as JSON.

    Raises:
        TypeError: ``mod`` is no module.
        ValueError: Names of mesh axes in the module do not fit its meshes, or TVM cannot rename
            what Python cannot read.

    Example, of a propagated module::

        from tvm.script import ir as I
        from tvm.script import relax as R
        import distir_ext  # the operators R.dist.* and R.ccl.*

        @I.ir_module
        class Module:
            I.module_attrs({"distir.mesh_axes": {"mesh": [["dp", "tp"]]}})
            I.module_global_infos({"mesh": [R.device_mesh((2, 2), I.Range(0, 4))]})
            @R.function
            def main(x: R.DTensor((8, 16), "float32", "mesh[0]", "S[0], R")) -> ...:
                # x: ('dp', None)
                y: R.DTensor(...) = R.nn.relu(x)  # ('dp', None)
                return y
    """
    check_module(mod)
    return source(mod, lambda named: _script(named, comments))


def _script(mod: tvm.IRModule, comments: bool) -> str:
    behind = _long_attributes(mod)
    for key in behind:
        mod = mod.without_attr(key)
    writer = _Comments(mod)
    annotated: dict[Any, str] = writer.of_bindings() if comments else {}
    text = mod.script(show_meta=True, obj_to_annotate=annotated or None)
    text = _HEADER.sub("", text)
    imports = "import distir_ext  # noqa: F401 - lets TVMScript parse R.dist and R.ccl\n"
    if text.startswith("metadata = "):
        imports += "import tvm\n"
    if comments:
        text = _with_parameters(text, writer.of_parameters())
    found = _CLASS.search(text)
    name = found[1] if found else "Module"
    lines = [f"{name} = {name}.with_attr({key!r}, {value!r})" for key, value in behind.items()]
    return imports + text + "".join(f"\n{line}" for line in ("", *lines) if lines) + "\n"


def _long_attributes(mod: tvm.IRModule) -> dict[str, Any]:
    attrs = dict(mod.attrs.items()) if mod.attrs else {}
    plain = {str(key): _plain(value) for key, value in sorted(attrs.items())}
    return {
        key: value
        for key, value in plain.items()
        if _is_plain(value) and len(repr(value)) > _LONGEST_ATTRIBUTE
    }


def _is_plain(value: Any) -> bool:
    """Returns whether Python can read back the text of a value; it cannot for TVM's objects."""
    if isinstance(value, dict):
        return all(_is_plain(each) for item in value.items() for each in item)
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str)


def _plain(value: Any) -> Any:
    """Converts a value to plain types that Python prints and reads back."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        return {_plain(key): _plain(each) for key, each in value.items()}
    if isinstance(value, Sequence):
        return [_plain(each) for each in value]
    return value


class _Comments:
    """Comments about the functions of a module."""

    def __init__(self, mod: tvm.IRModule) -> None:
        self._functions = {
            name.name_hint: variable_shardings(mod, function)
            for name, function in mod.functions.items()
            if isinstance(function, relax.Function)
        }

    def of_bindings(self) -> dict[Any, str]:
        """Returns the sharding of each variable that a binding makes, as a comment by binding."""
        return {
            each.binding: comment(each.sharding)
            for found in self._functions.values()
            for each in found
            if each.binding is not None
        }

    def of_parameters(self) -> dict[str, list[str]]:
        """Returns a line for each sharded parameter, by function."""
        lines: dict[str, list[str]] = {}
        for name, found in self._functions.items():
            for each in found:
                if each.binding is None:
                    lines.setdefault(name, []).append(
                        comment(f"{shown(each.name)}: {each.sharding}")
                    )
        return lines


def _with_parameters(text: str, lines: dict[str, list[str]]) -> str:
    """The text with comments behind the first line of each function."""

    def replace(match: re.Match[str]) -> str:
        said = "".join(f"\n        # {line}" for line in lines.get(match[1], ()))
        return match[0] + said

    return _FUNCTION.sub(replace, text)
