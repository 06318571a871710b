"""Imports and exports of the StableHLO files in golden/, compared with the files beside them."""

import json

import numpy as np
import pytest
from tests.targets import QUICK

import distir_ext as dx

jax = pytest.importorskip("jax", reason="JAX is not installed: pip install jax")

from tests.interop.jax.golden import CASES, GOLDEN, WRITTEN, back, exported  # noqa: E402


def imported(name):
    text = (GOLDEN / f"{name}.mlir").read_text("utf-8")
    return dx.interop.jax.from_stablehlo(text, weights=CASES[name][2])


@pytest.mark.parametrize("name", CASES)
def test_texts_become_these_modules(name):
    assert imported(name).script() + "\n" == (GOLDEN / f"{name}.script").read_text("utf-8")


@pytest.mark.parametrize("name", CASES)
def test_modules_compute_what_jax_computed(name):
    make, _, weights, _ = CASES[name]
    _, arguments = make()
    mod, params = imported(name), {}
    if weights:
        params = dx.interop.jax.named_leaves(params=arguments[0])
        arguments = arguments[1:]
    with dx.Session(4) as session:
        found = session.load(dx.build(mod, target=QUICK), params=params)["main"](*arguments)
    found = found if isinstance(found, tuple | list) else [found]
    wanted = json.loads((GOLDEN / f"{name}.json").read_text("utf-8"))
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours.numpy(), np.array(theirs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_programs_are_exported_as_they_are_kept(name):
    """As far as names and shardings of parameters and results go."""
    mod = dx.interop.jax.from_exported(exported(name), weights=CASES[name][2])
    ours, theirs = (dx.analysis.shardings(dx.lower(each)) for each in (mod, imported(name)))
    assert ours == theirs


def test_what_goes_out():
    assert back(imported(WRITTEN)) == (GOLDEN / f"{WRITTEN}.back.mlir").read_text("utf-8")
