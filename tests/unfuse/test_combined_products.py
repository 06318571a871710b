"""SplitFused separates products that CombineParallelMatmul has combined."""

import pytest
import tvm
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx

TP4 = dx.Mesh(tp=4)
COLUMNS = {**dict.fromkeys("abc", (None, "tp")), **dict.fromkeys("de", ("tp",))}


@I.ir_module
class Three:
    @R.function
    def main(
        x: R.Tensor((2, 8, 32), "float32"),
        a: R.Tensor((32, 24), "float32"),
        b: R.Tensor((32, 12), "float32"),
        c: R.Tensor((32, 12), "float32"),
    ):
        with R.dataflow():
            p = R.matmul(x, a)
            q = R.matmul(x, b)
            r = R.matmul(x, c)
            R.output(p, q, r)
        return p, q, r


@I.ir_module
class Biased:
    @R.function
    def main(
        x: R.Tensor((8, 32), "float32"),
        a: R.Tensor((32, 24), "float32"),
        b: R.Tensor((32, 12), "float32"),
        d: R.Tensor((24,), "float32"),
        e: R.Tensor((12,), "float32"),
    ):
        with R.dataflow():
            p = R.nn.relu(R.add(R.matmul(x, a), d))
            q = R.nn.relu(R.add(R.matmul(x, b), e))
            R.output(p, q)
        return p, q


@I.ir_module
class UsedWhole:
    """The product is used as a whole, too."""

    @R.function
    def main(
        x: R.Tensor((8, 32), "float32"),
        a: R.Tensor((32, 24), "float32"),
        b: R.Tensor((32, 12), "float32"),
    ):
        with R.dataflow():
            w = R.concat((a, b), axis=1)
            y = R.matmul(x, w)
            s = R.split(y, [24], axis=1)
            p = s[0]
            t = R.sum(y)
            R.output(p, t)
        return p, t


@I.ir_module
class OtherWidths:
    """Splits a combined product at other widths than those of its parts."""

    @R.function
    def main(
        x: R.Tensor((8, 32), "float32"),
        a: R.Tensor((32, 24), "float32"),
        b: R.Tensor((32, 12), "float32"),
    ):
        with R.dataflow():
            w = R.concat((a, b), axis=1)
            y = R.matmul(x, w)
            s = R.split(y, [12], axis=1)
            p = s[0]
            q = s[1]
            R.output(p, q)
        return p, q


@I.ir_module
class Stated:
    """Somebody says how the combined product is sharded."""

    I.module_global_infos({"mesh": [R.device_mesh((4,), I.Range(0, 4))]})

    @R.function
    def main(
        x: R.Tensor((8, 32), "float32"),
        a: R.Tensor((32, 24), "float32"),
        b: R.Tensor((32, 12), "float32"),
    ):
        with R.dataflow():
            w = R.concat((a, b), axis=1)
            y = R.matmul(x, w)
            z = R.dist.annotate_sharding(y, "mesh[0]", "S[0]")
            s = R.split(z, [24], axis=1)
            R.output(s)
        return s


def combined(mod):
    mod = relax.transform.CombineParallelMatmul()(mod)
    assert "relax.concat" in operators(mod)
    return mod


def operators(mod):
    found = []

    def visit(expr):
        if isinstance(expr, relax.Call) and isinstance(expr.op, tvm.ir.Op):
            found.append(expr.op.name)

    relax.analysis.post_order_visit(mod["main"], visit)
    return found


def split(mod):
    return dx.transform.SplitFused()(mod)


@pytest.mark.parametrize("program", [Three, Biased])
def test_each_product_is_one_again(program):
    names = {param.name for param in program["main"].params}
    plan = {name: spec for name, spec in COLUMNS.items() if name in names}
    apart = split(dx.annotate(combined(program), TP4, plan))
    plain = dx.annotate(program, TP4, plan)
    assert sorted(operators(apart)) == sorted(operators(plain))
    assert dx.analysis.collectives(dx.lower(dx.annotate(combined(program), TP4, plan))) == []
    tvm.ir.assert_structural_equal(split(apart), apart)


@pytest.mark.parametrize("program", [UsedWhole, OtherWidths])
def test_other_splits_stay(program):
    mod = dx.annotate(program, TP4, {"x": ("tp", None)})
    assert split(mod).same_as(mod)


def test_a_stated_product_stays():
    assert split(Stated).same_as(Stated)


def test_a_report_counts_them():
    mod = dx.annotate(combined(Three), TP4, {"a": (None, "tp")})
    with dx.pass_reports() as reports:
        split(mod)
    (report,) = reports
    assert (report.name, report.done) == ("SplitFused", {"products": 1})
