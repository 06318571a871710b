"""The order of C++ includes, of Python imports and of tests, and that the checks can fail."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / ".ci" / "check_layers.py"

_spec = importlib.util.spec_from_file_location("check_layers", SCRIPT)
assert _spec is not None
assert _spec.loader is not None
check_layers = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(check_layers)


def write_tree(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def test_sources_follow_the_order_of_includes():
    assert list(check_layers.check_includes(ROOT)) == []


def test_package_follows_the_order_of_imports():
    assert list(check_layers.check_imports(ROOT)) == []


def test_every_global_function_is_called_by_more_than_tests():
    assert list(check_layers.check_global_functions(ROOT)) == []


NAMED_FUNCTIONS = {
    "src/rules/list.cc": 'GlobalDef().def("distir.rules.List", [] {});\n',
    "src/verify/lowered.cc": 'GlobalDef()\n  .def("distir.verify.Lowered", Run);\n',
    "src/runtime/builtins.cc": 'GlobalDef().def_packed(\n    "distir.runtime.slice", Run);\n',
    "src/lower/ccl.cc": 'const char* kRuntime = "distir.runtime.";\nCall(kRuntime + "slice");\n',
    "python/distir_ext/rules.py": 'get("distir.rules.List")\nget(f"distir.verify.{phase}")\n',
}


def test_functions_that_the_package_or_other_sources_name_pass(tmp_path):
    write_tree(tmp_path, NAMED_FUNCTIONS)
    assert list(check_layers.check_global_functions(tmp_path)) == []


@pytest.mark.parametrize(
    ("changed", "text", "name"),
    [
        ("python/distir_ext/rules.py", 'get(f"distir.verify.{phase}")', "distir.rules.List"),
        ("python/distir_ext/rules.py", 'get("distir.rules.List")', "distir.verify.Lowered"),
        ("src/lower/ccl.cc", 'const char* kRuntime = "distir.runtime.";', "distir.runtime.slice"),
        ("src/lower/ccl.cc", '// "distir.runtime.slice"', "distir.runtime.slice"),
    ],
)
def test_a_function_that_nothing_names_is_found(tmp_path, changed, text, name):
    write_tree(tmp_path, {**NAMED_FUNCTIONS, changed: text})
    (violation,) = check_layers.check_global_functions(tmp_path)
    assert violation.endswith(f"neither the package nor other sources name {name}")


def test_only_propagation_decides_how_calls_are_computed():
    """All other passes read its decision from the types (rules/call/call_sharding.h)."""
    source = ROOT / "src"
    found = {
        path.relative_to(source).parts[0]
        for path in [*source.rglob("*.cc"), *source.rglob("*.h")]
        if re.search(r"\bDecideCall\(", check_layers.COMMENT.sub("", path.read_text("utf-8")))
    }
    assert found == {"propagation", "rules"}


def test_checks_see_the_sources():
    folders = {path.name for path in (ROOT / "src").iterdir() if path.is_dir()}
    assert folders <= {*check_layers.LAYERS, "runtime"}
    assert "support" in folders


GOOD_CXX = {
    "src/support/error.h": "#include <tvm/ffi/error.h>\n",
    "src/ir/view.h": '#include "support/error.h"\nauto x = reflection::GetFieldInfo("a", "b");\n',
    "src/mesh/mesh.h": '#include "support/error.h"\n',
    "src/rules/rule.h": '#include "ir/view.h"\n#include "mesh/mesh.h"\n// not GetFieldInfo\n',
    "src/runtime/communicators/communicator.h": '#include "support/error.h"\n',
    "src/runtime/communicators/cpu/threads/threads.h": "#include <vector>\n",
    "src/runtime/communicators/cpu/cpu.cc": '#include "runtime/communicators/communicator.h"\n',
    "src/runtime/communicators/nccl/nccl.h": '#include "runtime/communicators/communicator.h"\n',
}


def test_good_includes_pass(tmp_path):
    write_tree(tmp_path, GOOD_CXX)
    assert list(check_layers.check_includes(tmp_path)) == []


@pytest.mark.parametrize(
    ("file", "line", "message"),
    [
        ("src/support/b.h", '#include "ir/view.h"', 'support must not include "ir/view.h"'),
        ("src/ir/b.h", '#include "rules/rule.h"', 'ir must not include "rules/rule.h"'),
        ("src/mesh/b.h", '#include "ir/view.h"', 'mesh must not include "ir/view.h"'),
        ("src/abi/b.h", '#include "mesh/mesh.h"', 'abi must not include "mesh/mesh.h"'),
        ("src/runtime/b.h", '#include "ir/view.h"', 'runtime must not include "ir/view.h"'),
        ("src/runtime/b.h", '#include "mesh/mesh.h"', 'runtime must not include "mesh/mesh.h"'),
        (
            "src/stages/b.h",
            '#include "runtime/communicators/communicator.h"',
            'stages must not include "runtime/communicators/communicator.h"',
        ),
        (
            "src/runtime/communicators/cpu/b.cc",
            '#include "runtime/communicators/nccl/nccl.h"',
            'backend cpu must not include "runtime/communicators/nccl/nccl.h"',
        ),
        (
            "src/runtime/communicators/cpu/processes/b.cc",
            '#include "runtime/communicators/cpu/threads/threads.h"',
            'backend cpu/processes must not include "runtime/communicators/cpu/threads/threads.h"',
        ),
        ("src/rules/b.h", '#include "rule.h"', '"rule.h" is not a file under src'),
        ("src/ir/b.h", "#include <tvm/ir/expr.h>", "<tvm/ir/expr.h> is not a header of tvm-ffi"),
        (
            "src/rules/b.cc",
            'ffi::reflection::GlobalDef().def("distir.a", A);',
            "functions are registered by support::Functions",
        ),
        ("src/rules/b.cc", 'auto y = refl::GetFieldInfo("a");', "GetFieldInfo is for src/ir only"),
        ("src/lower/b.cc", 'refl::FieldGetter get("a");', "FieldGetter is for src/ir only"),
        (
            "src/mesh/b.h",
            "#include <tvm/ffi/reflection/accessor.h>",
            "reflection/accessor.h is for src/ir only",
        ),
        (
            "src/ops/b.cc",
            'const ir::AttrField x("relax.attrs.TakeAttrs", "mode");',
            '"relax.attrs.TakeAttrs" is declared in src/ir only',
        ),
        (
            "src/lower/b.cc",
            'auto f = ffi::Function::GetGlobal("relax.op.add");',
            '"relax.op.add" is declared in src/ir only',
        ),
        (
            "src/lower/b.cc",
            'const ir::GlobalFunction f("ffi.StructuralHash");',
            "what is used of TVM is declared in src/ir only",
        ),
        (
            "src/ops/b.cc",
            'const ir::Field<ir::NodeArray<ir::Expr>> f("tirx.IndexMap", "initial_indices");',
            "what is used of TVM is declared in src/ir only",
        ),
        ("src/other/b.h", "", "not in a known folder"),
        ("src/b.cc", "", "not in a known folder"),
    ],
)
def test_bad_include_is_one_violation_that_names_its_place(tmp_path, file, line, message):
    write_tree(tmp_path, {**GOOD_CXX, file: f"// first line\n{line}\n"})
    (violation,) = check_layers.check_includes(tmp_path)
    assert message in violation
    assert violation.startswith(f"{file}:2: " if line else f"{file}: ")


GOOD_PYTHON = {
    "__init__.py": "from distir_ext.session.session import Session\n",
    "__main__.py": "from distir_ext.cli.main import main\n",
    "_version.py": "",
    "text/spelling.py": "import re\n",
    "text/printable.py": "from .spelling import nearest\n",
    "mesh/__init__.py": '"""Meshes.\n\nAnd clusters.\n"""\n',
    "mesh/mesh.py": "from distir_ext.text.spelling import nearest\n",
    "session/__init__.py": "from distir_ext.session.session import Session\n\nnames = 1\n",
    "session/session.py": "from distir_ext.mesh import mesh\nfrom ..mesh.mesh import Mesh\n",
    "cli/main.py": "from distir_ext import _version\n",
}


def write_package(root: Path, files: dict[str, str]) -> None:
    write_tree(root, {f"python/distir_ext/{name}": text for name, text in files.items()})


def test_good_imports_pass(tmp_path):
    write_package(tmp_path, GOOD_PYTHON)
    assert list(check_layers.check_imports(tmp_path)) == []


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        (
            "text/b.py",
            "import distir_ext.session.session",
            "text must not import distir_ext.session.session, which is above it",
        ),
        (
            "mesh/b.py",
            "def f():\n    from ..session.session import Session",
            "mesh must not import distir_ext.session.session, which is above it",
        ),
        (
            "mesh/b.py",
            "if TYPE_CHECKING:\n    from distir_ext.session.session import Session",
            "mesh must not import distir_ext.session.session, which is above it",
        ),
        (
            "text/spelling.py",
            "def f():\n    from distir_ext.text.printable import TextLines",
            "import cycle distir_ext.text.spelling -> distir_ext.text.printable -> distir_ext",
        ),
        ("mesh/b.py", "from distir_ext import Session", "must not import distir_ext"),
        ("_native/b.py", "", "_native is not in PYTHON_LAYERS"),
        ("mesh/__init__.py", '"""Meshes."""', "has neither public names nor a description"),
    ],
)
def test_bad_import_is_one_violation(tmp_path, file, text, message):
    write_package(tmp_path, {**GOOD_PYTHON, file: text + "\n"})
    (violation,) = check_layers.check_imports(tmp_path)
    assert message in violation


def test_script_fails_on_a_bad_tree_and_passes_on_a_good_one(tmp_path):
    write_tree(tmp_path, GOOD_CXX)
    write_package(tmp_path, GOOD_PYTHON)
    command = [sys.executable, str(SCRIPT), str(tmp_path)]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    write_tree(tmp_path, {"src/mesh/b.h": '#include "ir/view.h"\n'})
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stdout.count("\n") == 1
    assert result.stdout.startswith("src/mesh/b.h:1: ")


# What is tested by reading modules. Programs run in tests/numerical, pipelines, runtime, and so on.
UNITS = [
    *("abi", "annotate", "cost", "decompose", "dialect", "explain", "ir", "lower", "mesh"),
    *("native", "ops", "optimize", "padding", "phases", "propagation", "redistribute", "rules"),
    *("script", "stages", "target", "verify"),
]
RUNS = re.compile(r"\b(?:Session|VirtualMachine|ThreadWorkers|ProcessWorkers)\(|\bsession_of\b")


@pytest.mark.parametrize("folder", UNITS)
def test_unit_tests_run_no_programs(folder):
    paths = sorted((ROOT / "tests" / folder).glob("*.py"))
    assert paths
    assert [str(path) for path in paths if RUNS.search(path.read_text(encoding="utf-8"))] == []


def test_programs_that_run_are_found():
    (path,) = (ROOT / "tests" / "pipelines").glob("test_programs.py")
    assert RUNS.search(path.read_text(encoding="utf-8"))
