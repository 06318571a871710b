"""Processes on a machine without a folder for temporary files say what to set."""

import tempfile

import numpy as np
import pytest
from tests.runtime.lateness import SANITIZED
from tvm import relax

import distir_ext as dx
from distir_ext.text.files.temporary import lasting_folder, temporary_folder


@pytest.fixture
def nowhere(monkeypatch):
    """A root that is read-only: no folder that tempfile tries can be written to."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc/none"])


def test_folders_are_removed():
    with temporary_folder() as folder:
        (folder / "a").write_text("b")
    assert not folder.exists()
    made = lasting_folder("distir-")
    made.rmdir()


def program():
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.add(x, x)))
    return dx.build(dx.annotate(builder.get(), dx.Mesh(d=2), {"x": ("d",)}), target="llvm")


def test_what_to_set(nowhere):
    """Programs for CPUs need no folder: they travel in memory. What needs one says what to set."""
    with dx.Session(2, workers="processes") as session:
        function = session.load(program())["main"]
        np.testing.assert_array_equal(
            function(np.arange(4.0, dtype="float32")).numpy(), range(0, 8, 2)
        )
    message = r"temporary files.*environment variable TMPDIR.*\(No usable temporary directory"
    with pytest.raises(FileNotFoundError, match=message):
        lasting_folder("distir-")
    with pytest.raises(FileNotFoundError, match=message), temporary_folder():
        pass


def test_workers_make_no_file_that_could_be_left(tmp_path, monkeypatch):
    """A worker that is killed removes nothing; a folder notes when a file was made in it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    exe = program()
    before = tmp_path.stat().st_mtime_ns
    with dx.Session(2, workers="processes") as session:
        session.load(exe)
    assert list(tmp_path.iterdir()) == []
    if not SANITIZED:  # ThreadSanitizer makes and removes a file of its own in each process
        assert tmp_path.stat().st_mtime_ns == before
