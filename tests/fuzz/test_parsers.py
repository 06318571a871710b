"""Every parser on inputs of a corpus and changes of them: a value or a ValueError, at once.

In ``make test`` a few of them, in ``make test-all`` 20,000 for most parsers; ``make fuzz`` goes on
for as long as it is told. ``make asan PYTEST_ARGS=tests/fuzz`` sees what only a sanitizer does.
"""

from __future__ import annotations

import time

import pytest

from .mutation import inputs
from .targets import TARGETS, corpus_of, run

BY_HAND = (
    *("configurations", "hint_files", "model_configurations"),
    *("gspmd_shardings", "onnx_models", "shardy_attributes"),
)
BY_ONE_READER = ("saved_programs", "saved_modules")  # each input is three files
# Inputs in the small sample, and in larger ones, where they are others than for most parsers.
COUNTS = dict.fromkeys(BY_HAND, (2_000, 100_000)) | dict.fromkeys(BY_ONE_READER, (300, 5_000))

# Of one input, which has at most 20 kB; on a machine that others use, too.
SECONDS = 2


@pytest.mark.parametrize("name", TARGETS)
def test_parser(name, sample):
    few, most = COUNTS.get(name, (300, 20_000))
    for data in inputs(corpus_of(name), sample(few, most // 10, most, most), seed=1):
        begin = time.process_time()
        try:
            run(name, data)
        except BaseException as error:
            raise AssertionError(f"{name} of {data[:500]!r}") from error
        assert time.process_time() - begin < SECONDS, data[:500]


@pytest.mark.parametrize("name", TARGETS)
def test_corpus_has_what_is_right(name):
    """Changes of what is wrong from its first byte on would reach nothing."""

    def is_right(data):
        try:
            TARGETS[name](data)
        except ValueError:
            return False
        return True

    assert any(is_right(data) for data in corpus_of(name))
