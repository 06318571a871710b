"""A TVM that cannot be used is one ImportError that names what was found and what is supported."""

from __future__ import annotations

import importlib
import importlib.metadata
import subprocess
import sys

import pytest

from distir_ext.native import library as _library

real_import_module = importlib.import_module


FFI = "0.1.14.post1"


def install_versions(monkeypatch, tvm, ffi=FFI):
    """Makes the lookup find these versions, or nothing at all for None."""
    versions = {"apache-tvm": tvm, "apache-tvm-ffi": ffi}

    def version(name):
        if versions[name] is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    def import_module(name, package=None):
        if name in ("tvm", "tvm_ffi"):
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
        return real_import_module(name, package)

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(importlib, "import_module", import_module)


@pytest.mark.parametrize("found", ["0.27.0", "0.27.0.post1", "0.27.9", "0.27.dev12", "v0.27.1"])
def test_supported_version_passes(monkeypatch, found):
    install_versions(monkeypatch, found)
    assert _library.check_versions() == found


@pytest.mark.parametrize("found", ["0.1.14.post0", "0.1.14.post1", "0.1.14.post7"])
def test_supported_tvm_ffi_passes(monkeypatch, found):
    install_versions(monkeypatch, "0.27.0.post1", found)
    assert _library.check_versions() == "0.27.0.post1"


@pytest.mark.parametrize(
    ("found", "judgement"),
    [
        ("0.26.0", "the installed TVM 0.26.0 is too old"),
        ("0.9.1", "the installed TVM 0.9.1 is too old"),
        ("0.28.0", "the installed TVM 0.28.0 is too new"),
        ("0.28.dev0", "the installed TVM 0.28.dev0 is too new"),
        ("1.0", "the installed TVM 1.0 is too new"),
        ("unknown", "the installed TVM unknown is not a version number"),
        (None, "none is installed"),
    ],
)
def test_unsupported_version_is_named_with_the_supported_range(monkeypatch, found, judgement):
    install_versions(monkeypatch, found)
    with pytest.raises(ImportError) as raised:
        _library.check_versions()
    message = str(raised.value)
    assert judgement in message
    assert ">=0.27,<0.28" in message
    assert "pip install 'apache-tvm>=0.27,<0.28'" in message


@pytest.mark.parametrize(
    ("found", "judgement"),
    [
        ("0.1.13", "too old"),
        ("0.1.14", "too old"),
        ("0.1.15", "too new"),
        ("0.1.15.post2", "too new"),
        ("0.2.0", "too new"),
    ],
)
def test_tvm_ffi_that_tvm_was_not_built_with_is_refused(monkeypatch, found, judgement):
    install_versions(monkeypatch, "0.27.0.post1", found)
    with pytest.raises(ImportError) as raised:
        _library.check_versions()
    message = str(raised.value)
    assert f"the installed tvm-ffi {found} is {judgement}" in message
    assert "the installed TVM" not in message
    assert message.endswith(
        "pip install 'apache-tvm>=0.27,<0.28' 'apache-tvm-ffi>=0.1.14.post0,<0.1.15'"
    )


def test_both_versions_are_judged_in_one_message(monkeypatch):
    install_versions(monkeypatch, "0.28.0", "0.1.16")
    with pytest.raises(ImportError) as raised:
        _library.check_versions()
    assert "the installed TVM 0.28.0 is too new" in str(raised.value)
    assert "the installed tvm-ffi 0.1.16 is too new" in str(raised.value)


def test_tvm_without_metadata_is_asked_for_its_version(monkeypatch):
    install_versions(monkeypatch, None)

    class SourceBuild:
        __version__ = "0.21.0"

    monkeypatch.setattr(importlib, "import_module", lambda name: SourceBuild)
    with pytest.raises(ImportError, match=r"the installed TVM 0\.21\.0 is too old"):
        _library.check_versions()


def run_import(prologue):
    program = f"import importlib, importlib.metadata, sys\n{prologue}\nimport distir_ext\n"
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120
    )


def last_line(result):
    return result.stderr.strip().splitlines()[-1]


def test_import_of_the_package_fails_with_the_message_alone():
    result = run_import(
        "real = importlib.metadata.version\n"
        "importlib.metadata.version = lambda name: '0.28.1' if name == 'apache-tvm' else real(name)"
    )
    assert result.returncode == 1
    assert last_line(result).startswith("ImportError: distir_ext")
    assert "the installed TVM 0.28.1 is too new" in last_line(result)
    assert result.stderr.count("Traceback") == 1


def test_import_of_the_package_without_tvm():
    result = run_import(
        "def version(name): raise importlib.metadata.PackageNotFoundError(name)\n"
        "importlib.metadata.version = version\n"
        "sys.modules['tvm'] = None  # any import of it raises ModuleNotFoundError"
    )
    assert result.returncode == 1
    assert "needs TVM (apache-tvm >=0.27,<0.28), and none is installed" in last_line(result)


@pytest.mark.large
def test_entities_that_tvm_lacks_become_an_import_error():
    result = run_import(
        "import tvm_ffi\n"
        "def resolve(): raise RuntimeError('function ir.Call, field relax.Function.ret_ty')\n"
        "real = tvm_ffi.get_global_func\n"
        "tvm_ffi.get_global_func = lambda name, allow_missing=False: (\n"
        "    resolve if name == 'distir.ir.Resolve' else real(name, allow_missing))"
    )
    assert result.returncode == 1
    assert last_line(result).startswith("ImportError: distir_ext")
    assert "function ir.Call, field relax.Function.ret_ty" in last_line(result)
    assert ">=0.27,<0.28" in last_line(result)


@pytest.mark.large
def test_what_tvm_lacks_is_listed_once():
    code = (
        "import ctypes, tvm_ffi\n"
        f"ctypes.CDLL({str(_library.library_path())!r})\n"
        "tvm_ffi.get_global_func('distir.ir.Resolve')()"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    listed = result.stderr.partition("the loaded TVM lacks: ")[2].strip().split("; ")
    assert len(listed) > 100  # all of TVM, which is not loaded
    assert len(set(listed)) == len(listed)
