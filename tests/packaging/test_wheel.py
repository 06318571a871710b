"""Tests of the installed wheel: all supported Python versions, outside of the build tree."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import distir_ext
from distir_ext.native import library as _library

ROOT = Path(__file__).resolve().parents[2]
DISTRIBUTION = importlib.metadata.distribution("distir-ext")


@pytest.fixture
def library(monkeypatch):
    """The installed native library, also when the tests run another build of it."""
    monkeypatch.delenv("DISTIR_EXT_LIBRARY", raising=False)
    return _library.library_path()


def output_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def dynamic_section(library, tag):
    """The values of one tag of the native library's dynamic section."""
    listing = output_of("readelf", "--dynamic", "--wide", library)
    return re.findall(rf"\({tag}\)[^\[]*\[([^\]]*)\]", listing)


def test_one_wheel_serves_all_python_versions():
    tags = re.findall(r"^Tag: (.*)$", DISTRIBUTION.read_text("WHEEL"), re.MULTILINE)
    assert tags
    assert all(re.match(r"py3-none-(many)?linux_", tag) for tag in tags)


def test_versions_agree():
    assert DISTRIBUTION.version == distir_ext.__version__
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## [{distir_ext.__version__}]" in changelog


@pytest.mark.parametrize(
    ("distribution", "supported"),
    [
        ("apache-tvm", _library.SUPPORTED_TVM),
        ("apache-tvm-ffi", _library.SUPPORTED_TVM_FFI),
    ],
)
def test_dependencies_build_and_check_name_the_same_versions(distribution, supported):
    def specifiers_in(requirements):
        found = (re.match(rf"{distribution}([<>=][^;]*)", each) for each in requirements)
        return [match[1].split(",") for match in found if match]

    (specifier,) = specifiers_in(DISTRIBUTION.requires)
    assert sorted(specifier) == sorted(supported.split(","))
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for stated in specifiers_in(re.findall(r'"([^"\s]+)"', project)):
        assert stated == supported.split(",")


def test_command_is_installed():
    (command,) = DISTRIBUTION.entry_points.select(name="distir")
    assert (command.group, command.value) == ("console_scripts", "distir_ext.cli:main")


def test_native_library_needs_only_tvm_ffi_and_the_compiler_runtime(library):
    needed = {name.split(".so")[0] for name in dynamic_section(library, "NEEDED")}
    assert "libtvm_ffi" in needed
    compiler = {"libstdc++", "libgcc_s", "libc", "libm", "libdl", "libpthread"}
    assert needed <= {"libtvm_ffi", *compiler, "ld-linux-x86-64", "ld-linux-aarch64"}


def test_native_library_records_no_path_of_the_machine_that_built_it(library):
    assert dynamic_section(library, "RPATH") + dynamic_section(library, "RUNPATH") == []
    contents = library.read_bytes()
    assert b"distir.version" in contents
    assert str(ROOT).encode() not in contents
    assert b"site-packages" not in contents


def test_native_library_keeps_its_symbols_to_itself(library):
    exported = output_of("nm", "--dynamic", "--defined-only", "--demangle", library)
    assert not [line for line in exported.splitlines() if "distir::" in line]


def test_only_a_checkout_has_the_functions_that_tests_call(library):
    origin = json.loads(DISTRIBUTION.read_text("direct_url.json") or "{}")
    is_editable = origin.get("dir_info", {}).get("editable", False)
    program = (
        "import ctypes, tvm_ffi; from tvm_ffi.registry import list_global_func_names as names;"
        f"ctypes.CDLL({str(library)!r}); print([name.split('.')[1] for name in names()"
        " if name.startswith('distir.')])"
    )
    found = output_of(sys.executable, "-c", program)
    assert "'runtime'" in found
    assert ("'test'" in found) == is_editable


def test_another_library_can_be_named(monkeypatch, tmp_path):
    path = tmp_path / "libdistir_ext.so"
    path.write_bytes(b"")
    monkeypatch.setenv("DISTIR_EXT_LIBRARY", str(path))
    assert _library.library_path() == path
    path.unlink()
    with pytest.raises(ImportError, match=r"DISTIR_EXT_LIBRARY names '.*libdistir_ext\.so', which"):
        _library.library_path()
