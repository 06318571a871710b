"""The example's models, exported once. Nothing here imports torch before a test runs."""

from __future__ import annotations

import functools

import pytest
import tvm


@pytest.fixture(scope="package", autouse=True)
def kernels_check_their_arguments(argument_checks):
    """Other tests leave these checks out, to be compiled in less time."""
    with tvm.transform.PassContext():
        yield


@pytest.fixture(scope="session")
def exported():
    """The model of a name."""
    from huggingface import MODELS

    return functools.cache(lambda name: MODELS[name]())
