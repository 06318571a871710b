"""The example starts with the libraries of the models that it is asked for."""

import sys

import pytest


@pytest.fixture
def without_libraries(monkeypatch):
    """An interpreter where neither torch nor ONNX can be imported."""
    for name in ("torch", "transformers", "onnx"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in [each for each in sys.modules if each in ("huggingface", "models.encoder")]:
        monkeypatch.delitem(sys.modules, name)


def test_a_model_without_its_library_is_a_failure_that_says_what_to_install(
    without_libraries, capsys
):
    import huggingface

    assert huggingface.main(["--model", "encoder", "--plan", "tensor"]) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "encoder: import of onnx halted" in printed
    assert "pip install distir-ext[torch]" in printed
