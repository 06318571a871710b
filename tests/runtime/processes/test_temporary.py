"""Processes on a machine without a folder for temporary files say what to set."""

import tempfile

import pytest
from tvm import relax

import distir_ext as dx
from distir_ext.text.temporary import lasting_folder, temporary_folder


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


def test_what_to_set(nowhere):
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.add(x, x)))
    exe = dx.build(dx.annotate(builder.get(), dx.Mesh(d=2), {"x": ("d",)}), target="llvm")
    message = r"temporary files.*environment variable TMPDIR.*\(No usable temporary directory"
    with (
        dx.Session(2, workers="processes") as session,
        pytest.raises(FileNotFoundError, match=message),
    ):
        session.load(exe)
    with pytest.raises(FileNotFoundError, match=message):
        lasting_folder("distir-")
