"""The help lists what the library knows; commands lie in files of their names."""

import argparse
import shlex

import pytest
from rich.console import Console

import distir_ext as dx
from distir_ext import cli
from distir_ext.cli import partition
from distir_ext.cli.shared import clusters
from distir_ext.native.steps import steps
from distir_ext.text.tables import as_text, print_tables
from distir_ext.views.tables.costs import sharding_table


def parsers():
    (commands,) = (
        action
        for action in cli.command_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    return commands.choices


def test_commands_are_files():
    names = [command.__name__.rpartition(".")[2].replace("_", "-") for command in cli.COMMANDS]
    assert names == list(parsers())


def test_every_device_is_in_the_help():
    text = " ".join(parsers()["report"].format_help().split())
    for name in (*dx.DEVICES, clusters.MEASURE):
        assert name in text


def test_every_phase_is_in_the_help():
    text = parsers()["partition"].format_help()
    listed = text[text.index("phases:") : text.index("A sharding has")]
    phases = [line.split()[0] for line in listed.splitlines()[1:] if line]
    assert phases == list(dict.fromkeys([partition.ANNOTATED, *(each.gives for each in steps())]))


@pytest.mark.parametrize(
    "name",
    [
        *("report", "simulate", "sweep", "profile", "diff", "explain", "visualize", "partition"),
        *("redistribute", "rules"),
    ],
)
def test_commands_that_analyse_have_json(name):
    assert "--json" in parsers()[name].format_help()


def test_lines_of_help_fit_a_terminal():
    for parser in parsers().values():
        assert max(len(line) for line in parser.format_help().splitlines()) <= 100


def test_narrow_terminals_cut_nothing_off(model, capsys):
    from distir_ext.interop._program_files import read_program

    mod = dx.annotate(read_program(model), dx.Mesh(dp=2, tp=2), {"up": (None, "tp")})
    table = sharding_table(dx.analysis.shardings(mod))
    console = Console(width=40, force_terminal=False)
    print_tables([table], console)
    narrow = "".join(capsys.readouterr().out.split())
    assert "\N{HORIZONTAL ELLIPSIS}" not in narrow
    assert max(map(len, as_text([table]).splitlines())) > 40


@pytest.mark.every_case
@pytest.mark.parametrize("name", parsers())
def test_every_help_has_an_example_that_is_right(name):
    help_text = parsers()[name].format_help()
    example = help_text.rpartition("example:\n  ")[2].strip()
    words = shlex.split(example.partition(" > ")[0])
    arguments = words[words.index("distir") + 1 :]
    assert arguments[0] == name
    assert cli.command_parser().read(arguments).command == name
