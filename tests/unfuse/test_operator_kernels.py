"""SplitFused turns LegalizeOps' kernels of softmax, norms and lookups into operators again."""

import pytest
import tvm
from tests.unfuse import norms
from tests.unfuse.layer import FUSED
from tests.unfuse.test_movements import calls
from tvm import relax

import distir_ext as dx

P = relax.transform
TYPES = {"float32": norms.OPERATORS, "float16": norms.OPERATORS, "float64": ("softmax", "std")}


def split(mod, passes=()):
    """The module after passes, annotated and split."""
    mod = tvm.transform.Sequential([make() for make in passes])(mod)
    dims = (None,) * (len(mod["main"].params[0].ty.shape) - 1)
    return dx.transform.SplitFused()(dx.annotate(mod, dx.Mesh(tp=2), {"x": (*dims, "tp")}))


def split_rows(mod):
    mod = tvm.transform.Sequential([make() for make in FUSED])(mod)
    return dx.transform.SplitFused()(dx.annotate(mod, dx.Mesh(tp=2), {"table": ("tp", None)}))


@pytest.mark.parametrize("dtype", TYPES)
def test_the_operator_with_its_attributes(dtype):
    for name in TYPES[dtype]:
        mod = norms.one(name, dtype)
        got = split(mod, [P.LegalizeOps])["main"]
        tvm.ir.assert_structural_equal(got, split(mod)["main"], map_free_vars=True)


@pytest.mark.parametrize("rows", [12, "n"])
def test_between_other_operators(rows):
    """FuseTIR has put one behind the operator into its kernel."""
    for name in norms.OPERATORS:
        size = tvm.tirx.Var(rows, "int64") if isinstance(rows, str) else rows
        found = calls(split(norms.one(name, "float32", size, is_within=True), FUSED))
        assert len(found) == 3
        assert found[1].removeprefix("nn.") == name.split(" ")[0]


@pytest.mark.parametrize("name", norms.NEARLY)
def test_what_is_nearly_the_operator_stays(name):
    assert calls(split(norms.nearly(name))) == [norms.NEARLY[name][0]]
    assert "nn." in calls(split(norms.nearly(name, is_exact=True)))[0]


@pytest.mark.parametrize("mode", ["fast", "clip", "wrap"])
def test_a_lookup(mode):
    assert calls(split_rows(norms.lookup(mode))) == ["take", "multiply"]


def test_a_lookup_in_what_the_kernel_makes_stays():
    assert calls(split_rows(norms.Squares)) == ["kernel"]


def test_a_stated_rule_stays():
    mod = P.LegalizeOps()(norms.one("softmax"))
    (kernel,) = (var for var in mod.get_global_vars() if var.name_hint == "softmax")
    mod.update_func(kernel, mod[kernel].with_attr("distir.rule", "i j k -> i j k"))
    assert calls(split(mod)) == ["softmax"]


def test_a_report_counts_them():
    with dx.pass_reports() as reports:
        split(norms.all_norms(), FUSED)
    (report,) = (each for each in reports if each.name == "SplitFused")
    assert report.done["operators"] == 5
