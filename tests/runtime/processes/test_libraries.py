"""Libraries that are none, or a part of one: an error before the system's loader dies of it."""

from __future__ import annotations

import os
import resource
import struct

import numpy as np
import pytest
from tests.params.conftest import executable

import distir_ext as dx
from distir_ext.native.machine.libraries import check_library


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("library") / "library.so"
    executable(dx.Mesh((1,), ("x",)), {"w": ((4,), "float32")}, {"w": ("x",)}).export_library(path)
    return path


@pytest.fixture(scope="module")
def session():
    with dx.Session(1) as session:
        yield session


def test_whole_library_is_loaded(library, session):
    check_library(library)
    model = session.load(library, params={"w": np.zeros(4, "float32")})
    np.testing.assert_array_equal(model["main"](np.ones(4, "float32")).numpy(), [2] * 4)


def damage(kind, whole):
    return {
        "empty": b"",
        "text": b"#!/bin/sh\necho hello\n" * 10,
        "half": whole[: len(whole) // 2],
        "without its end": whole[:-1],
        "the magic alone": whole[:4],
        "other bytes": whole[:4] + b"\xff" * 1000,
        "segments elsewhere": whole[:32] + struct.pack("<Q", 2**63) + whole[40:],
    }[kind]


@pytest.mark.parametrize(
    "kind",
    [
        "empty",
        "text",
        "half",
        "without its end",
        "the magic alone",
        "other bytes",
        "segments elsewhere",
    ],
)
def test_damaged_library(kind, library, session, tmp_path):
    path = tmp_path / "damaged.so"
    path.write_bytes(damage(kind, library.read_bytes()))
    with pytest.raises(ValueError, match=r"damaged.so is"):
        session.load(path)


def test_table_of_four_gigabytes(library, tmp_path):
    """The file takes no space on the disk, and would take that of memory."""
    path = tmp_path / "sparse.so"
    whole = library.read_bytes()
    path.write_bytes(whole[:54] + struct.pack("<HH", 65535, 65535) + whole[58:])
    os.truncate(path, 1 << 34)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=r"sparse.so is damaged: its header is not that"):
        check_library(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


def test_every_part_of_a_library_is_refused(library, tmp_path):
    path = tmp_path / "part.so"
    path.write_bytes(library.read_bytes())
    for size in range(path.stat().st_size - 1, -1, -97):
        os.truncate(path, size)
        with pytest.raises(ValueError, match=r"part.so is"):
            check_library(path)


def test_library_that_is_no_file(session, tmp_path):
    os.mkfifo(tmp_path / "pipe.so")
    for path in (tmp_path / "pipe.so", tmp_path):
        with pytest.raises(ValueError, match="is not a regular file"):
            session.load(path)
    (tmp_path / "library.txt").write_text("hello")
    with pytest.raises(ValueError, match=r"library.txt cannot be loaded"):
        session.load(tmp_path / "library.txt")
    with pytest.raises(FileNotFoundError, match=r"nowhere.so"):
        session.load(tmp_path / "nowhere.so")
