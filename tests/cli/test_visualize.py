"""``distir visualize``: the pictures of the library, of variables and of shapes."""

import pytest
from tests.cli.conftest import SHARDED

import distir_ext as dx
from distir_ext import cli
from distir_ext.interop._program_files import read_program

MESH = dx.Mesh(dp=2, tp=2)
PLAN = {"x": ("dp", None), "up": (None, "tp"), "down": ("tp", None)}


def test_a_variable(model, printed):
    expected = dx.visualize(dx.annotate(read_program(model), MESH, PLAN), "hidden").text()
    assert printed("visualize", model, "hidden", *SHARDED) == f"{expected}\n"
    assert printed("visualize", model, *SHARDED, "hidden") == f"{expected}\n"


def test_a_shape(printed):
    expected = dx.visualize((5, 8), MESH, (None, "tp"), devices=[3]).text()
    shape = ["--shape", "5,8", "--mesh", "dp=2,tp=2"]
    assert printed("visualize", "-,tp", *shape, "--device", 3) == f"{expected}\n"
    assert "replicates" in printed("visualize", "replicated", *shape)


def test_json_says_what_each_device_has(model, data):
    found = data("visualize", "dp,-", "--shape", "5,8", "--mesh", "dp=2,tp=2")
    assert (found["shape"], found["shard_shape"], found["dims"]) == ([5, 8], [3, 8], ["dp", None])
    first, second = [[0, 3], [0, 8]], [[3, 5], [0, 8]]
    assert found["indices"] == {"0": first, "1": first, "2": second, "3": second}
    assert found["blocks"]["2"] == [1, 0]
    found = data("visualize", model, "hidden", *SHARDED)
    assert (found["dims"], found["dtype"]) == (["dp", "tp"], "float32")
    assert found["indices"]["1"] == [[0, 4], [128, 256]]


def test_symbolic_sizes_have_no_indices(file, data):
    from tests.cli.conftest import MODEL

    name = file("symbolic.py", MODEL.replace("(8, 64)", '("n", 64)'))
    found = data("visualize", name, "x", *SHARDED)
    assert (found["shape"], found["shard_shape"]) == (["n", 64], ["n/2", 64])
    assert found["indices"] is None


def test_a_file(model, printed, tmp_path):
    printed("visualize", model, "hidden", *SHARDED, "-o", "hidden.svg")
    text = (tmp_path / "hidden.svg").read_text()
    assert text.startswith("<svg")
    mod = dx.annotate(read_program(model), MESH, PLAN)
    dx.visualize(mod, "hidden").to_svg(tmp_path / "expected.svg")
    assert text == (tmp_path / "expected.svg").read_text()


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["hiddn"], 1, "no variable 'hiddn' in main; did you mean 'hidden'?"),
        ([], 2, "one VARIABLE of the program is drawn"),
        (["up", "down"], 2, "one VARIABLE of the program is drawn"),
        (["up", "-o", "up.png"], 2, "--output up.png: a picture is a file .svg"),
        (["up", "--device", "9"], 1, "device 9 is not one of those that hold the array: 0..3"),
        (["up", "--shape", "8,8"], 2, "--shape takes one sharding, as 'dp,tp', and no program"),
        (["--shape", "8,8"], 2, "--shard is of a program, not of --shape"),
    ],
)
def test_what_cannot_be_drawn(model, refused, arguments, status, message):
    assert message in refused("visualize", model, *SHARDED, *arguments, status=status)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["dp,tp"], 2, "--shape needs --mesh"),
        (["dp,t", "--mesh", "dp=2,tp=2"], 1, "did you mean 'tp'"),
        (["dp", "--mesh", "dp=2,tp=2"], 1, "the array of shape (8, 8)"),
    ],
)
def test_shapes_that_cannot_be_drawn(refused, arguments, status, message):
    assert message in refused("visualize", *arguments, "--shape", "8,8", status=status)


def test_colours_are_for_terminals(model, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert cli.main(["visualize", model, "hidden", *SHARDED]) == 0
    assert "\x1b[" in capsys.readouterr().out
