"""Functions that a user's pass has left broken: the next pass of ours says so, and how."""

import pytest
import tvm
from tests.meshes import meshes
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx


@I.ir_module
class Good:
    I.module_global_infos(meshes((2,)))

    @R.function(private=True)
    def block(x: R.Tensor((8, 8), "float32")) -> R.Tensor((8, 8), "float32"):
        y = R.exp(x)
        return y

    @R.function
    def main(x: R.Tensor((8, 8), "float32"), c: R.Tensor((), "bool")):
        cls = Good
        x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
        if c:
            a = R.exp(x0)
            d = R.exp(a)
        else:
            d = R.negative(x0)
        with R.dataflow():
            y = cls.block(d)
            z = R.exp(y)
            R.output(z)
        return z


TENSOR = relax.TensorType((8, 8), "float32")


def typed(expr):
    """An expression with the type of the program's tensors."""
    relax.expr._update_type(expr, TENSOR)
    return expr


def ending_with(value, mod=Good):
    """The program with one more binding, `last`, which it returns."""
    main = mod["main"]
    last = relax.Var("last", TENSOR)
    block = relax.BindingBlock([relax.VarBinding(last, value(main))])
    body = relax.SeqExpr([*main.body.blocks, block], last)
    relax.expr._update_type(body, TENSOR)
    result = mod.clone()
    function = relax.Function(main.params, body, TENSOR, main.is_pure, main.attrs)
    result.update_func(mod.get_global_var("main"), function)
    return result


def result_of(main):
    return main.body.body


def inside_of_dataflow(main):
    return main.body.blocks[1].bindings[0].var


def inside_of_branch(main):
    branch = main.body.blocks[0].bindings[1].value
    return branch.true_branch.blocks[0].bindings[0].var


def exp(x):
    return typed(tvm.ir.Call(tvm.ir.Op.get("relax.exp"), [x]))


CASES = {
    "an undefined variable": (
        lambda _: exp(relax.Var("old", TENSOR)),
        r"`last` in `main` uses `old`, which is not defined there",
    ),
    "a variable of a dataflow block": (
        lambda main: exp(inside_of_dataflow(main)),
        r"`last` in `main` uses `y`, which is not defined there",
    ),
    "a variable of a branch": (
        lambda main: exp(inside_of_branch(main)),
        r"`last` in `main` uses `a`, which is not defined there",
    ),
    "a call without a type": (
        lambda main: tvm.ir.Call(tvm.ir.Op.get("relax.exp"), [result_of(main)]),
        r"`last` in `main` has no type",
    ),
    "too few arguments": (
        lambda _: typed(tvm.ir.Call(Good.get_global_var("block"), [])),
        r"`last` in `main` calls `block` with 0 arguments, and it has 1 parameters",
    ),
    "a function of another module": (
        lambda main: typed(tvm.ir.Call(tvm.ir.GlobalVar("block"), [result_of(main)])),
        r"`last` in `main` calls `block`, which is no function of the module",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_broken_function_is_named(case):
    value, message = CASES[case]
    with pytest.raises(ValueError, match="PropagateSharding: " + message):
        dx.transform.PropagateSharding()(ending_with(value))


def test_variable_that_is_bound_twice_is_named():
    main = Good["main"]
    again = relax.BindingBlock([relax.VarBinding(result_of(main), exp(main.params[0]))])
    body = relax.SeqExpr([*main.body.blocks, again], result_of(main))
    mod = Good.clone()
    function = relax.Function(main.params, body, TENSOR, main.is_pure, main.attrs)
    mod.update_func(Good.get_global_var("main"), function)
    with pytest.raises(ValueError, match="PropagateSharding: `z` in `main` is bound twice"):
        dx.transform.PropagateSharding()(mod)


def test_pass_of_tvm_on_dtensors_is_told_where_to_run():
    propagated = dx.transform.PropagateSharding()(Good)
    main = propagated["main"]
    mod = ending_with(lambda _: exp(relax.Var("z", main.ret_ty)), propagated)
    message = r"LegalizeRedistribute: `last` in `main` uses `z`.*before PropagateSharding or after"
    with pytest.raises(ValueError, match=message):
        dx.transform.LegalizeRedistribute()(mod)


def test_effects_in_a_dataflow_block_are_refused():
    called = dx.transform.LowerCCL()(dx.lower(Good))
    dx.build(relax.transform.CallTIRRewrite()(relax.transform.ToNonDataflow()(called)))
    inside = relax.transform.CallTIRRewrite()(relax.transform.LegalizeOps()(called))
    with pytest.raises(ValueError, match=r"LowerCCL: .* in `main` calls .* in a dataflow block"):
        dx.build(inside)


KERNELS = relax.transform.ToNonDataflow()(relax.transform.LegalizeOps()(Good))


@pytest.mark.parametrize(
    ("lowering", "message"),
    [
        (relax.transform.CallTIRRewrite(), r"calls the kernel `.*` with its result as an argument"),
        (relax.transform.VMShapeLower(), r"calls vm.builtin.* needs sizes in types"),
    ],
    ids=["CallTIRRewrite", "VMShapeLower"],
)
def test_what_is_lowered_too_early_is_refused(lowering, message):
    with pytest.raises(ValueError, match=message):
        dx.transform.PropagateSharding()(lowering(KERNELS))


def test_parameter_that_is_a_function_is_refused():
    lazy = relax.transform.LazySetOutput()(Good)
    with pytest.raises(ValueError, match="parameter `fset_output` of `main` is a function"):
        dx.transform.PropagateSharding()(lazy)


def test_call_within_a_call_is_refused():
    nested = ending_with(lambda main: exp(exp(result_of(main))))
    with pytest.raises(ValueError, match=r"`main` has a call within .* run relax.transform.Normal"):
        dx.transform.PropagateSharding()(nested)
    assert dx.lower(relax.transform.Normalize()(nested))
    propagated = dx.transform.PropagateSharding()(Good)
    ty = propagated["main"].ret_ty

    def twice(main):
        inner = tvm.ir.Call(tvm.ir.Op.get("relax.exp"), [result_of(main)])
        relax.expr._update_type(inner, ty)
        return exp(inner)

    with pytest.raises(ValueError, match=r"PadShards: `last` in `main` has a call within"):
        dx.transform.PadShards()(ending_with(twice, propagated))


def test_values_that_end_early_are_refused():
    killed = relax.transform.KillAfterLastUse()(Good)
    with pytest.raises(ValueError, match=r"kill_tensor in `.*` ends the life of"):
        dx.transform.PropagateSharding()(killed)
