"""Public functions without annotations, beside functions that have some."""

import numpy as np
import pytest
from tests.meshes import meshes
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx


@I.ir_module
class Beside:
    """`main` is replicated, with what it calls; `other` is sharded."""

    I.module_global_infos(meshes((3,)))

    @R.function
    def other(x: R.Tensor((9, 2), "float32")):
        x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
        y = R.exp(x0)
        return y

    @R.function(private=True)
    def block(x: R.Tensor(("n", 5), "float32"), w: R.Tensor((5,), "float32")):
        y = R.multiply(x, w)
        return y

    @R.function
    def main(x: R.Tensor(("n", 5), "float32"), w: R.Tensor((5,), "float32")):
        R.func_attr({"num_input": 1})
        cls = Beside
        y = R.negative(x)
        z = cls.block(y, w)
        return (y, (z, x))


@I.ir_module
class Dead:
    """Annotations where no public function sees them."""

    I.module_global_infos(meshes((2,)))

    @R.function(private=True)
    def unused(x: R.Tensor((8, 8), "float32")):
        x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
        y = R.exp(x0)
        return y

    @R.function
    def main(x: R.Tensor((8, 8), "float32")):
        y = R.exp(x)
        return y


def test_function_without_annotations_runs_on_every_device():
    x, w = np.random.default_rng(0).random((7, 5), "float32"), np.arange(5, dtype="float32")
    with dx.Session(3) as session:
        model = session.load(dx.build(Beside), params={"w": w})
        assert sorted(model) == ["main", "other"]
        y, (z, same) = model["main"](x)
        np.testing.assert_allclose(y.numpy(), -x)
        np.testing.assert_allclose(z.numpy(), -x * w)
        np.testing.assert_array_equal(same.numpy(), x)
        ones = np.ones((9, 2), "float32")
        np.testing.assert_allclose(model["other"](ones).numpy(), np.exp(ones), rtol=1e-6)


@I.ir_module
class Uncalled:
    """A private function that nothing calls, beside a public one that is annotated too."""

    I.module_global_infos(meshes((2,)))

    @R.function(private=True)
    def unused(x: R.Tensor((8, 8), "float32")):
        x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
        y = R.exp(x0)
        return y

    @R.function
    def main(x: R.Tensor((8, 8), "float32")):
        x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
        y = R.negative(x0)
        return y


def test_private_function_that_nothing_calls_is_built_beside_others():
    x = np.ones((8, 8), "float32")
    with dx.Session(2) as session:
        np.testing.assert_allclose(session.load(dx.build(Uncalled))["main"](x).numpy(), -x)


def test_annotations_that_no_public_function_sees_are_named():
    message = r"annotations are in `unused`, which is private .* annotate `main`, call `unused`"
    with pytest.raises(ValueError, match=message):
        dx.build(Dead)


def test_error_of_no_annotations_names_the_functions():
    @I.ir_module
    class Plain:
        @R.function
        def main(x: R.Tensor((8, 8), "float32")):
            y = R.exp(x)
            return y

    with pytest.raises(ValueError, match=r"no sharding annotations \(its functions are `main`\)"):
        dx.build(Plain)
