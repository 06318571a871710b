"""Names of others go through every entity that has a name and every output, and stay names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.hostile_names.entities import ENTITIES, NAMES, ODD
from tests.hostile_names.outputs import CHECKS, OUTPUTS, Program, check_python

import distir_ext as dx
from distir_ext.cli.shared.programs import run_file


def check(entity, kind, folder, outputs=tuple(OUTPUTS)):
    program = Program(ENTITIES[entity](NAMES[kind]), folder)
    for output in outputs:
        medium, write = OUTPUTS[output]
        written = write(program)
        for text in [written] if isinstance(written, str) or medium == "table" else written:
            try:
                CHECKS[medium](text)
            except Exception as error:
                raise AssertionError(f"{output}, {kind}") from error


@pytest.mark.every_case
@pytest.mark.parametrize("entity", ENTITIES)
def test_every_output_has_hostile_names_as_text(entity, tmp_path):
    # What matplotlib draws takes seconds: those entities whose names it draws.
    are_drawn = entity in ("kernel", "mesh axis", "variable")
    outputs = [each for each in OUTPUTS if each != "figures" or are_drawn]
    check(entity, "all at once", tmp_path, outputs)


@pytest.mark.large
@pytest.mark.parametrize("entity", ENTITIES)
def test_every_output_takes_long_names(entity, tmp_path):
    check(entity, "a million letters", tmp_path)


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


def test_one_function_escapes_for_html():
    package = Path(dx.__file__).parent
    using = [
        file.relative_to(package).as_posix()
        for file in package.rglob("*.py")
        if re.search(r"^(import html$|from html import)", file.read_text("utf-8"), re.MULTILINE)
    ]
    assert using == ["_text/html_text.py"]
