"""The example's models, exported once. Nothing here imports torch before a test runs."""

from __future__ import annotations

import functools

import pytest


@pytest.fixture(scope="session")
def exported():
    """The model of a name."""
    from huggingface import MODELS

    return functools.cache(lambda name: MODELS[name]())
