"""Tests of call graphs against the contract of `src/ir/module/call_graph.h`."""

import pytest
import tvm
from tests.native.library import call
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R
from tvm.script.parser import tirx as T

Tensor = relax.TensorType((4,), "float32")


def module_of(calls):
    """Functions of one parameter that call others, one after the other."""
    names = {name: tvm.ir.GlobalVar(name) for name in calls}
    functions = {}
    for name, callees in calls.items():
        x = relax.Var("x", Tensor)
        value, bindings = x, []
        for i, callee in enumerate(callees):
            bound = relax.Var(f"y{i}", Tensor)
            bindings.append(relax.VarBinding(bound, relax.Call(names[callee], [value])))
            value = bound
        body = relax.SeqExpr([relax.BindingBlock(bindings)], value)
        functions[names[name]] = relax.Function([x], body, Tensor)
    return tvm.IRModule(functions)


# main calls a and b, both call c; d calls nothing and nothing calls it.
DIAMOND = {"main": ["b", "a", "b"], "a": ["c"], "b": ["c"], "c": [], "d": []}
# f and g call each other, g itself too; h calls f.
CIRCLE = {"f": ["g"], "g": ["g", "f"], "h": ["f"]}


@I.ir_module
class Uses:
    """A call in a branch, in a local function, of a kernel; functions as values."""

    @T.prim_func(private=True)
    def kernel(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")):
        for i in range(4):
            b[i] = a[i]

    @R.function(private=True)
    def branched(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        return x

    @R.function(private=True)
    def inner(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        return x

    @R.function(private=True)
    def argument(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        return x

    @R.function(private=True)
    def field(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        return x

    @R.function(pure=False)
    def main(x: R.Tensor((4,), "float32"), flag: R.Tensor((), "bool")):
        cls = Uses

        @R.function
        def local(z: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
            w = cls.inner(z)
            return w

        a = local(x)
        if flag:
            b = cls.branched(a)
        else:
            twice = R.add(a, a)
            b = R.add(twice, a)
        c = R.call_tir(cls.kernel, (b,), out_ty=R.Tensor((4,), "float32"))
        d = R.call_packed("apply", cls.argument, c, ty_args=R.Tensor((4,), "float32"))
        return (d, cls.field)


def entries(mod):
    """By name of a function: what it calls, what calls it, whether it is a value."""
    return {name: (calls, callers, value) for name, calls, callers, value in call("CallGraph", mod)}


def test_callees_and_callers_are_named_once_in_order():
    assert entries(module_of(DIAMOND)) == {
        "main": (("b", "a"), (), False),
        "a": (("c",), ("main",), False),
        "b": (("c",), ("main",), False),
        "c": ((), ("a", "b"), False),
        "d": ((), (), False),
    }


def test_recursive_functions_call_themselves():
    assert entries(module_of(CIRCLE)) == {
        "f": (("g",), ("g", "h"), False),
        "g": (("g", "f"), ("f", "g"), False),
        "h": (("f",), (), False),
    }


def test_calls_in_branches_and_local_functions_count():
    found = entries(Uses)
    assert sorted(found) == ["argument", "branched", "field", "inner", "main"]  # and no kernel
    assert found["main"] == (("inner", "branched"), (), False)


def test_a_function_that_is_not_called_but_used_is_a_value():
    assert [name for name, entry in entries(Uses).items() if entry[2]] == ["argument", "field"]


def test_a_function_that_a_branch_gives_or_another_name_has_is_a_value():
    mod = module_of({"chosen": [], "main": [], "renamed": []})
    chosen, main, renamed = (mod.get_global_var(name) for name in ("chosen", "main", "renamed"))
    flag = relax.Var("flag", relax.TensorType((), "bool"))
    name = relax.Var("name", renamed.ty)
    choice = relax.Var("choice", chosen.ty)
    other = relax.SeqExpr([relax.BindingBlock([relax.VarBinding(name, renamed)])], name)
    branch = relax.If(flag, relax.SeqExpr([], chosen), other)
    body = relax.SeqExpr([relax.BindingBlock([relax.VarBinding(choice, branch)])], choice)
    mod[main] = relax.Function([flag], body, chosen.ty)
    values = {name: value for name, (_, _, value) in entries(mod).items()}
    assert values == {"chosen": True, "main": False, "renamed": True}


def test_a_callee_that_the_module_lacks_is_not_in_the_graph():
    mod = module_of({"main": ["gone", "there"], "gone": [], "there": []})
    rest = tvm.IRModule({gv: f for gv, f in mod.functions.items() if gv.name_hint != "gone"})
    assert entries(rest) == {"main": (("there",), (), False), "there": ((), ("main",), False)}


@pytest.mark.parametrize("calls", [DIAMOND, CIRCLE], ids=["diamond", "circle"])
def test_every_function_comes_once_behind_what_it_calls(calls):
    order = call("CalleesFirst", module_of(calls))
    assert sorted(order) == sorted(calls)
    if calls is DIAMOND:
        assert all(order.index(g) < order.index(f) for f in calls for g in calls[f])
    else:
        assert order == ("g", "f", "h")  # f is reached first, so it comes behind g


def test_a_long_chain_of_calls_needs_no_stack():
    count = 30_000
    chain = {f"f{i:05}": [f"f{i + 1:05}"] for i in range(count)} | {f"f{count:05}": []}
    order = call("CalleesFirst", module_of(chain))
    assert order[0] == f"f{count:05}"
    assert order[-1] == "f00000"


def reached(calls, start):
    """The functions that `start` reaches by calls, itself among them."""
    found, pending = {start}, [start]
    while pending:
        for callee in calls[pending.pop()]:
            if callee not in found:
                found.add(callee)
                pending.append(callee)
    return found


@pytest.mark.parametrize("calls", [DIAMOND, CIRCLE], ids=["diamond", "circle"])
def test_what_holds_of_a_function_spreads_along_calls(calls):
    mod = module_of(calls)
    spread = call("SpreadToCallers", mod)
    for name, collected in zip(sorted(calls), spread, strict=True):
        callers = {other for other in calls if name in reached(calls, other)}
        assert set(call("WithCallees", mod, name)) == reached(calls, name)
        assert set(call("WithCallers", mod, name)) == callers
        assert set(collected) == reached(calls, name)
