"""Programs in which one entity (a variable, function, axis, ..) has a hostile name."""

from __future__ import annotations

from collections.abc import Callable

from tvm import relax, te, tirx
from tvm.script import relax as R

import distir_ext as dx

MARK = "EVIL"
NAMES = {
    "all at once": f"w\n{MARK}()\r\x1b[2J\x9b1m\u202e\u2028\"'\\<evil/a='b'>&--></script>$x_{{",
    "others at once": (
        f"w\r{MARK}()\n\x1b]8;;http://evil\x1b\\\a\v\f\x1c\x85\xad\u200b\u2029\u2060\u206a\ufeff\ufff9\U000e0041"
        '\uffff"""[bold]]]></style><!--<evil>%s%n{0}\\N{DASH}\\'
    ),
    "a million letters": f"w\n{MARK}" + "w" * 1_000_000,
}
"""New lines, escapes, bidi marks, quotes, tags, formulas, marks that nobody sees; a long one."""

ODD = ("class", "None", "1a", "12", "<lambda>", "a b", "é", ":smile:", "[red]x[/]", "$x^{$")
"""Names that are harmless, and yet no names in Python."""


def module(**names: str):
    """``main(x, w)`` calls ``part``; each is called as the keyword says, by default by its own."""
    kinds = ("x", "w", "h", "main", "part", "kernel", "tensor", "size")
    name = {**dict(zip(kinds, kinds, strict=True)), **names}
    size = tirx.Var(name["size"], "int64") if "size" in names else 16
    builder = relax.BlockBuilder()
    z = relax.Var("z", R.Tensor((size, 16), "float32"))
    with builder.function(name["part"], [z]):
        builder.emit_func_output(builder.emit(relax.op.nn.relu(z)))
    (part,) = builder.get().get_global_vars()
    x = relax.Var(name["x"], R.Tensor((size, 8), "float32"))
    w = relax.Var(name["w"], R.Tensor((8, 16), "float32"))
    with builder.function(name["main"], [x, w]):
        h = builder.emit(relax.op.matmul(x, w), name_hint=name["h"])
        k = builder.emit_te(
            lambda a: te.compute(a.shape, lambda i, j: a[i, j] + 1.0, name=name["tensor"]),
            h,
            primfunc_name_hint=name["kernel"],
        )
        called = builder.emit(relax.Call(part, [k]))
        builder.emit_func_output(builder.emit(relax.op.exp(called)))
    return builder.get()


def annotated(mod, axis: str = "tp"):
    """With both parameters of main on one axis, so that one of them moves."""
    (main,) = (
        gv.name_hint
        for gv, function in mod.functions.items()
        if isinstance(function, relax.Function) and len(function.params) == 2
    )
    return dx.annotate(mod, dx.Mesh((2, 2), ("dp", axis)), {"(?s).*": (None, axis)}, func=main)


def everywhere(name: str):
    """A program all of whose entities have names that begin with the letters of their kind."""
    kinds = ("x", "w", "h", "main", "part", "kernel", "tensor")
    return annotated(module(**{kind: f"{kind}{name}" for kind in kinds}), axis=name)


ENTITIES: dict[str, Callable[[str], object]] = {
    "parameter": lambda name: annotated(module(w=name)),
    "input": lambda name: annotated(module(x=name)),
    "variable": lambda name: annotated(module(h=name)),
    "function": lambda name: annotated(module(main=name)),
    "called function": lambda name: annotated(module(part=name)),
    "kernel": lambda name: annotated(module(kernel=name)),
    "tensor of a kernel": lambda name: annotated(module(tensor=name)),
    "symbolic size": lambda name: annotated(module(size=name)),
    "mesh axis": lambda name: annotated(module(), axis=name),
    "attribute": lambda name: annotated(module()).with_attr(name, name),
}
