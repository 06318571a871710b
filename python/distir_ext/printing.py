"""Modules as Python files that run, with shardings as comments in the words of users."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.distributed import DTensorType

from distir_ext._modules import check_module
from distir_ext.notation import Notation

_LONGEST_ATTRIBUTE = 120  # characters of a module attribute before the functions
_HEADER = re.compile(r"^# (?=(?:from|import) )", re.MULTILINE)
_CLASS = re.compile(r"^class (\w+):", re.MULTILINE)
_FUNCTION = re.compile(r"^    def (\w+)[(\[].*$", re.MULTILINE)


def script(mod: tvm.IRModule, *, comments: bool = True) -> str:
    """A module as the text of a Python file, which makes the same module when it is run.

    ``mod.script()`` prints for the parser; this prints for people and files: imports are there,
    every DTensor has a comment with its sharding as plans state it, also where it is a worker's
    shard, and long attributes, such as the signature that LowerDistIR leaves, come behind the
    functions.

    Args:
        mod: A module after any pass.
        comments: Whether shardings are added as comments.

    Returns:
        Python source. Large constants are in it, as JSON.

    Raises:
        TypeError: ``mod`` is no module.
        ValueError: Names of mesh axes in the module do not fit its meshes.

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
    return {key: value for key, value in plain.items() if len(repr(value)) > _LONGEST_ATTRIBUTE}


def _plain(value: Any) -> Any:
    """The same as Python prints and reads it."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        return {_plain(key): _plain(each) for key, each in value.items()}
    if isinstance(value, Sequence):
        return [_plain(each) for each in value]
    return value


class _Comments:
    """What is said of the functions of a module."""

    def __init__(self, mod: tvm.IRModule) -> None:
        self._mod = mod
        self._notation = Notation(mod)
        self._functions = {
            gv.name_hint: function
            for gv, function in mod.functions.items()
            if isinstance(function, relax.Function)
        }

    def of_bindings(self) -> dict[Any, str]:
        """By binding the sharding of what it binds."""
        texts = {}
        for function in self._functions.values():
            in_worker = self._in_worker(function)
            for binding in _bindings(function.body):
                text = self._text(binding.var, in_worker)
                if text is not None:
                    texts[binding] = text
        return texts

    def of_parameters(self) -> dict[str, list[str]]:
        """By name of a function a line for each parameter that has a sharding."""
        lines: dict[str, list[str]] = {}
        for name, function in self._functions.items():
            in_worker = self._in_worker(function)
            for param in function.params:
                text = self._text(param, in_worker)
                if text is not None:
                    lines.setdefault(name, []).append(f"{param.name}: {text}")
        return lines

    def _in_worker(self, function: relax.Function) -> Mapping[str, str]:
        """What LowerDistIR noted of the tensors of a worker's program, by name."""
        noted = tvm_ffi.get_global_func("distir.lower.WorkerShardings")(self._mod, function)
        return {str(name): str(text) for name, text in noted.items()}

    def _text(self, var: relax.Var, in_worker: Mapping[str, str]) -> str | None:
        if not isinstance(var.ty, tvm.ir.TupleType):
            return self._of_tensor(var.ty, var.name, in_worker)
        texts = [
            self._of_tensor(field, f"{var.name}.{index}", in_worker)
            for index, field in enumerate(var.ty.fields)
        ]
        if all(text is None for text in texts):
            return None
        return "; ".join(text or "-" for text in texts)

    def _of_tensor(self, type_: Any, name: str, in_worker: Mapping[str, str]) -> str | None:
        # A DTensor's type says its placement itself.
        if isinstance(type_, DTensorType):
            return self._notation.text(type_)
        return in_worker.get(name)


def _bindings(body: relax.SeqExpr) -> Iterator[relax.Binding]:
    for block in body.blocks:
        for binding in block.bindings:
            yield binding
            value = getattr(binding, "value", None)
            if isinstance(value, relax.If):
                yield from _bindings(value.true_branch)
                yield from _bindings(value.false_branch)


def _with_parameters(text: str, lines: dict[str, list[str]]) -> str:
    """The text with comments behind the first line of each function."""

    def replace(match: re.Match[str]) -> str:
        said = "".join(f"\n        # {line}" for line in lines.get(match[1], ()))
        return match[0] + said

    return _FUNCTION.sub(replace, text)
