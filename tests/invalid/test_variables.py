"""Variables of the environment that say anything: taken, or one error that names the variable."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.launch.test_hostile_environments import LAUNCHERS, MORE, VALUES

import distir_ext as dx
from distir_ext.compile import build_cache
from distir_ext.launch import mpi
from distir_ext.native import library
from distir_ext.native.machine import blas_library, cores
from distir_ext.text.errors.full_tracebacks import are_tracebacks_full
from distir_ext.text.printable import message_text
from distir_ext.wire.tokens import read_token

ROOT = Path(dx.__file__).parents[2]


READERS = {
    "DISTIR_EXT_BLAS": blas_library.use_blas,
    "DISTIR_EXT_CACHE": build_cache._folder,
    "DISTIR_EXT_CACHE_BYTES": build_cache._folder,
    "DISTIR_EXT_FULL_TRACEBACKS": are_tracebacks_full,
    "DISTIR_EXT_LIBRARY": library.library_path,
    "DISTIR_EXT_MPI_LIBRARY": lambda: mpi._open(("libmpi.so.12",)),
    "DISTIR_EXT_TOKEN": lambda: read_token(None),
    "DISTIR_EXT_TOKEN_FILE": lambda: read_token(None),
    "OMP_NUM_THREADS": lambda: cores._kernel_cores(2)[0],
    "TVM_NUM_THREADS": lambda: cores._kernel_cores(2)[0],
}
"""What reads a variable, of those that do not come from launchers."""

NATIVE = {
    "DISTIR_EXT_CUBLASLT_LIBRARY",
    "DISTIR_EXT_CUDART_LIBRARY",
    "DISTIR_EXT_CUDA_DEVICES",
    "DISTIR_EXT_MPI_COLLECTIVES",
    "DISTIR_EXT_NCCL_LIBRARY",
    "DISTIR_EXT_NCCL_TIMEOUT",
    "DISTIR_EXT_OPENSSL_LIBRARY",
    "DISTIR_EXT_SHARE_CUDA_DEVICES",
}
"""Read by the native library: of GPUs and MPI, and files that are loaded as programs."""

MORE_VALUES = ("9" * 5000, "~nobody-of-this-name/x", "~\x1b[2J/x", "/x" * 2500, "/dev/null", "/")


def test_every_variable_is_tried():
    files = [*(ROOT / "python").rglob("*.py"), *(ROOT / "src").rglob("*.cc")]
    known = {each for variables in LAUNCHERS.values() for each in variables} | {*MORE}
    text = "\n".join(file.read_text("utf-8") for file in files)
    named = set(re.findall(r'"(DISTIR_EXT_[A-Z_]+)"', text))
    assert named - known == (set(READERS) - {"OMP_NUM_THREADS", "TVM_NUM_THREADS"}) | NATIVE


@pytest.mark.parametrize("name", READERS)
@pytest.mark.every_case
def test_what_a_variable_says(name, monkeypatch, tmp_path):
    for each in READERS:
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv("DISTIR_EXT_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for value in (*VALUES, *MORE_VALUES):
        monkeypatch.setenv(name, value)
        try:
            READERS[name]()
        except (ImportError, OSError, RuntimeError, ValueError) as error:
            text = message_text(str(error))
            assert name in text or message_text(value[:100]) in text, text
            assert len(text) < 10_000
