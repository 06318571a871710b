"""Programs of JAX on 8 devices: imported, run on CPU workers, exported again and run by JAX."""

import fcntl
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.targets import QUICK

import distir_ext as dx

pytest.importorskip("jax", reason="JAX is not installed: pip install jax")

from tests.interop.jax.manual_programs import CASES

SMALL_SAMPLE = ("mlp", "recurrent_by_scan", "einsums_along_three_axes", "feed_forward_by_hand")
NAMES = [
    name if name in SMALL_SAMPLE else pytest.param(name, marks=pytest.mark.large) for name in CASES
]
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def on_devices(tmp_path_factory, request, worker_id):
    """By program: its text, arguments, JAX's results, and those of the program that came back."""
    wanted = {item.callspec.params["name"] for item in request.session.items if is_here(item)}
    base = tmp_path_factory.getbasetemp()
    target = (base if worker_id == "master" else base.parent) / "jax_on_devices"
    target.mkdir(exist_ok=True)
    with (target / ".lock").open("w") as lock:  # one worker of pytest runs JAX for all
        fcntl.flock(lock, fcntl.LOCK_EX)
        missing = sorted(name for name in wanted if not (target / name).exists())
        if missing:
            command = [sys.executable, "-m", "tests.interop.jax.on_devices", target, *missing]
            paths = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
            environment = {**os.environ, "PYTHONPATH": paths}
            subprocess.run(command, check=True, cwd=ROOT, env=environment, timeout=600)
    return {name: pickle.loads((target / name).read_bytes()) for name in wanted}


def is_here(item):
    return item.path == Path(__file__) and hasattr(item, "callspec")


def assert_equal(found, wanted, tolerance):
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.large
@pytest.mark.parametrize("name", NAMES)
def test_cpu_workers_compute_what_jax_computes(name, on_devices):
    _, weights, tolerance = CASES[name]
    text, arguments, wanted, _ = on_devices[name]
    mod = dx.interop.jax.from_stablehlo(text, weights=weights)
    in_order = [each.name for each in dx.interop.jax.from_stablehlo(text)["main"].params]
    values = dict(zip(in_order, arguments, strict=True))
    names = [each.name for each in mod["main"].params]
    inputs = int(mod["main"].attrs["num_input"]) if weights else len(names)
    assert {each.split(".")[0] for each in names[inputs:]} == set(weights)
    exe = dx.build(mod, target=QUICK)
    with dx.Session(8) as session:
        model = session.load(exe, params={each: values[each] for each in names[inputs:]})
        found = model["main"](*(values[each] for each in names[:inputs]))
    found = found if isinstance(found, tuple | list) else [found]
    assert_equal([each.numpy() for each in found], wanted, tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_jax_computes_the_same_of_what_comes_back(name, on_devices):
    *_, wanted, back = on_devices[name]
    assert not isinstance(back, str), back
    results, text = back
    assert_equal(results, wanted, CASES[name][2])
    assert "sdy.manual_computation" in text
    assert "sdy.sharding = " in text


@pytest.mark.parametrize("name", NAMES)
def test_annotations_are_the_shardings_of_jax(name, on_devices):
    text = on_devices[name][0]
    mod = dx.interop.jax.from_stablehlo(text)
    (mesh,) = dx.meshes(mod)[:1]
    wanted = text.split("sdy.mesh @mesh = <[")[1].split("]>")[0]
    axes = zip(mesh.axis_names, mesh.shape, strict=True)
    assert wanted == ", ".join(f'"{axis}"={size}' for axis, size in axes)
    assert dx.phase(mod) == "annotated"
