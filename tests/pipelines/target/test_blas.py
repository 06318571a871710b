"""Choice of the BLAS library."""

from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from distir_ext.native.machine import blas_library


@pytest.fixture
def told(monkeypatch):
    """Records settings for the native library instead of applying them."""
    calls = []
    monkeypatch.setattr(
        blas_library.tvm_ffi, "get_global_func", lambda name: lambda *a: calls.append(a)
    )
    return calls


@pytest.fixture
def mkl(monkeypatch, tmp_path):
    """A wheel of MKL, of which only the files are there."""
    library = tmp_path / "lib" / "libmkl_rt.so.3"
    library.parent.mkdir()
    library.touch()
    names = ["lib/libmkl_core.so.3", "lib/libmkl_rt.so.3"]
    files = [
        SimpleNamespace(name=Path(name).name, locate=lambda name=name: tmp_path / name)
        for name in names
    ]
    monkeypatch.setattr(
        blas_library.metadata, "files", lambda name: files if name == "mkl" else None
    )
    return library


@pytest.mark.parametrize("is_intel", [True, False])
def test_mkl_comes_first_on_the_cpus_of_intel(monkeypatch, mkl, told, is_intel):
    monkeypatch.delenv("DISTIR_EXT_BLAS", raising=False)
    monkeypatch.setattr(blas_library, "is_intel", lambda: is_intel)
    assert blas_library.use_blas() == (mkl if is_intel else blas_library.find_openblas())
    monkeypatch.setenv("DISTIR_EXT_BLAS", "mkl")
    assert blas_library.use_blas() == mkl
    assert told[-1] == (str(mkl), "")


def test_whose_cpu_it_is(tmp_path):
    cpus = tmp_path / "cpuinfo"
    for vendor in ("GenuineIntel", "AuthenticAMD"):
        cpus.write_text(f"processor : 0\nvendor_id : {vendor}\n")
        assert blas_library.is_intel(cpus) == (vendor == "GenuineIntel")
    assert not blas_library.is_intel(tmp_path / "missing")


def test_openblas_can_be_asked_for(monkeypatch, mkl, told):
    monkeypatch.setenv("DISTIR_EXT_BLAS", "openblas")
    assert blas_library.use_blas() == blas_library.find_openblas() != mkl
    assert told == [(str(blas_library.find_openblas()), "scipy_")]


def test_without_mkl(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(blas_library.metadata, "files", missing)
    assert blas_library.find_mkl() is None
