"""A TVM that cannot be used is one ImportError that names what was found and what is supported."""

from __future__ import annotations

import importlib
import importlib.metadata
import subprocess
import sys

import pytest

from distir_ext import _library

real_import_module = importlib.import_module


def install_version(monkeypatch, found):
    """Makes the lookup find this version of apache-tvm, or no TVM at all for None."""

    def version(name):
        assert name == "apache-tvm"
        if found is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return found

    def import_module(name, package=None):
        if name == "tvm":
            raise ModuleNotFoundError("No module named 'tvm'", name="tvm")
        return real_import_module(name, package)

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(importlib, "import_module", import_module)


@pytest.mark.parametrize("found", ["0.27.0", "0.27.0.post1", "0.27.9", "0.27.dev12", "v0.27.1"])
def test_supported_version_passes(monkeypatch, found):
    install_version(monkeypatch, found)
    assert _library.check_tvm_version() == found


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
    install_version(monkeypatch, found)
    with pytest.raises(ImportError) as raised:
        _library.check_tvm_version()
    message = str(raised.value)
    assert judgement in message
    assert ">=0.27,<0.28" in message
    assert "pip install 'apache-tvm>=0.27,<0.28'" in message


def test_tvm_without_metadata_is_asked_for_its_version(monkeypatch):
    install_version(monkeypatch, None)

    class SourceBuild:
        __version__ = "0.21.0"

    monkeypatch.setattr(importlib, "import_module", lambda name: SourceBuild)
    with pytest.raises(ImportError, match=r"the installed TVM 0\.21\.0 is too old"):
        _library.check_tvm_version()


def run_import(prologue):
    program = f"import importlib, importlib.metadata, sys\n{prologue}\nimport distir_ext\n"
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120
    )


def last_line(result):
    return result.stderr.strip().splitlines()[-1]


def test_import_of_the_package_fails_with_the_message_alone():
    result = run_import("importlib.metadata.version = lambda name: '0.28.1'")
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
