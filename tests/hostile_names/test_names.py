"""Hostile names of any entity stay plain text in every output: no code, markup or control codes."""

from __future__ import annotations

import inspect
import io
import json
import logging
import re
import time
from pathlib import Path

import pytest
from rich.console import Console
from tests.hostile_names.entities import ENTITIES, NAMES, ODD, annotated, module
from tests.hostile_names.outputs import (
    CHECKS,
    OUTPUTS,
    Program,
    check_html,
    check_python,
    check_terminal,
    check_xml,
)
from tests.hostile_names.results import results

import distir_ext as dx
from distir_ext.interop._program_files import run_file
from distir_ext.text.display import figure, html, tables
from distir_ext.text.errors.logs import package_logger
from distir_ext.text.errors.tracebacks import short_tracebacks
from distir_ext.text.printable import printable
from distir_ext.text.progress import PATIENCE, counting_bar
from distir_ext.text.tables import as_html


def check(entity, kind, folder, outputs):
    name = NAMES[kind]
    program = Program(ENTITIES[entity](name), folder, name)
    for output in outputs:
        medium, write = OUTPUTS[output]
        written = write(program)
        for text in [written] if isinstance(written, str) or medium == "table" else written:
            try:
                CHECKS[medium](text)
                assert not isinstance(text, str) or len(text) < 500 * max(len(name), 1000)
            except Exception as error:
                raise AssertionError(f"{output}, {kind}") from error


def outputs_of(entity):
    """All of them; what matplotlib draws, which takes seconds, of entities whose names it draws."""
    are_drawn = entity in ("kernel", "mesh axis", "variable")
    return [each for each in OUTPUTS if each != "figures" or are_drawn]


@pytest.mark.every_case_in_large
@pytest.mark.parametrize("entity", ENTITIES)
def test_every_output_has_hostile_names_as_text(entity, tmp_path):
    check(entity, "all at once", tmp_path, outputs_of(entity))
    check(entity, "others at once", tmp_path, set(outputs_of(entity)) - {"figures"})


@pytest.mark.large
@pytest.mark.parametrize("entity", ENTITIES)
def test_every_output_takes_long_names(entity, tmp_path):
    check(entity, "a million letters", tmp_path, outputs_of(entity))


@pytest.mark.every_case_in_large
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


def test_every_result_that_has_a_view(tmp_path):
    """Every class that is registered with a view has a result here, made of one hostile program."""
    registered = {
        each for view in (tables, html, figure) for each in view.registry if each is not object
    }
    for name in (NAMES["all at once"], NAMES["others at once"]):
        seen = set()
        for result in results(name):
            seen.add(type(result))
            if not isinstance(result, tuple):
                check_terminal(str(result))
            check_terminal(repr(result))
            if type(result) in tables.registry:
                check_html(as_html(tables(result)))
            if hasattr(result, "_repr_html_"):
                check_html(result._repr_html_())
            if hasattr(result, "to_json"):
                json.loads(result.to_json())
            if type(result) in figure.registry and name == NAMES["all at once"]:
                file = io.StringIO()
                result.plot().savefig(file, format="svg")
                check_xml(file.getvalue())
        assert not {each.__name__ for each in registered - seen}


@pytest.mark.parametrize("kind", NAMES)
def test_a_pass_of_a_user(kind, tmp_path):
    """Its name, what it counts and why it skips: in reports, logs, lists, dumps and errors."""
    name = NAMES[kind]

    @dx.pipelines.register_pass(name, phase="lowered")
    def leave_it(mod, matches, *, fails: bool = False):
        matches.add(name)
        matches.skip(name, name)
        return name if fails else mod

    written = io.StringIO()
    logger, handler = logging.getLogger("distir_ext.passes"), logging.StreamHandler(written)
    try:
        pipeline = dx.pipelines.load({"passes": {name: {}}})
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        with dx.pass_reports() as reports:
            dx.lower(annotated(module()), pipeline=pipeline, dump_dir=tmp_path)
        (report,) = [each for each in reports if each.name == name]
        for text in (str(report), repr(report), str(pipeline), *written.getvalue().splitlines()):
            check_terminal(text)
        for text in (report._repr_html_(), pipeline._repr_html_()):
            check_html(text)
        assert len(list(tmp_path.glob("*.py"))) > 3
        for file in tmp_path.iterdir():
            check_terminal(file.name)
            (check_html if file.suffix == ".html" else check_python)(file.read_text())
        failing = dx.pipelines.load({"passes": {name: {"fails": True}}})
        with pytest.raises(TypeError, match="returned a str") as failure:
            dx.lower(annotated(module()), pipeline=failing)
        check_terminal(str(failure.value))
        assert len(str(failure.value)) < 2000
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
        dx.pipelines.unregister_pass(name)


def test_every_public_function_has_names_as_text_in_its_errors():
    """Functions by which users come in make text of what errors say (`short_tracebacks`)."""
    of_us = short_tracebacks(lambda: None).__code__
    # Workers use `launch` and `workers` without TVM, which tracebacks are cut at.
    in_package = re.compile(r"distir_ext\.(?!launch|workers)")
    seen, missing = set(), []

    def visit(module):
        for name in getattr(module, "__all__", dir(module)):
            try:
                found = getattr(module, name, None)
            except ImportError:  # of an extra that is not installed
                continue
            if name.startswith("_") or not getattr(found, "__name__", "").strip("_"):
                continue
            if inspect.ismodule(found) and found.__name__.startswith("distir_ext."):
                if found not in seen:
                    seen.add(found)
                    visit(found)
            elif inspect.isfunction(found) and in_package.match(found.__module__):
                seen.add(found)
                if found.__code__ is not of_us:
                    missing.append(f"{found.__module__}.{name}")

    visit(dx)
    assert len(seen) > 90
    assert missing == ["distir_ext.native.reports.pass_reports"]  # which is told no names


def test_an_executable_has_whole_names():
    """Two functions whose names differ behind a NUL would be one function of an executable."""
    with pytest.raises(ValueError, match=r"the function '[ab]\\x00.' has a character NUL"):
        dx.build(annotated(module(main="a\0b", part="b\0c")))


def test_one_function_escapes_for_html():
    package = Path(dx.__file__).parent
    using = [
        file.relative_to(package).as_posix()
        for file in package.rglob("*.py")
        if re.search(r"^(import html$|from html import)", file.read_text("utf-8"), re.MULTILINE)
    ]
    assert using == ["text/html_text.py"]
