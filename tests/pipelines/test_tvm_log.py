"""TVM's warnings during compilation reach the logger that asks for them, and no other output."""

import logging

import numpy as np
import pytest
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx
from distir_ext.native import tvm_log


@I.ir_module
class Lookup:
    @R.function
    def main(table: R.Tensor((64, 512), "float32"), places: R.Tensor((8,), "int32")) -> R.Tensor(
        (8,), "float32"
    ):
        with R.dataflow():
            found = R.take(table, places, axis=0, mode="fast")
            total = R.sum(found, axis=[1])
            R.output(total)
        return total


@pytest.fixture
def annotated():
    return dx.annotate(Lookup, dx.Mesh((2,), ("x",)), {"places": ("x",)})


@pytest.mark.parametrize("target", ["llvm", "cuda", {"kind": "cuda", "arch": "sm_90"}])
def test_a_build_prints_nothing(annotated, target, capfd, caplog):
    with caplog.at_level(logging.WARNING):
        dx.build(annotated, target)
    assert capfd.readouterr() == ("", "")
    assert caplog.messages == []


def test_an_estimate_prints_nothing(annotated, capfd, caplog):
    with caplog.at_level(logging.WARNING):
        dx.analysis.estimate(annotated, dx.Cluster.preset("H100"))
        dx.analysis.simulate(annotated, dx.Cluster.preset("H100"))
    assert capfd.readouterr() == ("", "")
    assert caplog.messages == []


def test_who_asks_sees_what_tvm_says(caplog):
    places = relax.const(np.array([1, 7, 2, 5, 0, 3, 6, 4], "int32"))  # no slices
    mod = dx.annotate(looked_up(places), dx.Mesh((2,), ("x",)), {"table": (None, "x")})
    with caplog.at_level(logging.INFO, "distir_ext"):
        dx.build(mod)
    said = [each.getMessage() for each in caplog.records if each.name == "distir_ext.tvm"]
    assert [text.startswith("TVM: Fast mode segfaults when") for text in said] == [True]


def looked_up(places):
    builder = relax.BlockBuilder()
    table = relax.Var("table", relax.TensorType((8, 2), "float32"))
    params = [table, places] if isinstance(places, relax.Var) else [table]
    with builder.function("main", params):
        builder.emit_func_output(builder.emit(relax.op.take(table, places, axis=0, mode="fast")))
    return builder.get()


def legalized_by_tvm():
    places = relax.Var("places", relax.TensorType((3,), "int32"))
    return relax.transform.LegalizeOps()(looked_up(places))


def test_warnings_of_others_are_none_of_its_business(capfd):
    legalized_by_tvm()
    assert "Fast mode segfaults" in capfd.readouterr().err
    with tvm_log.captured(), tvm_log.captured():
        legalized_by_tvm()
    assert capfd.readouterr().err == ""
    legalized_by_tvm()
    assert "Fast mode segfaults" in capfd.readouterr().err


def test_an_unknown_warning_is_one_of_pythons(monkeypatch, caplog, capfd):
    monkeypatch.setattr(tvm_log, "_NOISE", ())
    with tvm_log.captured():
        legalized_by_tvm()
    assert [each.levelname for each in caplog.records] == ["WARNING"]


def test_an_error_leaves_the_stream_as_it_was(capfd):
    with pytest.raises(ValueError, match="no sharding annotations"):
        dx.build(Lookup)
    legalized_by_tvm()
    assert "Fast mode segfaults" in capfd.readouterr().err
