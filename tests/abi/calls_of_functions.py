"""Calls every function that the native library registers, with arguments that are none.

``python -m tests.abi.calls_of_functions [name ..]`` prints the name of a function before it calls
it, so that whoever runs it knows which one has ended the process; then a line for each call whose
outcome is wrong.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.script import relax as R

import distir_ext  # registers them

MANY = 40
"""More arguments than any function takes."""

# What is called by its address, or waits for a controller or a launcher by design.
NOT_CALLED = {
    "distir.runtime.guarded_call",
    "distir.runtime.exit_with_controller",
}
_OBJECTS = {
    "None": lambda: None,
    "int": lambda: 0,
    "negative": lambda: -1,
    "large": lambda: 2**62,
    "float": lambda: 0.5,
    "str": lambda: "text",
    "bytes": lambda: b"bytes",
    "list": list,
    "dict": dict,
    "list of None": lambda: [None],
    "list of lists": lambda: [[None], [3]],
    "dict of None": lambda: {"a": None},
    "tensor": lambda: tvm.runtime.tensor(np.zeros((2, 3), "float32")),
    "function": lambda: tvm_ffi.convert(lambda *args: None),
    "module": tvm.IRModule,
    "Relax function": lambda: _program()["main"],
    "TIR function": lambda: tirx.PrimFunc([], tirx.Evaluate(0)),
    "expression": lambda: relax.Var("x", R.Tensor((2, 3), "float32")),
    "call": lambda: relax.op.exp(relax.Var("x", R.Tensor((2, 3), "float32"))),
    "mesh": lambda: (
        relax.distributed.DeviceMesh((2,), relax.distributed.Range(0, 2))
        if hasattr(relax.distributed, "Range")
        else relax.distributed.DeviceMesh((2,), [0, 1])
    ),
    "type": lambda: R.Tensor((2, 3), "float32"),
}


def _program() -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", R.Tensor((2, 3), "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.exp(x)))
    return builder.get()


def names() -> list[str]:
    """Those of the library; those that only tests have, and Python's, are left out."""
    return sorted(
        name
        for name in tvm_ffi.registry.list_global_func_names()
        if name.startswith("distir.")
        and not name.startswith("distir.test.")
        and name not in NOT_CALLED
    )


def signature(name: str) -> list[str] | None:
    """The types of its parameters; None: it takes any number of anything."""
    try:
        tvm_ffi.get_global_func(name)(*[None] * MANY)
    except TypeError as error:
        if found := re.search(r"when calling: `[\w.]+\((.*?)\) -> .*`\. Expected \d+", str(error)):
            parts = re.split(r"(?:^|, )\d+: ", found[1])[1:]
            return parts
    except Exception:
        pass
    return None


def default(kind: str) -> Any:
    """A value of a type of a signature."""
    for begin, value in (
        ("Optional", None),
        ("str", "text"),
        ("bytes", b"bytes"),
        ("int", 0),  # not 1, as functions that take a descriptor close it
        ("float", 1.0),
        ("bool", True),
        ("Array", []),
        ("Map", {}),
        ("ffi.Shape", tvm_ffi.Shape((1,))),
        ("DataType", tvm_ffi.dtype("float32")),
        ("ffi.Function", tvm_ffi.convert(lambda *args: None)),
        ("ffi.Module", None),
    ):
        if kind.startswith(begin):
            return value
    if kind in ("DLTensor*", "ffi.Tensor"):
        return _OBJECTS["tensor"]()
    return _program()


def calls(kinds: list[str]) -> Iterator[tuple[str, list[Any], bool]]:
    """Arguments, what they are, and whether none of a wrong type may be taken."""
    for place, kind in enumerate(kinds):
        for what, make in _OBJECTS.items():
            arguments = [default(each) for each in kinds]
            arguments[place] = make()
            refuses = what == "None" and not kind.startswith(("Optional", "Any"))
            yield f"{what} as argument {place}, {kind}", arguments, refuses
    for number in {0, len(kinds) - 1, len(kinds) + 1} - {len(kinds), -1}:
        yield f"{number} arguments", [None] * number, True
    yield (
        "None only",
        [None] * len(kinds),
        any(not each.startswith(("Optional", "Any")) for each in kinds),
    )


def check(name: str) -> Iterator[str]:
    """Calls one; yields what is wrong."""
    function = tvm_ffi.get_global_func(name)
    takes_any, kinds = False, signature(name)
    if kinds is None:
        takes_any, kinds = True, ["Any"] * 4
    for what, arguments, must_refuse in calls(kinds):
        refuses = must_refuse and not takes_any
        try:
            made = function(*arguments)
        except TypeError:
            continue
        except Exception as error:
            if refuses:
                yield f"{name}, {what}: {type(error).__name__}: {error}"
        else:
            if refuses:
                yield f"{name}, {what}: nothing is refused"
            del made


def main(chosen: list[str]) -> None:
    for name in chosen or names():
        print(f"calling {name}", flush=True)
        for problem in check(name):
            print(f"wrong: {problem[:300]!r}", flush=True)
    print("done", flush=True)


if __name__ == "__main__":
    assert distir_ext
    main(sys.argv[1:])
