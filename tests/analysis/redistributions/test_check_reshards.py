"""Modules are not lowered if they redistribute what nobody asked to be redistributed."""

import logging
import warnings

import pytest
import tvm
from tests.analysis.models import MESH, MODELS
from tests.analysis.programs import function, megatron
from tvm.relax import op

import distir_ext as dx
from distir_ext.pipelines.lowering import run_apart
from distir_ext.reshards import suggestions


def gated():
    case = MODELS["mlp"]()
    return case.annotated(case.plans["mixed"])


def messages(mod, **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dx.lower(mod, **options)
    return [str(each.message) for each in caught]


def error_of(run):
    with pytest.raises(ValueError, match="nobody asked for") as caught:
        run()
    return str(caught.value)


def test_an_error_has_the_redistribution_its_cause_and_what_to_state():
    text = error_of(lambda: dx.lower(gated(), reshards="error"))
    first, second, *rest = text.splitlines()
    assert first == "nobody asked for 1 redistribution, but two sides disagree:"
    assert second == (
        "lv5: ('dp', None), partial sum over 'tp' -> (None, 'dp') for relax.multiply: 1 x "
        "reduce_scatter, exchange, 1.79 kB per device, 27.1 us in `main`"
    )
    assert any("stated by an annotation or a type of `x` in `main`" in line for line in rest)
    assert any(line.startswith("    instead, state {'gate': ('dp', None)}") for line in rest)


def test_lower_build_and_the_pass_say_the_same():
    mod = gated()
    text = error_of(lambda: dx.lower(mod, reshards="error"))
    assert error_of(lambda: dx.build(mod, reshards="error")) == text
    assert error_of(lambda: dx.analysis.CheckReshards()(mod)) == text
    assert error_of(lambda: dx.lower(mod, reshards="error", until="propagated")) == text
    assert messages(mod, reshards="warn") == [text]
    assert messages(mod) == []


def test_the_pass_runs_among_others():
    passes = [
        dx.transform.PropagateSharding(),
        dx.analysis.CheckReshards("error"),
        dx.transform.LowerDistIR(),
    ]
    assert "nobody asked for 1 redistribution" in error_of(
        lambda: tvm.transform.Sequential(passes)(gated())
    )
    good = megatron()
    lowered = tvm.transform.Sequential(passes)(good)
    assert dx.phase(lowered) == "lowered"


def test_what_is_cheap_is_let_through():
    mod = gated()
    assert messages(mod, reshards="warn", reshards_above=1791)
    assert messages(mod, reshards="warn", reshards_above=1792) == []
    (told,) = messages(mod, reshards="warn", reshards_above=1791)
    assert "of more than 1.79 kB per device" in told


def test_a_lowered_program_is_the_same_with_and_without_the_check():
    mod = megatron()
    tvm.ir.assert_structural_equal(dx.lower(mod, reshards="error"), dx.lower(mod))


def test_only_the_most_expensive_are_described():
    case = MODELS["llama"]()
    mod = case.annotated(case.plans["mixed"])
    text = error_of(lambda: dx.lower(mod, reshards="error"))
    assert text.splitlines()[0] == "nobody asked for 7 redistributions, but two sides disagree:"
    assert text.count(" -> ") == 3
    assert "1 of these lines left out" in text


def test_instruments_see_no_trials():
    @tvm.instrument.pass_instrument
    class Count:
        def __init__(self):
            self.names = []

        def run_before_pass(self, _, info):
            self.names.append(info.name)

    count = Count()
    x = {"x": (32, 32), "other": (32, 32)}
    mod = function(x, lambda emit, x, other: op.add(emit(op.cumsum(x, axis=0)), other))
    mod = dx.annotate(mod, MESH, {"x": ("dp", None), "other": (None, "dp")})
    with tvm.transform.PassContext(instruments=[count]):
        dx.lower(mod, reshards="warn", reshards_above=1e9)
    assert count.names.count("PropagateSharding") == 1


def test_trials_add_no_messages(monkeypatch):
    said = []
    logger = logging.getLogger("distir_ext")
    monkeypatch.setattr(logger, "handle", lambda record: logger.filter(record) and said.append(1))

    def speaking(mod, cluster):
        logger.warning("a trial")
        return run_apart(mod, cluster)

    monkeypatch.setattr(suggestions, "run_apart", speaking)
    (entry,) = dx.analysis.reshards(gated()).reshards
    assert entry.suggestion is not None
    assert said == []


def test_bad_policies():
    mod = megatron()
    with pytest.raises(ValueError, match="did you mean 'error'"):
        dx.lower(mod, reshards="errors")
    with pytest.raises(ValueError, match="reshards=None is none of"):
        dx.build(mod, reshards=None)
    with pytest.raises(ValueError, match="number of bytes, not -1"):
        dx.lower(mod, reshards="warn", reshards_above=-1)
    with pytest.raises(ValueError, match="number of bytes, not nan"):
        dx.analysis.CheckReshards(reshards_above=float("nan"))
