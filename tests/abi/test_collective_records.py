"""Each collective is described once, in its record (``src/abi/collective.cc``)."""

import ast
import math
import re
from pathlib import Path

import tvm_ffi
from tests.native.library import call
from tvm.relax.script.parser import dist as on_dtensors
from tvm.script.parser import relax as parser

from distir_ext import transform
from distir_ext.communication.collectives import sent_in_group
from distir_ext.mesh.cluster import TIMED_COLLECTIVES
from distir_ext.native.collective_records import builtin, names, records

ROOT = Path(__file__).resolve().parents[2]
# Strings that are a collective's name by chance, or name something else of other systems.
OTHER_MEANINGS = {
    ("src/abi/collective.cc", "dispatch_slots"): "the list of names, and an optimisation",
    ("src/optimize/pass.cc", "dispatch_slots"): "an optimisation",
    ("python/distir_ext/reshards/reshards_result.py", "transfer"): "a kind of row",
    ("python/distir_ext/interop/torch/plans_hf.py", "all_reduce"): "a style of transformers",
}
PREFIXES = r"(?:relax\.(?:dist|ccl)\.|R\.(?:dist|ccl)\.|distir\.runtime\.)?(?:manual_|shared_)?"
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')


def strings_of_cpp(path: Path) -> set[str]:
    return set(LITERAL.findall(COMMENT.sub("", path.read_text(encoding="utf-8"))))


def strings_of_python(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):  # documentation
            skipped.add(node.value)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            skipped.update(ast.walk(node))  # names of Python functions
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in skipped
    }


def named_elsewhere(sources: dict[str, set[str]]) -> set[tuple[str, str]]:
    """Files with strings that are names of collectives, alone or behind a prefix."""
    name = re.compile(PREFIXES + f"({'|'.join(records())})")
    return {
        (path, text)
        for path, texts in sources.items()
        for text in texts
        if name.fullmatch(text)
        and not (path == "src/abi/collective.cc" and text in records())
        and (path, text) not in OTHER_MEANINGS
    }


def test_no_other_file_has_the_name_of_a_collective_as_a_string():
    sources = {
        str(path.relative_to(ROOT)): strings_of_cpp(path)
        for path in (ROOT / "src").rglob("*")
        if path.suffix in {".h", ".cc"}
    }
    sources |= {
        str(path.relative_to(ROOT)): strings_of_python(path)
        for path in (ROOT / "python").rglob("*.py")
    }
    assert named_elsewhere(sources) == set()
    assert set(records()) <= sources["src/abi/collective.cc"]
    # A control: such strings are found.
    control = {"a.cc": {"relax.ccl.all_gather", "sdy.all_gather", "all_gathered"}, "b.py": {"recv"}}
    found = {("a.cc", "relax.ccl.all_gather"), ("b.py", "recv")}
    assert named_elsewhere(control) == found


def test_each_operator_and_builtin_of_a_record_exists():
    operators = set(map(str, tvm_ffi.get_global_func("ir.ListOpNames")()))
    for record in records().values():
        assert record.text, record
        for is_there, operator, function in (
            (record.is_on_dtensors, f"relax.dist.{record.name}", (on_dtensors, record.name)),
            (record.is_on_tensors, f"relax.ccl.{record.name}", (parser.ccl, record.name)),
            (
                bool(record.manual_text),
                f"relax.dist.manual_{record.name}",
                (on_dtensors, f"manual_{record.name}"),
            ),
        ):
            assert (operator in operators) == is_there, operator
            assert not is_there or callable(getattr(*function)), operator
        if record.builtin:
            assert tvm_ffi.get_global_func(builtin(record.name), allow_missing=True), record
        if record.optimization:
            transform.OptimizeCollectives(enable=record.optimization)  # refuses unknown names


def test_traffic_is_counted_as_costs_are():
    in_groups = [each for each in records().values() if each.members == "groups"]
    assert len(in_groups) >= 12
    for record in in_groups:
        for members in (1, 2, 3, 4, 7, 8, 64):
            for size in (0, 1, 12, 1000, 4097):
                sent, received, messages = call("TrafficInGroup", record.name, members, size)
                cost = sent_in_group(record.name, members, size)
                case = record.name, members, size
                # Whole bytes: of a size that does not divide, some members send one more.
                assert sent == received == math.ceil(cost - 1e-9), case
                assert (messages > 0) == (bool(record.sends) and members > 1), case
    # The formulas, by hand.
    for name, factor in (
        (names.all_gather, 3),
        (names.reduce_scatter, 3 / 4),
        (names.all_to_all, 3 / 4),
        (names.all_reduce, 6 / 4),
        (names.slice, 0),
    ):
        assert sent_in_group(name, 4, 1024) == factor * 1024, name


def test_clusters_state_times_of_what_has_times_of_its_own():
    assert TIMED_COLLECTIVES == (
        "all_gather",
        "all_reduce",
        "all_to_all",
        "permute",
        "reduce_scatter",
        "transfer",
    )
