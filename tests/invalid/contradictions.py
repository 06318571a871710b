"""Rules, plans and annotations that contradict shapes, each other or themselves.

Run as a program, each case is a process of its own, so that a crash is an outcome of the case:

    python tests/invalid/contradictions.py        # JSON: {case: [type, message]}
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import tvm
from tvm import relax
from tvm.relax.distributed import DeviceMesh, Placement
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R
from tvm.script.parser import tirx as T

import distir_ext as dx

MESH = dx.Mesh((2, 2), ("a", "b"))
SECONDS = 60  # for one case, on a busy machine


class Case(NamedTuple):
    run: Callable[[], Any]
    error: str  # the type of the exception
    message: str  # a regular expression


CASES: dict[str, Case] = {}


@I.ir_module(s_tir=True)
class Program:
    """A kernel and a packed function."""

    @T.prim_func(private=True, s_tir=True)
    def scale(
        A: T.Buffer((8, 6), "float32"), B: T.Buffer((6,), "float32"), C: T.Buffer((8, 6), "float32")
    ):
        for i, j in T.grid(8, 6):
            with T.sblock("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = A[vi, vj] * B[vj]

    @R.function
    def main(x: R.Tensor((8, 6), "float32"), w: R.Tensor((6,), "float32")):
        cls = Program
        y = R.call_tir(cls.scale, (x, w), out_ty=R.Tensor((8, 6), "float32"))
        z = R.call_dps_packed("tests.scale", (y, w), out_ty=R.Tensor((8, 6), "float32"))
        return z


PLAN = {"x": ("a", "b")}
PHASES = [
    dx.transform.PropagateSharding,
    dx.transform.LegalizeRedistribute,
    dx.transform.OptimizeCollectives,
    dx.transform.LowerDistIR,
    dx.transform.LowerCCL,
]


def with_kernel_rule(mod: tvm.IRModule, rule: Any) -> tvm.IRModule:
    functions = {
        gv: f.with_attr("distir.rule", rule) if isinstance(f, tvm.tirx.PrimFunc) else f
        for gv, f in mod.functions.items()
    }
    return tvm.IRModule(functions, global_infos=mod.global_infos)


def build(mod: tvm.IRModule, plan: Any = PLAN) -> Any:
    return dx.build(dx.annotate(mod, MESH, plan), target="llvm")


# ---- rules

# Text, and what is wrong with it.
BAD_RULES = {
    "empty": ("", "it is empty"),
    "blank": ("  \t", "it is empty"),
    "no result": ("n k, k ->", "a tensor is missing"),
    "repeated in an operand": ("n n, n -> n n", "`n` stands twice in operand 0"),
    "repeated in a result": ("n k, k -> n (k n)", "`n` stands twice in result 0"),
    "repeated in a merged dimension": ("(n n) k, k -> n k", "`n` stands twice in operand 0"),
    "open parenthesis": ("(n k, k -> n k", r"`\)` expected behind the names"),
    "closed parenthesis": ("n) k, k -> n k", r"`->` expected|`\)`"),
    "parentheses in parentheses": ("((n) k), k -> n k", r"`\)` expected behind the names"),
    "not ASCII": ("é k, k -> é k", "`é` is not expected"),
    "not ASCII, of four bytes": ("n k, k -> n 🦀", "`🦀` is not expected"),
    "combining": ("n k, k -> n k\u0301", "`\u0301` is not expected"),
    "a newline and a zero": ("n k, k -> n \0k", "is not expected"),
    "reduced but a result": ("n k, k -> n k; sum k", "`k` is reduced but a dimension of a r"),
    "reduced in two ways": ("n k, k -> n _; sum k; max k", "`k` is reduced by sum and by max"),
    "two sizes of a name": ("n k, k -> n k; k=6; k=3", "`k` is stated as 6 and as 3"),
    "size that is too large": ("n k, k -> n k; k=99999999999999999999", "positive integer"),
    "negative size": ("n k, k -> n k; k=-6", "is not expected|positive integer"),
    "unknown factor": ("n k, k -> n k; sum m", "`m` is no dimension of any tensor"),
    "size of an unknown factor": ("n k, k -> n k; m=3", "`m` is no dimension of any tensor"),
    "a rank too small": ("n, k -> n k", "operand 0 has 1 dimension there, but 2 in the call"),
    "a rank too large": ("n k, k k2 -> n k", "operand 1 has 2 dimensions there, but 1"),
    "a result's rank": ("n k, k -> n", "result 0 has 1 dimension there, but 2 in the call"),
    "too few operands": ("n k -> n k", "it has 1 operand, the call 2"),
    "too many results": ("n k, k -> n k, n", "it has 2 results, the call 1"),
    "sizes of one name": ("n k, n -> n k", "`n` is 8 by dimension 0 of operand 0 and 6"),
    "a stated size": ("n k, k -> n k; n=4", "`n` is 4 by its clause and 8 by dimension 0"),
    "a product": ("(n m) k, k -> (n m) k; n=3; m=2", "which is not `n` .3. times `m` .2."),
    "a size that does not divide": ("(n m) k, k -> (n m) k; m=3", "dimension 0 of operand 0"),
    "an unknown size": ("(n m) k, k -> (n m) k", "the size of `n` .* is not known"),
    "transposed": ("n k, k -> k n", "`k` is 6 by .* and 8 by|`n` is 8 by .* and 6 by"),
}


def packed_rule(text: str) -> None:
    dx.register_rule("tests.scale", text, replace=True)
    build(Program)


def late_rule(text: str, phase: int) -> None:
    """The rule changes between two passes."""
    dx.register_rule("tests.scale", "n k, k -> n k", replace=True)
    mod = dx.annotate(with_kernel_rule(Program, "n k, k -> n k"), MESH, PLAN)
    for each in PHASES[:phase]:
        mod = each()(mod)
    dx.register_rule("tests.scale", text, replace=True)
    mod = with_kernel_rule(mod, text)
    for each in PHASES[phase:]:
        mod = each()(mod)


for _name, (_text, _message) in BAD_RULES.items():
    CASES[f"rule of a packed function: {_name}"] = Case(
        lambda text=_text: packed_rule(text),
        "ValueError",
        rf"^rule \"[\s\S]*\" of tests\.scale: .*({_message})",
    )
    CASES[f"rule of a kernel: {_name}"] = Case(
        lambda text=_text: build(with_kernel_rule(Program, text)),
        "ValueError",
        rf"^rule \"[\s\S]*\" of kernel `scale`: .*({_message})",
    )
for _phase, _pass in enumerate(PHASES[1:4], 1):
    for _name in ("a rank too small", "too few operands", "sizes of one name"):
        CASES[f"rule changed before {_pass.__name__}: {_name}"] = Case(
            lambda text=BAD_RULES[_name][0], phase=_phase: late_rule(text, phase),
            "ValueError",
            rf"of (tests.scale|kernel `scale`): .*({BAD_RULES[_name][1]})",
        )


def rule_of_another_type(value: Any) -> None:
    build(with_kernel_rule(Program, value))


CASES |= {
    "rule of a kernel that is a number": Case(
        lambda: rule_of_another_type(3),
        "ValueError",
        "attribute distir.rule of kernel `scale` is not a string",
    ),
    "rule of a kernel that is a list": Case(
        lambda: rule_of_another_type(["n k, k -> n k"]),
        "ValueError",
        "attribute distir.rule of kernel `scale` is not a string",
    ),
    "rule as bytes": Case(
        lambda: dx.register_rule("tests.scale", b"n k, k -> n k"),  # type: ignore[arg-type]
        "TypeError",
        "the rule of tests.scale is a bytes, not a string",
    ),
    "rule with half a surrogate pair": Case(
        lambda: dx.register_rule("tests.scale", "n \ud800, k -> n k"),
        "ValueError",
        r"rule .* of .tests.scale.: half of a surrogate pair is no text",
    ),
    "rule without a name": Case(
        lambda: dx.register_rule("", "n k, k -> n k"), "ValueError", "a rule needs the name of"
    ),
    "reduction of another type": Case(
        lambda: dx.register_rule("tests.scale", "n k, k -> n _", reduce={"k": "median"}),
        "ValueError",
        r"of tests\.scale: `median` is neither a reduction",
    ),
    "size of another type": Case(
        lambda: dx.register_rule("tests.scale", "n k, k -> n k", sizes={"k": "six"}),
        "ValueError",
        r"of tests\.scale: `k=` needs a positive integer",
    ),
}

# ---- plans


BAD_PLANS: dict[str, tuple[Any, str, str]] = {
    "not a plan": (["x"], "TypeError", "the plan is a list, not a mapping"),
    "a key that is a number": (
        {3: ("a", None)},
        "TypeError",
        "the plan has the key 3, not a pattern on names",
    ),
    "a key that is bytes": (
        {b"x": ("a", None)},
        "TypeError",
        "the plan has the key b'x', not a pattern",
    ),
    "a key that is None": (
        {None: ("a", None)},
        "TypeError",
        "the plan has the key None, not a pattern",
    ),
    "not a regular expression": ({"x(": ("a", None)}, "ValueError", r"pattern 'x\(' is not a reg"),
    "a repeat of nothing": ({"*": ("a", None)}, "ValueError", r"pattern '\*' is not a regular"),
    "no such parameter": ({"v": ("a", None)}, "ValueError", "pattern 'v' matches no parameter"),
    "an empty pattern": ({"": ("a", None)}, "ValueError", "pattern '' matches no parameter"),
    "an axis twice": ({"x": ("a", "a")}, "ValueError", "parameter x dimension 1: axis 'a' already"),
    "an axis twice in one dimension": (
        {"x": (("a", "a"), None)},
        "ValueError",
        "parameter x dimension 0: axis 'a' already",
    ),
    "an unknown axis": (
        {"x": ("c", None)},
        "ValueError",
        "parameter x dimension 0: .* no axis 'c'",
    ),
    "an unknown axis that is not ASCII": ({"x": ("é", None)}, "ValueError", "no axis 'é'"),
    "an axis by number": ({"x": (0, None)}, "TypeError", "parameter x: 0 is neither the name"),
    "too short": ({"x": ("a",)}, "ValueError", r"parameter x has 2 dimensions, but .* has 1 entry"),
    "too long": (
        {"x": ("a", None, None)},
        "ValueError",
        "parameter x has 2 dimensions, .* 3 entri",
    ),
    "a name instead of dims": ({"x": "a"}, "TypeError", "parameter x: dims are 'a', not a tuple"),
    "a number instead of dims": ({"x": 1}, "TypeError", "parameter x: dims are 1, not a tuple"),
    "a set instead of dims": (
        {"x": {"a"}},
        "TypeError",
        "parameter x: dims are {'a'}, not a tuple",
    ),
    "a mesh as dims": ({"x": (MESH, MESH)}, "TypeError", "parameter x: dims are"),
    "another mesh with unknown axes": (
        {"x": (dx.Mesh((2,), ("p",)), ("a", None))},
        "ValueError",
        "parameter x dimension 0: the mesh has no axis 'a'; its axes are p",
    ),
    "a result with an axis twice": (
        {"return": ("a", "a")},
        "ValueError",
        "result dimension 1: axis 'a' already",
    ),
    "a result of another rank": (
        {"return": ("a",)},
        "ValueError",
        "result has 2 dimensions, but .* 1 entry",
    ),
    "a field of a result that is none": ({"return.1": ("a", None)}, "ValueError", "return.1"),
    "a variable with an unknown axis": ({"y": ("c", None)}, "ValueError", "variable y .*axis 'c'"),
    "a placement of another rank": ({"x": "S[0]"}, "ValueError", "parameter x.*S\\[0\\]"),
    "a placement of another dimension": ({"x": "S[5], R"}, "ValueError", "parameter x.*5"),
    "a placement of a negative one": (
        {"x": "S[-1], R"},
        "TypeError",
        "parameter x: dims are .S.-1., R., not",
    ),
    "a placement that is none": ({"x": "T[0], R"}, "TypeError", "parameter x: dims are .T"),
    "nothing": ({}, "ValueError", "the module has no sharding annotations"),
}
for _name, (_plan, _error, _message) in BAD_PLANS.items():
    CASES[f"plan: {_name}"] = Case(lambda plan=_plan: build(Program, plan), _error, _message)


CASES |= {
    "plan: no mesh": Case(
        lambda: dx.annotate(Program, (2, 2), PLAN),  # type: ignore[arg-type]
        "TypeError",
        "the mesh to annotate with is of type tuple; it has to be a Mesh",
    ),
    "plan: no such function": Case(
        lambda: dx.annotate(Program, MESH, PLAN, func="other"),
        "ValueError",
        "the module has no Relax function named 'other'",
    ),
    "plan: a parameter that is sharded already": Case(
        lambda: dx.annotate(
            dx.transform.PropagateSharding()(dx.annotate(Program, MESH, PLAN)),
            MESH,
            {"x": (None, "a")},
        ),
        "ValueError",
        "pattern 'x' matches no tensor: .*it has a sharding already",
    ),
}

# ---- annotations


def annotation(placement: str, shape: tuple[int, ...]) -> tvm.IRModule:
    """A function whose parameter is annotated so, without the checks of plans."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        mark = relax.op.distributed.annotate_sharding(x, FOUR, Placement.from_text(placement))
        builder.emit_func_output(builder.emit(mark, "y"))
    mod = builder.get()
    mod.update_global_info("mesh", [FOUR])
    return mod


FOUR = DeviceMesh((2, 2), tvm.ir.Range(0, 4))


def text_annotation(mesh: str, placement: str) -> None:
    dx.build(
        tvm.script.from_source(f"""
@I.ir_module
class Module:
    I.module_global_infos({{"mesh": [R.device_mesh((2, 2), I.Range(0, 4))]}})
    @R.function
    def main(x: R.Tensor((8, 6), "float32")):
        y = R.dist.annotate_sharding(x, "{mesh}", "{placement}")
        z = R.exp(y)
        return z
"""),
        target="llvm",
    )


def annotated_with(placement: str, shape: tuple[int, ...] = (8, 6)) -> Callable[[], Any]:
    return lambda: dx.build(annotation(placement, shape), target="llvm")


CASES |= {
    "annotation: a rank too small": Case(
        annotated_with("S[0]"), "ValueError", "`y` in `main`: placement .* has 1 entry for a"
    ),
    "annotation: a rank too large": Case(
        annotated_with("S[0], R, R"), "ValueError", "`y` in `main`: placement .* has 3 entries"
    ),
    "annotation: a dimension that the tensor lacks": Case(
        annotated_with("S[2], R"), "ValueError", "`y` in `main`: placement .* shards dimension 2"
    ),
    "annotation: a dimension that is negative": Case(
        annotated_with("S[-1], R"), "ValueError", r"`y` in `main`: placement .* shards dimension -1"
    ),
    "annotation: a scalar": Case(
        annotated_with("S[0], R", ()), "ValueError", "`y` in `main`: placement .* tensor of 0"
    ),
    "annotation: more shards than elements": Case(
        annotated_with("S[0], S[0]", (3, 6)), "ValueError", "`y` in `main`: dimension 0 of size 3"
    ),
    "annotation: a mesh that does not exist": Case(
        lambda: text_annotation("mesh[3]", "S[0], R"), ".*Error", r"mesh\[3\]|index|range"
    ),
    "annotation: a mesh by another name": Case(
        lambda: text_annotation("grid[0]", "S[0], R"), ".*Error", r"grid"
    ),
    "annotation: a placement that does not parse": Case(
        lambda: text_annotation("mesh[0]", "S[0], Q"), ".*Error", r"Q"
    ),
    "annotation: an empty placement": Case(
        lambda: text_annotation("mesh[0]", ""), ".*Error", r"placement"
    ),
}


# ---- random text


def random_rules(seed: int) -> None:
    """Each random rule is refused, or accepted for all that follows; the case ends in an error."""
    rng = random.Random(seed)
    words = ["n", "k", "m", " ", " ", "(", ")", ",", "->", ";", "=", "_", "sum", "max", "2", "6"]
    words += ["é", "-", ">", "\0", "n k, k -> n k", "8"]
    for _ in range(150):
        text = "".join(rng.choice(words) for _ in range(rng.randrange(12)))
        if rng.random() < 0.5:
            base = list("n k, k -> n k; n=8")
            for _ in range(rng.randrange(1, 4)):
                base[rng.randrange(len(base))] = rng.choice(words)
            text = "".join(base)
        for attempt in (
            lambda text=text: dx.register_rule("tests.scale", text),
            lambda text=text: dx.lower(
                dx.annotate(with_kernel_rule(Program, text), MESH, {"x": ("a", "b")})
            ),
        ):
            try:
                attempt()
            except ValueError as error:
                if not ("rule" in str(error) and ("scale" in str(error))):
                    raise AssertionError(f"{text!r}: {error}") from error
    raise ValueError("all refused or accepted")


for _seed in range(4):
    CASES[f"random rules: {_seed}"] = Case(
        lambda seed=_seed: random_rules(seed), "ValueError", "all refused or accepted"
    )


# ---- outcomes


def outcome(case: Case) -> list[str]:
    """Runs a case in a process of its own; returns its exception's type and message."""
    read, write = os.pipe()
    process = os.fork()
    if process == 0:
        signal.alarm(SECONDS)
        try:
            case.run()
            result = ["nothing", ""]
        except BaseException as error:
            result = [type(error).__name__, str(error)]
        with os.fdopen(write, "w") as out:
            json.dump(result, out)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as source:
        text = source.read()
    _, status = os.waitpid(process, 0)
    return json.loads(text) if text else [f"signal {os.WTERMSIG(status)}", ""]


if __name__ == "__main__":
    wanted = sys.argv[1:] or list(CASES)
    print(json.dumps({name: outcome(CASES[name]) for name in wanted}))
