"""Rules that users state: resulting programs, and errors."""

from __future__ import annotations

import pytest
import tvm
from tests.rules.stated import MESH, AnyRows, FixedRows, call_of, kinds, placement_of, propagated
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R
from tvm.script.parser import tirx as T

import distir_ext as dx

PROJECTION = call_of("tests.projection", (4, 3, 8), (8, 6), out=((4, 3, 6),))


def test_without_a_rule_it_is_computed_on_copies():
    assert placement_of(propagated(PROJECTION, x0=("a", None, "b"))) == "R, R"
    assert "all_reduce" not in kinds(dx.annotate(PROJECTION, MESH, {"x0": ("a", None, "b")}))


def test_text_after_propagation_parses_back(rules):
    rules("tests.projection", "b s h, h o -> b s o", reduce={"h": "sum"})
    mod = propagated(PROJECTION, x0=("a", None, "b"))
    parsed = tvm.script.from_source(mod.script())
    tvm.ir.assert_structural_equal(parsed, mod)
    assert kinds(parsed) == kinds(mod) == ["all_reduce"]


def test_registered_text_registers_the_same_again(rules):
    rules("tests.f", "b (h d) -> b h d", sizes={"d": 4})
    texts = dx.registered_rules()
    for name, text in texts.items():
        rules(name, text)
    assert dx.registered_rules() == texts == {"tests.f": "b (h d) -> b h d; d=4"}


def test_an_operator_takes_the_users_rule_until_it_is_unregistered(rules):
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((8, 6), "float32")):
            return R.nn.relu(x)

    assert placement_of(propagated(Module, x=("a", "b"))) == "S[0], S[1]"
    rules("relax.nn.relu", "n _ -> n _")
    # Columns that are needed whole move to the rows.
    assert placement_of(propagated(Module, x=("a", "b"))) == "S[0], S[0]"
    assert dx.unregister_rule("relax.nn.relu")
    assert not dx.unregister_rule("relax.nn.relu")
    assert placement_of(propagated(Module, x=("a", "b"))) == "S[0], S[1]"


def test_a_merged_dimension_is_sharded_along_its_major_factor(rules):
    rules("tests.split", "b (h d) -> b h d", sizes={"d": 3})
    mod = call_of("tests.split", (8, 12), out=((8, 4, 3),))
    assert placement_of(propagated(mod, x0=("a", "b"))) == "S[0], S[1]"


def test_names_of_one_side_only_are_kept_whole(rules):
    rules("tests.expand", "n k -> n m")
    mod = call_of("tests.expand", (8, 4), out=((8, 6),))
    assert placement_of(propagated(mod, x0=("a", "b"))) == "S[0], R"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("b s", "`->` expected behind the operands"),
        ("b, -> b", r"a tensor is missing; write `\(\)`"),
        ("b b -> b", "`b` stands twice in operand 0"),
        ("b -> b (c b)", "`b` stands twice in result 0"),
        ("b + c -> b", r"`\+` is not expected"),
        ("(b c -> b", r"`\)` expected behind the names of a dimension"),
        ("b h -> b; total h", "`total` is neither a reduction"),
        ("b h -> b h; sum h", "`h` is reduced but a dimension of a result"),
        ("b h -> b; sum k", "`k` is no dimension of any tensor"),
        ("b h k -> b; sum h; max k", "all reductions of a rule must be of one kind"),
        ("b h -> b, b; sum h", "a rule with a reduction has one result"),
        ("b h -> b; h=0", "`h=` needs a positive integer"),
        ("b h -> b; sum", "`sum` needs the names of dimensions"),
        ("b -> b c d -> e", "`->` is not expected here"),
    ],
)
def test_a_malformed_rule_is_refused(text, message):
    with pytest.raises(ValueError, match=rf'^rule ".*" of my\.f: {message}'):
        dx.register_rule("my.f", text)
    assert "my.f" not in dx.registered_rules()


def test_a_rule_is_not_replaced_in_silence():
    try:
        dx.register_rule("my.f", "b h -> b; sum h")
        dx.register_rule("my.f", "b h -> b", reduce={"h": "sum"})
        with pytest.raises(ValueError, match=r"of my\.f already, .b h -> b; sum h.; replace="):
            dx.register_rule("my.f", "b h -> b _")
        assert dx.registered_rules()["my.f"] == "b h -> b; sum h"
        dx.register_rule("my.f", "b h -> b _", replace=True)
        assert dx.registered_rules()["my.f"] == "b h -> b _"
    finally:
        dx.unregister_rule("my.f")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("b h -> b h", "it has 1 operand, the call 2"),
        ("b h, h o -> b o, b", "it has 2 results, the call 1"),
        ("b h, h -> b h", "operand 1 has 1 dimension there, but 2 in the call"),
        (
            "b h, b o -> b o",
            "`b` is 8 by dimension 0 of operand 0 and 4 by dimension 0 of operand 1",
        ),
        (
            "b h, h o -> b h",
            "`h` is 4 by dimension 0 of operand 1 and 6 by dimension 1 of result 0",
        ),
        ("b h, h o -> b o; b=4", "`b` is 4 by its clause and 8 by dimension 0 of operand 0"),
        ("(b c) h, h o -> _ o", "the size of `b` in dimension 0 of operand 0 is not known"),
        (
            "(b c) h, h o -> _ o; b=3; c=2",
            r"dimension 0 of operand 0 is 8, which is not `b` \(3\) times `c` \(2\)",
        ),
    ],
)
def test_a_rule_that_contradicts_the_call_is_refused(rules, text, message):
    rules("tests.g", text)
    mod = call_of("tests.g", (8, 4), (4, 6), out=((8, 6),))
    with pytest.raises(ValueError, match=rf'^rule ".*" of tests\.g: {message}'):
        propagated(mod, x0=("a", None))


# ---- kernels


@I.ir_module(s_tir=True)
class Square:
    @T.prim_func(private=True, s_tir=True)
    def double(A: T.Buffer((8, 8), "float32"), C: T.Buffer((8, 8), "float32")):
        for i, j in T.grid(8, 8):
            with T.sblock("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = A[vi, vj] * T.float32(2)

    @R.function
    def main(x: R.Tensor((8, 8), "float32")):
        cls = Square
        y = R.call_tir(cls.double, (x,), out_ty=R.Tensor((8, 8), "float32"))
        return y


def with_rule(mod, text):
    """The module with another rule stated on its kernel."""
    functions = {
        gv: f.with_attr("distir.rule", text) if isinstance(f, tvm.tirx.PrimFunc) else f
        for gv, f in mod.functions.items()
    }
    return tvm.IRModule(functions)


def test_without_a_stated_rule_the_same_kernels_are_replicated():
    for mod in (AnyRows, FixedRows):
        functions = {
            gv: f.without_attr("distir.rule") if isinstance(f, tvm.tirx.PrimFunc) else f
            for gv, f in mod.functions.items()
        }
        plain = propagated(tvm.IRModule(functions), x=("a", None))
        assert placement_of(plain) == "R, R"


@pytest.mark.parametrize(
    ("mod", "text", "message"),
    [
        (
            AnyRows,
            "n k -> n",
            "kernel `prefix`: result 0 has 1 dimension there, but 2 in the call",
        ),
        (AnyRows, "n k => n k", "of kernel `prefix`: `>` is not expected"),
    ],
)
def test_a_stated_rule_that_does_not_fit_is_refused(mod, text, message):
    with pytest.raises(ValueError, match=message):
        propagated(with_rule(mod, text), x=("a", None))


def test_a_kernel_of_fixed_size_that_cannot_be_cut_is_refused():
    mod = with_rule(AnyRows, "n k -> n k")
    with pytest.raises(ValueError, match="dimension 1 of `A` is in 2 parts, its size is fixed"):
        dx.lower(dx.annotate(mod, MESH, {"x": (None, "a")}))


def test_a_stated_rule_against_the_index_maps_is_refused():
    mod = with_rule(Square, "n k -> k n")
    with pytest.raises(ValueError, match=r"`double` by its rule .* dimension 0 of `C` is whole"):
        dx.lower(dx.annotate(mod, MESH, {"x": ("a", None)}))
