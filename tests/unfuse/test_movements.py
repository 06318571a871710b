"""SplitFused turns kernels that join or split tensors into R.concat and R.split again."""

import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import distir_ext as dx

P = relax.transform


@I.ir_module
class Plain:
    @R.function
    def main(x: R.Tensor((4, 12), "float32"), y: R.Tensor(("n", 12), "float32")):
        n = T.int64()
        joined = R.concat((x, y), axis=0)
        parts = R.split(x, [4, 5], axis=1)
        return (joined, parts[0], parts[1], parts[2])


@I.ir_module
class Around:
    """Operators that are fused with a join stay kernels, in front of it and behind it."""

    @R.function
    def main(x: R.Tensor((6, 4), "float32"), y: R.Tensor((2, 4), "float32")):
        with R.dataflow():
            a = R.permute_dims(R.astype(x, "float16"))
            b = R.permute_dims(R.astype(y, "float16"))
            z = R.negative(R.concat((a, b), axis=1))
            R.output(z)
        return z


@I.ir_module
class Turned:
    """Halves of a value, which others read too, are joined in another order."""

    @R.function
    def main(x: R.Tensor((8, 3, 4), "float32"), c: R.Tensor((4,), "float32")):
        with R.dataflow():
            y = R.permute_dims(x, [1, 0, 2])
            halves = R.split(y, 2, axis=-1)
            other = R.concat((R.negative(halves[1]), halves[0]), axis=-1)
            z = R.add(R.multiply(y, c), other)
            R.output(z)
        return z


@I.ir_module
class Other:
    """Selections that are no concatenation: by another condition, of other elements."""

    @T.prim_func(private=True, s_tir=True)
    def late(
        a: T.Buffer((T.int64(4),), "float32"),
        b: T.Buffer((T.int64(4),), "float32"),
        c: T.Buffer((T.int64(8),), "float32"),
    ):
        for i in range(T.int64(8)):
            with T.sblock("late"):
                v = T.axis.spatial(T.int64(8), i)
                c[v] = T.if_then_else(T.int64(5) <= v, b[v - T.int64(4)], a[T.min(v, T.int64(3))])

    @T.prim_func(private=True, s_tir=True)
    def early(
        a: T.Buffer((T.int64(4),), "float32"),
        b: T.Buffer((T.int64(8),), "float32"),
        c: T.Buffer((T.int64(8),), "float32"),
    ):
        for i in range(T.int64(8)):
            with T.sblock("early"):
                v = T.axis.spatial(T.int64(8), i)
                c[v] = T.if_then_else(T.int64(4) <= v, b[v - T.int64(3)], a[v])

    @R.function
    def main(a: R.Tensor((4,), "float32"), b: R.Tensor((8,), "float32")):
        cls = Other
        c = R.call_tir(cls.late, (a, a), out_ty=R.Tensor((8,), "float32"))
        d = R.call_tir(cls.early, (a, b), out_ty=R.Tensor((8,), "float32"))
        return (c, d)


def lifted(mod, is_fused):
    passes = [P.LegalizeOps()]
    if is_fused:
        passes += [P.AnnotateTIROpPattern(), P.FuseOps(), P.FuseTIR()]
    mod = tvm.transform.Sequential(passes)(mod)
    first = mod["main"].params[0]
    plan = {first.name: ("tp", *[...] * (len(first.ty.shape) - 1))}
    return dx.transform.SplitFused()(dx.annotate(mod, dx.Mesh(tp=2), plan))


def calls(mod):
    """Lists the calls of main in order: operators, and the names of kernels."""
    found = []

    def visit(expr):
        if not isinstance(expr, relax.Call) or not isinstance(expr.op, tvm.ir.Op):
            return
        name = expr.op.name.removeprefix("relax.")
        if name != "dist.annotate_sharding":
            found.append(str(expr.args[0].name_hint) if name == "call_tir" else name)

    relax.analysis.post_order_visit(mod["main"], visit)
    return found


@pytest.mark.parametrize("is_fused", [False, True])
def test_joins_and_splits(is_fused):
    mod = lifted(Plain, is_fused)
    assert sorted(calls(mod)) == ["concat", "split"]
    tvm.ir.assert_structural_equal(dx.transform.SplitFused()(mod), mod)


def test_kernels_around_a_join():
    found = calls(lifted(Around, True))
    assert found.count("concat") == 1
    assert len(found) == 4  # one kernel for each operand, one behind


def test_what_others_read_is_a_kernel_of_its_own():
    found = calls(lifted(Turned, True))
    assert found.count("concat") == found.count("split") == 1
    assert len(found) == 5  # y; the negative half; the sum


def test_other_selections_stay():
    assert calls(lifted(Other, False)) == ["late", "early"]


def test_a_stated_rule_stays():
    mod = P.LegalizeOps()(Plain)
    kernels = [gv for gv in mod.get_global_vars() if gv.name_hint in ("concatenate", "split")]
    for gv in kernels:
        text = "i j, k j -> l j" if gv.name_hint == "concatenate" else "i j -> i k, i l, i m"
        mod.update_func(gv, mod[gv].with_attr("distir.rule", text))
    assert sorted(calls(lifted(mod, False))) == ["concatenate", "split"]


def test_a_report_counts_them():
    with dx.pass_reports() as reports:
        lifted(Plain, False)
    (report,) = (each for each in reports if each.name == "SplitFused")
    assert report.done == {"movements": 2}
