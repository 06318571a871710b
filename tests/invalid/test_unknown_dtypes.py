"""Tensors of which the program states no dtype: R.Tensor((8, 8)) without one."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx

MESH = dx.Mesh((2,), ("tp",))


@I.ir_module
class Convolution:
    @R.function
    def main(x: R.Tensor((2, 8, 6, 6), "float32"), k: R.Tensor((8, 8, 3, 3))) -> R.Tensor(
        (2, 8, 6, 6)
    ):
        with R.dataflow():
            y = R.nn.conv2d(x, k, padding=[1, 1])
            R.output(y)
        return y


@I.ir_module
class Sum:
    @R.function
    def main(x: R.Tensor((8, 8)), y: R.Tensor((8, 8))) -> R.Tensor((8, 8)):
        z = R.add(x, y)
        return z


@tvm_ffi.register_global_func("tests.invalid.twice")
def _twice(x):
    return tvm.runtime.tensor(x.numpy() * 2)


@I.ir_module
class Doubled:
    """A packed function states the dtype of its result; its operands need none."""

    @R.function
    def main(x: R.Tensor((8, 8))) -> R.Tensor((8, 8), "float32"):
        y = R.call_pure_packed("tests.invalid.twice", x, ty_args=R.Tensor((8, 8), "float32"))
        return y


@pytest.mark.parametrize(
    ("module", "plan", "tensor", "operator"),
    [
        (Convolution, {"k": ("tp", None, None, None)}, "k", "relax.nn.conv2d"),
        (Sum, {"x": ("tp", None)}, "x", "relax.add"),
    ],
)
@pytest.mark.parametrize("compile", [dx.lower, dx.build])
def test_operator_names_the_operand_that_needs_a_dtype(compile, module, plan, tensor, operator):
    with pytest.raises(ValueError, match=rf"in `main` is computed by .*{operator}.* `{tensor}`"):
        compile(dx.annotate(module, MESH, plan))


@pytest.mark.parametrize("compile", [dx.lower, dx.build])
def test_redistribution_names_what_needs_a_dtype(compile):
    with pytest.raises(ValueError, match="`x` is redistributed, and no dtype of it is known"):
        compile(dx.annotate(Doubled, MESH, {"x": ("tp", None)}))


def test_packed_functions_take_tensors_of_unknown_dtype():
    executable = dx.build(dx.annotate(Doubled, MESH, {"x": (None, None)}))
    x = np.arange(64, dtype="float32").reshape(8, 8)
    with dx.Session(MESH) as session:
        y = session.load(executable)["main"](x)
    np.testing.assert_array_equal(y.numpy(), x + x)
