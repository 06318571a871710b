"""OutlineRepeats: layers become calls of one function, and compute the same."""

import random

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R
from tvm.script.parser import tirx as T

import distir_ext as dx


def outline(mod, min_operators=2):
    outlined = dx.transform.OutlineRepeats(min_operators)(mod)
    relax.analysis.well_formed(outlined)
    text = outlined.script(show_meta=True)
    tvm.ir.assert_structural_equal(tvm.script.from_source(text), outlined)
    return outlined


def layers_of(mod):
    """By outlined function, how often it is called."""
    calls = {}
    for function in mod.functions.values():
        for block in function.body.blocks:
            for binding in block.bindings:
                callee = getattr(getattr(binding, "value", None), "op", None)
                if isinstance(callee, tvm.ir.GlobalVar):
                    calls[callee.name_hint] = calls.get(callee.name_hint, 0) + 1
    return calls


@I.ir_module
class Layers:
    @R.function
    def main(
        x: R.Tensor((4, 8), "float32"),
        l_0_w: R.Tensor((8, 8), "float32"),
        l_1_w: R.Tensor((8, 8), "float32"),
        l_2_w: R.Tensor((8, 8), "float32"),
    ) -> R.Tensor((4, 8), "float32"):
        R.func_attr({"num_input": 1})
        with R.dataflow():
            start = R.exp(x)
            a = R.matmul(start, l_0_w)
            b = R.nn.relu(a)
            c = R.matmul(b, l_1_w)
            d = R.nn.relu(c)
            e = R.matmul(d, l_2_w)
            f = R.nn.relu(e)
            y = R.negative(f)
            R.output(y)
        return y


@I.ir_module
class Outlined:
    @R.function(private=True)
    def layer(start: R.Tensor((4, 8), "float32"), l_w: R.Tensor((8, 8), "float32")) -> R.Tensor(
        (4, 8), "float32"
    ):
        with R.dataflow():
            a = R.matmul(start, l_w)
            b = R.nn.relu(a)
            R.output(b)
        return b

    @R.function
    def main(
        x: R.Tensor((4, 8), "float32"),
        l_0_w: R.Tensor((8, 8), "float32"),
        l_1_w: R.Tensor((8, 8), "float32"),
        l_2_w: R.Tensor((8, 8), "float32"),
    ) -> R.Tensor((4, 8), "float32"):
        R.func_attr({"num_input": 1})
        cls = Outlined
        with R.dataflow():
            start = R.exp(x)
            b: R.Tensor((4, 8), "float32") = cls.layer(start, l_0_w)
            d: R.Tensor((4, 8), "float32") = cls.layer(b, l_1_w)
            f: R.Tensor((4, 8), "float32") = cls.layer(d, l_2_w)
            y = R.negative(f)
            R.output(y)
        return y


def test_layers_become_calls():
    outlined = outline(Layers)
    tvm.ir.assert_structural_equal(outlined, Outlined)
    layer = outlined["layer"]
    assert [param.name for param in layer.params] == ["start", "l_w"]


def test_what_is_outlined_stays_and_what_is_short_stays():
    outlined = outline(Layers)
    assert outline(outlined).same_as(outlined)
    assert outline(Layers, 3).same_as(Layers)
    with pytest.raises(ValueError, match="min_operators is 0"):
        dx.transform.OutlineRepeats(0)


@I.ir_module
class Caches:
    """Each layer gives a cache besides; all of them are results. Sizes are symbolic."""

    @R.function
    def main(
        x: R.Tensor(("n", 8), "float32"),
        w0: R.Tensor((8, 8), "float32"),
        w1: R.Tensor((8, 8), "float32"),
    ):
        n = T.int64()
        with R.dataflow():
            k0 = R.matmul(x, w0)
            h0 = R.reshape(k0, R.shape([n * 8]))
            y0 = R.reshape(h0, R.shape([n, 8]))
            k1 = R.matmul(y0, w1)
            h1 = R.reshape(k1, R.shape([n * 8]))
            y1 = R.reshape(h1, R.shape([n, 8]))
            out = (y1, k0, k1)
            R.output(out)
        return out


def run(mod, *values):
    vm = relax.VirtualMachine(relax.build(mod, "llvm"), tvm.cpu())
    result = vm["main"](*(tvm.runtime.tensor(each) for each in values))
    return [each.numpy() for each in result] if not hasattr(result, "numpy") else [result.numpy()]


def assert_same_numbers(mod, outlined, *values):
    for got, wanted in zip(run(outlined, *values), run(mod, *values), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_several_values_of_symbolic_sizes():
    outlined = outline(Caches)
    assert layers_of(outlined) == {"layer": 2}
    assert [param.name for param in outlined["layer"].params] == ["x", "w"]
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(shape).astype("float32") for shape in ((3, 8), (8, 8), (8, 8))]
    assert_same_numbers(Caches, outlined, *values)


@I.ir_module
class SizeInNoInput:
    @R.function
    def main(x: R.Tensor((4,), "float32"), s: R.Shape(["n"])) -> R.Tensor(("n",), "float32"):
        n = T.int64()
        with R.dataflow():
            a = R.sum(x)
            b = R.broadcast_to(a, R.shape([n]))
            c = R.sum(b)
            d = R.broadcast_to(c, R.shape([n]))
            e = R.sum(d)
            f = R.broadcast_to(e, R.shape([n]))
            R.output(f)
        return f


def test_a_size_that_no_input_states_is_handed_over():
    outlined = outline(SizeInNoInput)
    assert layers_of(outlined) == {"layer": 2}  # the first sum is of another size
    assert outlined["layer"].params[-1].name == "sizes"


def stack(constants, weights=None):
    """relu(x * c + s) for each constant; the scale s is the same."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 8), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            value = x
            for constant in constants:
                value = builder.emit(relax.op.multiply(value, relax.const(constant)))
                value = builder.emit(relax.op.add(value, relax.const(0.5, "float32")))
                value = builder.emit(relax.op.nn.relu(value))
            value = builder.emit_output(value)
        builder.emit_func_output(value)
    return builder.get()


def test_constants_that_differ_become_arguments():
    rng = np.random.default_rng(0)
    constants = [rng.standard_normal((4, 8)).astype("float32") for _ in range(3)]
    mod = stack(constants)
    outlined = outline(mod, 3)
    assert layers_of(outlined) == {"layer": 3}
    assert [param.name for param in outlined["layer"].params] == ["x", "constant"]
    assert_same_numbers(mod, outlined, rng.standard_normal((4, 8)).astype("float32"))
    same = outline(stack([constants[0]] * 3), 3)
    assert [param.name for param in same["layer"].params] == ["x"]


@I.ir_module
class OneValueTwice:
    """In the first layer both operands are x; in the others they are not."""

    @R.function
    def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        with R.dataflow():
            a = R.add(x, x)
            b = R.exp(a)
            c = R.add(b, x)
            d = R.exp(c)
            R.output(d)
        return d


def test_operands_that_are_one_value_only_in_one_layer():
    outlined = outline(OneValueTwice)
    assert len(outlined["layer"].params) == 2
    assert_same_numbers(OneValueTwice, outlined, np.full(4, 0.1, "float32"))


@I.ir_module
class OtherSource:
    """The sum takes the product of its own layer in one, and one of another layer in the other."""

    @R.function
    def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        with R.dataflow():
            a = R.multiply(x, x)
            b = R.exp(a)
            c = R.add(b, a)
            d = R.multiply(c, c)
            e = R.exp(d)
            f = R.add(e, a)
            R.output(f)
        return f


def test_layers_that_are_wired_differently_stay():
    assert layers_of(outline(OtherSource, 3)) == {}


@I.ir_module
class Effects:
    @R.function(pure=False)
    def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        a = R.exp(x)
        _0: R.Tensor((4,), "float32") = R.call_packed("f", a, ty_args=R.Tensor((4,), "float32"))
        b = R.exp(_0)
        _1: R.Tensor((4,), "float32") = R.call_packed("f", b, ty_args=R.Tensor((4,), "float32"))
        return _1


def test_calls_with_effects_stay():
    assert outline(Effects).same_as(Effects)


def random_program(rng):
    """Some operators, then a stack of equal layers, again and again; layers may use anything."""
    builder = relax.BlockBuilder()
    binary = [relax.op.add, relax.op.multiply, relax.op.maximum, relax.op.subtract]
    unary = [relax.op.tanh, relax.op.sin, relax.op.negative, relax.op.abs]
    params = [relax.Var(f"p{i}", relax.TensorType((3, 5), "float32")) for i in range(8)]
    with builder.function("main", params):
        with builder.dataflow():
            seen = list(params)
            for _ in range(rng.randint(1, 3)):
                for _ in range(rng.randint(0, 3)):
                    seen.append(builder.emit(rng.choice(unary)(rng.choice(seen))))
                length, far = rng.randint(2, 7), rng.choice(seen)
                recipe = [
                    (rng.choice(binary + unary), rng.random(), rng.random()) for _ in range(length)
                ]
                carried = seen[-1]
                for _ in range(rng.randint(2, 5)):
                    own = [carried, far, rng.choice(params)]
                    for op, first, second in recipe:
                        operands = [own[int(first * len(own))], own[int(second * len(own))]]
                        own.append(builder.emit(op(*operands[: 2 if op in binary else 1])))
                    carried = own[-1]
                    seen.append(rng.choice(own))
                seen.append(carried)
            result = builder.emit_output(relax.Tuple(seen[-3:]))
        builder.emit_func_output(result)
    return builder.get()


@pytest.mark.parametrize("seed", range(12))
def test_random_programs_compute_the_same(seed):
    rng = random.Random(seed)
    mod = random_program(rng)
    outlined = outline(mod)
    values = [np.random.default_rng(i).standard_normal((3, 5)).astype("float32") for i in range(8)]
    assert_same_numbers(mod, outlined, *values)


def test_random_programs_are_outlined_at_all():
    outlined = [layers_of(outline(random_program(random.Random(seed)))) for seed in range(12)]
    assert sum(bool(calls) for calls in outlined) >= 8
