"""Checks that dependencies point one way, in C++ and in Python.

C++: a file includes only from its own folder and from folders above it in LAYERS; the runtime
includes only support, abi and runtime, and no backend includes another; only src/ir reads objects
by reflection, names attributes of TVM's operators, and declares which of TVM's functions the
compiler calls; the only TVM headers are those of tvm-ffi;
every global function that is registered is named by the package or by other sources, and checks
its arguments. What only tests call is in tests/native.

Python: a file imports only from its own folder and from those above it in PYTHON_LAYERS, also in
functions and for type checking; no files import each other in a circle; an ``__init__.py`` has
public names, or says what is in the folder. Only the files of the package itself import any folder.

Run it from anywhere: ``check_layers.py [root of the repository]``. It prints one line per violation
and fails if there is one.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

LAYERS = (
    "support",
    "autoshard",
    "abi",
    "ir",
    "mesh",
    "cost",
    "planning",
    "dialect",
    "outline",
    "rules",
    "unfuse",
    "propagation",
    "decompose",
    "padding",
    "ops",
    "redistribute",
    "lower",
    "optimize",
    "stages",
    "autosharding",
    "target",
    "analysis",
    "verify",
    "explain",
    "phases",
)
PYTHON_LAYERS = (
    "text",
    "native",
    "mesh",
    "signature",
    "structure",
    "annotate",
    "communication",
    "passes",
    "pipelines",
    "reshards",
    "compile",
    "params",
    "wire",
    "launch",
    "workers",
    "session",
    "saved",
    "explain",
    "analysis",
    "training",
    "autosharding",
    "interop",
    "hints",
    "views",
    "gpu_check",
    "testing",
    "demo",
    "cli",
)
# Of the package's own files, those that any folder may import.
OPEN_MODULES = ("distir_ext._command", "distir_ext._version")
# Folders that may include less than everything above them.
RESTRICTED = {
    "autoshard": {"support", "autoshard"},  # pure optimisation: knows nothing of IR
    "abi": {"support", "abi"},  # what the compiler, the runtime and Python exchange
    "mesh": {"support", "abi", "mesh"},  # pure algebra: knows nothing of IR
    "runtime": {"support", "abi", "runtime"},  # can be loaded where there is no compiler
}
REFLECTION = re.compile(
    r"\b(?:GetFieldInfo|FieldGetter|FieldSetter|ForEachFieldInfo\w*|GetMethod|"
    r"TVMFFIFieldInfo|TVMFFIGetTypeInfo|reflection/accessor\.h)\b"
)
# const ir::GlobalFunction kHash("ffi.StructuralHash");
DECLARATION = re.compile(r"\bir::(?:GlobalFunction|Field<.*>) \w+\(")
UNCHECKED = re.compile(r"\bGlobalDef\b")
CHECKED_BY = ("support", "functions.h")
OPERATOR_ATTRS = re.compile(r'"relax\.(?:attrs|op)\.[^"]*"')
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
REGISTRATION = re.compile(r'(?:\.def(?:_packed)?\(|SetGlobal\()\s*"(distir\.[\w.]+)"')
# How sources name a builtin: by a prefix that is a literal of its own, and the rest.
RUNTIME_PREFIX = '"distir.runtime."'
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def allowed_folders(folder: str) -> set[str]:
    """The folders of src that a file in ``folder`` may include from; empty if unknown."""
    if folder in RESTRICTED:
        return RESTRICTED[folder]
    if folder in LAYERS:
        return set(LAYERS[: LAYERS.index(folder) + 1])
    return set()


def check_includes(root: Path) -> Iterator[str]:
    """Yields one line per violation of the C++ order under ``root``/src."""
    source = root / "src"
    for path in sorted(p for p in source.rglob("*") if p.suffix in {".h", ".cc"}):
        parts = path.relative_to(source).parts
        folder = parts[0]
        where = path.relative_to(root)
        allowed = allowed_folders(folder)
        if not allowed or len(parts) == 1:
            yield f"{where}: not in a known folder of src ({', '.join((*LAYERS, 'runtime'))})"
            continue
        text = path.read_text(encoding="utf-8")
        code = COMMENT.sub(lambda match: "\n" * match[0].count("\n"), text)
        for number, line in enumerate(code.split("\n"), start=1):
            if folder != "ir" and (match := REFLECTION.search(line)):
                yield f"{where}:{number}: {match[0]} is for src/ir only"
            if folder != "ir" and (match := OPERATOR_ATTRS.search(line)):
                yield f"{where}:{number}: {match[0]} is declared in src/ir only"
            if folder != "ir" and DECLARATION.search(line):
                yield f"{where}:{number}: what is used of TVM is declared in src/ir only"
            if parts != CHECKED_BY and UNCHECKED.search(line):
                yield f"{where}:{number}: functions are registered by support::Functions"
            if include := INCLUDE.match(line):
                problem = check_include(source, parts, allowed, include[1], include[2])
                if problem:
                    yield f"{where}:{number}: {problem}"


def check_include(
    source: Path, parts: tuple[str, ...], allowed: set[str], quote: str, name: str
) -> str | None:
    """What is wrong with one include of the file ``parts`` under ``source``, or None."""
    if quote == "<":
        if name.startswith(("tvm/", "dmlc/")) and not name.startswith("tvm/ffi/"):
            return f"<{name}> is not a header of tvm-ffi"
        return None
    if not (source / name).is_file():
        return f'"{name}" is not a file under src; paths are relative to src'
    target = Path(name).parts
    if target[0] not in allowed:
        return f'{parts[0]} must not include "{name}"; it may include {", ".join(sorted(allowed))}'
    ours, theirs = backend_of(parts), backend_of(target)
    if ours[: len(theirs)] != theirs[: len(ours)]:
        return f'runtime backend {"/".join(ours)} must not include "{name}" of another backend'
    return None


def backend_of(parts: tuple[str, ...]) -> tuple[str, ...]:
    """The folders below ``runtime/communicators`` that a file is in: of which backend it is."""
    return parts[2:-1] if parts[:2] == ("runtime", "communicators") else ()


def check_global_functions(root: Path) -> Iterator[str]:
    """Yields one line per global function of ``root``/src that nothing but tests can call."""
    registered: dict[str, Path] = {}
    sources = ""
    for path in sorted(p for p in (root / "src").rglob("*") if p.suffix in {".h", ".cc"}):
        code = COMMENT.sub("", path.read_text(encoding="utf-8"))
        registered.update((name, path) for name in REGISTRATION.findall(code))
        sources += REGISTRATION.sub("", code)
    package = sorted((root / "python" / "distir_ext").rglob("*.py"))
    python = "".join(path.read_text(encoding="utf-8") for path in package)
    # f"distir.verify.{phase}" names every function of that form.
    formed = [
        re.compile(r"[\w.]+".join(map(re.escape, re.split(r"\{[^}]*\}", text))))
        for text in re.findall(r'f"(distir\.[^"]*\{[^"]*)"', python)
    ]
    for name, path in registered.items():
        is_named = f'"{name}"' in python or f'"{name}"' in sources
        if not is_named and f'"{name.rpartition(".")[0]}."' == RUNTIME_PREFIX:
            rest = f'"{name.rpartition(".")[2]}"'
            is_named = RUNTIME_PREFIX in sources and (rest in sources or rest in python)
        if not is_named and not any(form.fullmatch(name) for form in formed):
            yield f"{path.relative_to(root)}: neither the package nor other sources name {name}"


def module_name(package: Path, path: Path) -> str:
    """The dotted name of the module at ``path`` in the package at ``package``."""
    parts = (package.name, *path.relative_to(package).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(name: str, is_package: bool, tree: ast.AST, modules: set[str]) -> set[str]:
    """The modules among ``modules`` that module ``name`` imports, wherever in its text."""
    found: set[str] = set()
    for statement in ast.walk(tree):
        if isinstance(statement, ast.Import):
            candidates = [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom):
            base = statement.module or ""
            if statement.level:
                ancestors = name.split(".")[: None if is_package else -1]
                ancestors = ancestors[: len(ancestors) - statement.level + 1]
                base = ".".join([*ancestors, base] if base else ancestors)
            # "from package import module" depends on the module, otherwise on the package.
            candidates = [
                full if (full := f"{base}.{alias.name}") in modules else base
                for alias in statement.names
            ]
        else:
            continue
        found.update(candidate for candidate in candidates if candidate in modules)
    return found - {name}


def find_cycle(graph: dict[str, set[str]]) -> list[str] | None:
    """The modules of one import cycle, the first again at the end, or None."""
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str] | None:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return None
        for other in sorted(graph[name]):
            cycle = visit(other, [*path, name])
            if cycle:
                return cycle
        done.add(name)
        return None

    for name in sorted(graph):
        cycle = visit(name, [])
        if cycle:
            return cycle
    return None


def check_imports(root: Path) -> Iterator[str]:
    """Yields one line per violation of the Python order under ``root``/python/distir_ext."""
    package = root / "python" / "distir_ext"
    paths = {module_name(package, path): path for path in sorted(package.rglob("*.py"))}
    graph = {
        name: imported_modules(
            name,
            path.name == "__init__.py",
            ast.parse(path.read_text(encoding="utf-8"), str(path)),
            set(paths),
        )
        for name, path in paths.items()
    }
    for name, imports in graph.items():
        where = paths[name].relative_to(root)
        parts = paths[name].relative_to(package).parts
        if len(parts) == 1:
            continue  # the package's own files
        if parts[0] not in PYTHON_LAYERS:
            yield f"{where}: {parts[0]} is not in PYTHON_LAYERS"
            continue
        is_user = parts[0] == PYTHON_LAYERS[-1]  # of the package's public names
        allowed = PYTHON_LAYERS[: PYTHON_LAYERS.index(parts[0]) + 1]
        for other in sorted(imports):
            folder = paths[other].relative_to(package).parts[0]
            if folder.endswith(".py"):
                if other not in OPEN_MODULES and not is_user:
                    yield f"{where}: must not import {other}"
            elif folder not in allowed:
                yield f"{where}: {parts[0]} must not import {other}, which is above it"
        if parts[-1] == "__init__.py" and len(paths[name].read_text("utf-8").splitlines()) < 2:
            yield f"{where}: has neither public names nor a description of the folder"
    cycle = find_cycle(graph)
    if cycle:
        yield f"{package.relative_to(root)}: import cycle {' -> '.join(cycle)}"


def main() -> int:
    """Prints the violations; returns the exit status."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1]
    violations = [*check_includes(root), *check_imports(root), *check_global_functions(root)]
    for violation in violations:
        print(violation)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
