"""The checks for authors of backends: ours pass them, broken collectives do not."""

import re

import numpy as np
import pytest
import tvm_ffi
from tests.targets import QUICK

import distir_ext as dx
from distir_ext import conformance


def test_backend_for_cpus_conforms():
    assert conformance.check_backend("cpu", target=QUICK) > 200


@pytest.mark.large
def test_backend_for_cpus_conforms_in_processes(monkeypatch, sample):
    """In the small sample one case of each three: processes load every program four times."""
    cases = list(conformance._cases(4))[:: sample(3, 2, 1, 1)]
    monkeypatch.setattr(conformance, "_cases", lambda count: cases)
    checked = conformance.check_backend("cpu", workers="processes", target=QUICK)
    assert checked > sample(65, 100, 200, 200)


@pytest.fixture
def change(monkeypatch):
    """Lets a function of the runtime go wrong: what it wrote is changed behind it."""
    originals = {}

    def apply(name, edit):
        name = f"distir.runtime.{name}"
        original = originals.setdefault(name, tvm_ffi.get_global_func(name))

        def changed(*arguments):
            result = original(*arguments)
            edit(np.from_dlpack(arguments[-1] if result is None else result))
            return result

        tvm_ffi.register_global_func(name, changed, override=True)

    yield apply
    for name, original in originals.items():
        tvm_ffi.register_global_func(name, original, override=True)


def add_one(out):
    out += np.asarray(1, out.dtype)


def reverse(out):
    out[...] = out[::-1].copy()


@pytest.mark.parametrize(
    ("name", "edit", "text"),
    [
        ("all_reduce", add_one, ".* along dimension 0"),
        ("all_gather", reverse, "redistribution"),
        ("all_to_all", reverse, "redistribution"),
        ("transfer", reverse, "redistribution|transfer"),
        ("segment_exchange", add_one, "slice from"),
    ],
)
def test_a_wrong_collective_is_noticed(change, monkeypatch, name, edit, text):
    cases = [case for case in conformance._cases(4) if re.match(text, case.text)]
    monkeypatch.setattr(conformance, "_cases", lambda count: cases[:: len(cases) // 12 + 1])
    change(name, edit)
    with pytest.raises(conformance.ConformanceError, match=rf"checks of cpu fail:\n({text})"):
        conformance.check_backend("cpu")


def test_a_worker_that_does_not_fail_is_noticed(monkeypatch):
    original = tvm_ffi.get_global_func(conformance._FAIL)
    tvm_ffi.register_global_func(conformance._FAIL, lambda x: x, override=True)
    monkeypatch.setattr(conformance, "_cases", lambda count: iter(()))
    try:
        with pytest.raises(conformance.ConformanceError, match="did not end its call"):
            conformance.check_backend("cpu")
    finally:
        tvm_ffi.register_global_func(conformance._FAIL, original, override=True)


def test_the_command_says_what_it_checked(capsys):
    assert conformance.main(["cpu", "--num-workers", "3"]) == 1
    assert "must be even and at least 4" in capsys.readouterr().err
    assert conformance.main(["missing"]) == 1
    assert "ccl='missing' is not supported" in capsys.readouterr().err


def test_a_registered_backend_is_prepared_and_checked():
    calls = []
    with pytest.raises(ValueError, match="'cpu' is a backend of distir_ext"):
        dx.register_backend(dx.Backend("cpu"), replace=True)
    dx.register_backend(dx.Backend("mine"))
    with pytest.raises(ValueError, match="there is a backend 'mine' already; replace=True"):
        dx.register_backend(dx.Backend("mine"))
    prepared = dx.Backend("mine", prepare=lambda: calls.append("prepare"))
    dx.register_backend(prepared, replace=True)
    try:
        # The native library has no collectives of this name.
        with pytest.raises(ValueError, match=r"ccl='mine' is not supported; this build has"):
            dx.Session(2, ccl="mine")
        assert calls == []
    finally:
        dx.unregister_backend("mine")
    with pytest.raises(ValueError, match="'nccl' is no backend that was registered"):
        dx.unregister_backend("nccl")
