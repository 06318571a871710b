"""Selection of a file's module, and errors of files that have none."""

import sys

import pytest
import tvm
from tests.cli.conftest import MODEL

from distir_ext.interop._program_files import read_program


def functions(mod):
    return [name.name_hint for name in mod.get_global_vars()]


def test_the_module_of_a_file(model):
    mod = read_program(model)
    assert isinstance(mod, tvm.IRModule)
    assert functions(mod) == ["main"]


def test_one_of_several_by_name(file):
    file("two.py", MODEL + "\nOther = MLP.with_attr('of', 'other')\nsame = MLP\n")
    assert read_program("two.py:Other").attrs["of"] == "other"
    assert "of" not in read_program("two.py:MLP").attrs
    with pytest.raises(ValueError, match=r"several modules; name one: two.py:MLP, two.py:Other$"):
        read_program("two.py")


def test_names_that_begin_with_an_underscore_do_not_count(file):
    file("program.py", MODEL + "\n_before = MLP\nAfter = MLP = MLP.with_attr('a', 1)\n")
    assert "a" in read_program("program.py").attrs
    assert "a" not in read_program("program.py:_before").attrs


def test_what_a_file_prints_goes_to_standard_error(file, capsys):
    file("noisy.py", f"print('noise')\n{MODEL}")
    read_program("noisy.py")
    assert capsys.readouterr() == ("", "noise\n")


def test_a_file_imports_what_lies_beside_it_and_is_not_the_main_program(file):
    file("model.py", MODEL)
    file("beside.py", "from model import MLP\nif __name__ == '__main__': raise ValueError\n")
    path = list(sys.path)
    assert functions(read_program("beside.py")) == ["main"]
    assert sys.path == path
    del sys.modules["model"]


def test_a_file_named_like_a_module_of_python_does_not_replace_it(file):
    import token

    file("token.py", MODEL)
    assert functions(read_program("token.py")) == ["main"]
    assert sys.modules["token"] is token


def test_a_colon_in_the_name_of_a_file(file):
    file("a:b.py", MODEL)
    assert functions(read_program("a:b.py")) == ["main"]
    assert functions(read_program("a:b.py:MLP")) == ["main"]


@pytest.mark.parametrize(
    ("name", "text", "error", "message"),
    [
        ("none.py", "x = 1", ValueError, "none.py has no IRModule at its top level"),
        ("syntax.py", "\nx = (", RuntimeError, "syntax.py:2: SyntaxError: '\\(' was never closed"),
        ("raises.py", "\n\n1 / 0", RuntimeError, "raises.py:3: ZeroDivisionError: division"),
        ("exits.py", "raise SystemExit(3)", RuntimeError, "exits.py:1: SystemExit: 3"),
        ("lacks.py", "import no_such_module", RuntimeError, "lacks.py:1: ModuleNotFoundError"),
        ("text.txt", "", ValueError, "text.txt is of no known kind; a program is a .py file"),
    ],
)
def test_files_without_a_module(file, name, text, error, message):
    with pytest.raises(error, match=message):
        read_program(file(name, text))


def test_an_error_of_tvmscript_names_the_line(file):
    file("wrong.py", MODEL.replace("R.nn.relu", "R.nn.rellu"))
    with pytest.raises(RuntimeError, match=r"^wrong.py:15: module .* has no attribute 'rellu'$"):
        read_program("wrong.py")


def test_files_that_are_not_there(model, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no file modle.py; did you mean 'model.py'"):
        read_program("modle.py")
    with pytest.raises(FileNotFoundError, match=r"no file elsewhere/model.py$"):
        read_program("elsewhere/model.py")
    with pytest.raises(ValueError, match=r"is a folder without program.json; a program is a .py"):
        read_program(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("MLPP", "no IRModule 'MLPP'; its modules are MLP; did you mean 'MLP'?"),
        ("I", "no IRModule 'I'; 'I' is of type module"),
    ],
)
def test_names_that_are_no_module(model, name, message):
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - compared below
        read_program(f"{model}:{name}")
    assert str(raised.value) == f"model.py has {message}"


@pytest.mark.parametrize(("suffix", "package"), [("onnx", "onnx"), ("pt2", "torch")])
def test_without_a_framework_it_says_what_to_install(file, monkeypatch, suffix, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        ImportError, match=rf"needs {package}: pip install 'distir-ext\[{package}\]'"
    ):
        read_program(file(f"model.{suffix}", ""))
