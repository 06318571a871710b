"""Errors of commands: one line with the user's argument and the most similar names."""

import pytest
from tests.cli.conftest import SHARDED

from distir_ext import cli
from distir_ext.cli import rules
from distir_ext.text.errors.full_tracebacks import VARIABLE

MESH = ["--mesh", "dp=2,tp=2"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["reprot"], "there is no command 'reprot'; did you mean 'report'?"),
        (["report"], "the following arguments are required: PROGRAM"),
        (["report", "model.py", "--jsn"], "there is no argument '--jsn'; did you mean '--json'?"),
        (["report", "model.py", "other.py"], "there is no argument 'other.py'"),
        (["report", "model.py", "--mesh", "dp=2,2"], "argument --mesh: '2' is not NAME=NUMBER"),
        (["report", "model.py", *MESH, "--shard", "x"], "argument --shard: 'x' is not PATTERN="),
        (
            ["report", "model.py", "--html", "no/r.html"],
            "--html: there is no folder 'no' for 'no/r",
        ),
        (["sweep", "model.py", "--html", "no/r.html"], "--html: there is no folder 'no' for 'no/r"),
        (["sweep", "model.py", "--plot", "."], "argument --plot: '.' is a folder, not a file"),
        (["partition", "model.py", "-o", "no/m.py"], "there is no folder 'no' for 'no/m.py'"),
        (["demo", "--case", "lama"], "there is no 'lama', only megatron, llama, forum, all; did"),
        (["report", "model.py", "--shard", "x=dp,-"], "--shard needs --mesh"),
        (["report", "model.py", "--plan", "plan.json"], "--plan needs --mesh"),
        (["report", "model.py", "--inputs", "x"], "--inputs needs --mesh"),
        (["rules", "matmul", "--markdown"], "--markdown prints all operators"),
    ],
)
def test_arguments_that_are_not_understood(model, refused, arguments, message):
    assert message in refused(*arguments, status=2)


NOTHING = "nothing in model.py is distributed; state --mesh and --shard"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["modle.py"], "there is no file modle.py; did you mean 'model.py'?"),
        (["model.py:MPL"], "model.py has no IRModule 'MPL'; its modules are MLP"),
        (["model.py"], NOTHING),
        (["model.py", *MESH], NOTHING),
        (
            ["model.py", *MESH, "--shard", "x=dpp,-"],
            "parameter x dimension 0: the mesh has no axis 'dpp'; its axes are dp, tp; did you "
            "mean 'dp'?",
        ),
        (["model.py", *MESH, "--shard", "ups=dp,-"], "pattern 'ups' matches no parameter of"),
        (["model.py", *MESH, "--shard", "ups=dp,-"], "did you mean 'up'?"),
        (["model.py", *MESH, "--shard", "(x=dp,-"], "pattern '(x' is not a regular expression"),
        (["model.py", *MESH, "--shard", "x=dp"], "parameter x has 2 dimensions"),
        (["model.py", *MESH, "--func", "mian"], "'mian'"),
        (["model.py", *SHARDED, "--inputs", "down"], "inputs are the first parameters"),
        (["model.py", *SHARDED, "--cluster", "H10"], "there is no cluster 'H10'; there are A100"),
        (["model.py", *SHARDED, "--cluster", "mesure"], "did you mean 'measure'?"),
        (["model.py", *SHARDED, "--cluster", "no.json"], "there is no cluster no.json"),
        (["model.py", *SHARDED, "--size", "n=8"], "the module has no symbolic size 'n'"),
        (["model.py", *MESH, "--plan", "paln.json"], "no plan paln.json; did you mean 'plan.json'"),
    ],
)
def test_what_does_not_fit_the_program(model, file, refused, arguments, message):
    file("plan.json", {})
    assert message in refused("report", *arguments)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "the plan plan.json is damaged: "),
        ("[]", "the plan plan.json is damaged: it is not a JSON object"),
        ('{"x": 3}', "the plan plan.json, 'x': 3 is no sharding"),
        ('{"x": "dp,,"}', "the plan plan.json, 'x': 'dp,,' is no sharding"),
        ('{"x": [{"axis": "dp"}, null]}', "the plan plan.json, 'x': [{"),
        (
            '{"x": [{"priority": "1"}, null]}',
            "the plan plan.json, 'x': the priority of a ",
        ),
        ('{"x": "dp,-", "x": null}', "the plan plan.json is damaged: it has ['x'] twice"),
    ],
)
def test_files_that_are_no_plan(model, file, refused, text, message):
    assert message in refused("report", model, *MESH, "--plan", file("plan.json", text))


@pytest.mark.parametrize(
    ("variables", "message"),
    [(["hiden"], "no variable 'hiden' in main (near: hidden)"), (["--func", "man"], "'man'")],
)
def test_variables_that_are_not_there(model, refused, variables, message):
    assert message in refused("explain", model, *SHARDED, *variables)


def test_warnings_are_a_line_of_the_command(model, capsys):
    assert cli.main(["report", model, *SHARDED, "--shard", "u.=-,tp"]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("distir report: warning: pattern 'u.' has no effect")


def test_the_environment_asks_for_tracebacks(model, monkeypatch, capsys):
    monkeypatch.setenv(VARIABLE, "1")
    assert cli.main(["report", "modle.py"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("Traceback")
    assert error.splitlines()[-1].startswith("distir report: there is no file")


def test_lines_of_others_do_not_reach_the_terminal_as_commands(file, refused):
    name = file("escapes.py", r"raise ValueError('\x1b[2J red\nsecond line')")
    assert refused("report", name) == r"escapes.py:1: ValueError: \x1b[2J red second line"


def test_mistakes_of_the_program_itself_are_raised(monkeypatch):
    def fail(options):
        raise AssertionError("a defect")

    monkeypatch.setattr(rules, "run", fail)
    with pytest.raises(AssertionError, match="a defect"):
        cli.main(["rules"])


def test_a_pipe_that_breaks_elsewhere_is_a_failure(monkeypatch, refused):
    def lose(options):
        raise BrokenPipeError("the worker has gone")

    monkeypatch.setattr(rules, "run", lose)
    assert refused("rules") == "the worker has gone"


def test_an_interruption_is_silent(monkeypatch, capsys):
    def interrupt(options):
        raise KeyboardInterrupt

    monkeypatch.setattr(rules, "run", interrupt)
    assert cli.main(["rules"]) == 130
    assert capsys.readouterr() == ("", "")
