"""A directive that describes a command by its parser, so that its page is never out of date.

``:::{command} distir_ext.cli.command_parser`` gives a usage line, the description and the options
of the command, then a section for each of its subcommands.
"""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Iterator

from docutils import nodes
from sphinx.util.docutils import SphinxDirective


class Command(SphinxDirective):
    """Its argument is a function that makes an ``argparse.ArgumentParser``."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Called by docutils."""
        module, _, function = self.arguments[0].rpartition(".")
        parser: argparse.ArgumentParser = getattr(importlib.import_module(module), function)()
        return [*described(parser), *(section_of(each) for each in subcommands(parser))]


def subcommands(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """The parsers of a command's subcommands, in order."""
    found = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return [each for action in found for each in action.choices.values()]


def section_of(parser: argparse.ArgumentParser) -> nodes.section:
    """A section that describes a subcommand."""
    section = nodes.section(ids=[nodes.make_id(parser.prog)], names=[parser.prog])
    section += nodes.title(text=parser.prog)
    section += described(parser)
    return section


def described(parser: argparse.ArgumentParser) -> Iterator[nodes.Node]:
    """Usage, description, options, and what stands below them in the help."""
    yield literal_block(parser.format_usage().removeprefix("usage: ").rstrip())
    yield from prose(parser, parser.description)
    options = nodes.definition_list()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction | argparse._HelpAction):
            continue
        item = nodes.definition_list_item()
        item += nodes.term("", "", nodes.literal(text=spelling(parser, action)))
        item += nodes.definition("", paragraph(help_of(parser, action)))
        options += item
    if options.children:
        yield options
    yield from prose(parser, parser.epilog)
    example = getattr(parser, "example", "")  # other parsers than those of distir have none
    if example:
        yield literal_block(example)


def prose(parser: argparse.ArgumentParser, text: str | None) -> Iterator[nodes.Node]:
    """A text of the parser; one whose lines count stays as it is."""
    if not text:
        return
    if parser.formatter_class is not argparse.RawDescriptionHelpFormatter:
        yield paragraph(text % {"prog": parser.prog})
        return
    for block in text.split("\n\n"):
        is_table = any(line.startswith("  ") for line in block.splitlines())
        yield literal_block(block) if is_table else paragraph(block)


def paragraph(text: str) -> nodes.paragraph:
    """A paragraph in which what stands in quotes is literal: 'distir host'."""
    found = nodes.paragraph()
    for number, part in enumerate(re.split(r"(?<!\w)'([^']+)'", text)):
        found += nodes.literal(text=part) if number % 2 else nodes.Text(part)
    return found


def literal_block(text: str) -> nodes.literal_block:
    """Text of which nothing is coloured."""
    return nodes.literal_block(text, text, language="text")


def spelling(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """How an option or argument is written: ``--bind ADDRESS[:PORT]``."""
    formatter = parser._get_formatter()
    if not action.option_strings:
        return formatter._format_args(action, action.dest)
    names = ", ".join(action.option_strings)
    if action.nargs == 0:
        return names
    return f"{names} {formatter._format_args(action, action.dest.upper())}"


def help_of(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """What the help says of an option or argument."""
    return parser._get_formatter()._expand_help(action) if action.help else ""


def setup(app):
    """Called by Sphinx."""
    app.add_directive("command", Command)
    return {"parallel_read_safe": True}
