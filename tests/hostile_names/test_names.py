"""Names of others go through every entity that has a name and every output, and stay names."""

from __future__ import annotations

import io
import logging
import re
import time
from pathlib import Path

import pytest
from rich.console import Console
from tests.hostile_names.entities import ENTITIES, NAMES, ODD
from tests.hostile_names.outputs import CHECKS, OUTPUTS, Program, check_python, check_terminal

import distir_ext as dx
from distir_ext.interop._program_files import run_file
from distir_ext.text.logs import package_logger
from distir_ext.text.printable import printable
from distir_ext.text.progress import PATIENCE, counting_bar


def check(entity, kind, folder, outputs):
    name = NAMES[kind]
    program = Program(ENTITIES[entity](name), folder, name)
    for output in outputs:
        medium, write = OUTPUTS[output]
        written = write(program)
        for text in [written] if isinstance(written, str) or medium == "table" else written:
            try:
                CHECKS[medium](text)
            except Exception as error:
                raise AssertionError(f"{output}, {kind}") from error


def outputs_of(entity):
    """All of them; what matplotlib draws, which takes seconds, of entities whose names it draws."""
    are_drawn = entity in ("kernel", "mesh axis", "variable")
    return [each for each in OUTPUTS if each != "figures" or are_drawn]


@pytest.mark.every_case
@pytest.mark.parametrize("entity", ENTITIES)
def test_every_output_has_hostile_names_as_text(entity, tmp_path):
    check(entity, "all at once", tmp_path, outputs_of(entity))


@pytest.mark.large
@pytest.mark.parametrize("entity", ENTITIES)
def test_every_output_takes_long_names(entity, tmp_path):
    check(entity, "a million letters", tmp_path, outputs_of(entity))


@pytest.mark.every_case
@pytest.mark.parametrize("entity", ENTITIES)
def test_what_is_printed_runs(entity, tmp_path):
    """Names that Python cannot read, too: as a program whose text is the same."""
    for name in (*ODD, NAMES["all at once"]):
        mod = dx.transform.PropagateSharding()(ENTITIES[entity](name))
        check_python(dx.script(mod))
        text = dx.script(mod, comments=False)  # which name parameters as the module does
        file = tmp_path / "program.py"
        file.write_text(text)
        if entity != "symbolic size":  # TVM parses no kernel with one, whatever its name
            assert dx.script(run_file(file).Module, comments=False) == text


@pytest.mark.parametrize("kind", NAMES)
def test_errors_of_workers(kind):
    """Threads, processes and those of other hosts say the same, of which one error is made."""
    name = NAMES[kind]
    texts = ("function", "operator", "kind", "message", "backtrace", "host")
    error = dx.WorkerError({"worker": 0, "device": 0} | dict.fromkeys(texts, name))
    for text in (str(error), error.function, error.operator, error.kind, error.host):
        check_terminal(text.replace("\n", " "))
        assert len(text) < 4000
    assert error.backtrace == printable(error.backtrace)


def test_logs_and_bars():
    """Names in logs and progress bars are shown as plain text, without markup or control codes."""
    written, shown = io.StringIO(), io.StringIO()
    logger, handler = package_logger("distir_ext.test"), logging.StreamHandler(written)
    logger.addHandler(handler)
    logger.warning("of %s", NAMES["all at once"])
    console = Console(file=shown, force_terminal=True, color_system=None, width=400)
    with counting_bar(f"measuring [red]{NAMES['all at once']}", 2, console) as advance:
        time.sleep(1.1 * PATIENCE)
        advance()
    logger.removeHandler(handler)
    check_terminal(written.getvalue())
    assert "[red]" in shown.getvalue()
    assert "\x1b[2J" not in shown.getvalue()


def test_one_function_escapes_for_html():
    package = Path(dx.__file__).parent
    using = [
        file.relative_to(package).as_posix()
        for file in package.rglob("*.py")
        if re.search(r"^(import html$|from html import)", file.read_text("utf-8"), re.MULTILINE)
    ]
    assert using == ["text/html_text.py"]
