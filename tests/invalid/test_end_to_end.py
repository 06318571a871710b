"""Mistakes on the way from a module to numbers: one exception that names the entity each time, and
the same process goes on to compute the right result."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tests.meshes import meshes
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx


@I.ir_module
class MLP:
    @R.function
    def main(
        x: R.Tensor((8, 12), "float32"),
        up: R.Tensor((12, 16), "float32"),
        down: R.Tensor((16, 12), "float32"),
    ) -> R.Tensor((8, 12), "float32"):
        R.func_attr({"num_input": 1})
        with R.dataflow():
            hidden = R.nn.relu(R.matmul(x, up))
            y = R.matmul(hidden, down)
            R.output(y)
        return y


MESH = dx.Mesh((2, 2), ("dp", "tp"))
PLAN = {"x": ("dp", None), "up": (None, "tp"), "down": ("tp", None)}


def _array(*shape, dtype="float32"):
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


WEIGHTS = {"up": _array(12, 16), "down": _array(16, 12)}


@pytest.fixture(scope="module")
def executable():
    return dx.build(dx.annotate(MLP, MESH, PLAN))


@pytest.fixture(autouse=True)
def process_stays_usable(executable):
    yield
    x = _array(8, 12)
    with dx.Session(MESH) as session:
        y = session.load(executable, params=WEIGHTS)["main"](x).numpy()
    expected = np.maximum(x @ WEIGHTS["up"], 0) @ WEIGHTS["down"]
    np.testing.assert_allclose(y, expected, rtol=2e-5, atol=2e-5)


def test_mesh_without_enough_device_ids():
    with pytest.raises(ValueError, match=r"3.*device"):
        dx.Mesh((2, 2), ("dp", "tp"), device_ids=[0, 1, 2])


def test_plan_with_a_pattern_that_matches_nothing():
    with pytest.raises(ValueError, match=r"gate.*x, up, down"):
        dx.annotate(MLP, MESH, {"gate": ("dp", None)})


def test_axis_that_does_not_exist():
    with pytest.raises(ValueError, match=r"pp.*dp.*tp"):
        dx.annotate(MLP, MESH, {"x": ("pp", None)})


def test_one_axis_twice_in_a_tensor():
    with pytest.raises(ValueError, match="tp"):
        dx.annotate(MLP, MESH, {"up": ("tp", "tp")})


def test_more_shards_than_elements_in_a_plan():
    mesh = dx.Mesh((17,), ("tp",))
    with pytest.raises(ValueError, match=r"up.*dimension 1.*16.*17 shards of mesh axis 'tp'"):
        dx.annotate(MLP, mesh, {"up": (None, "tp")})


def test_more_shards_than_elements_in_an_annotation():
    @I.ir_module
    class Odd:
        I.module_global_infos(meshes((9,)))

        @R.function
        def main(x: R.Tensor((8, 12), "float32")) -> R.Tensor((8, 12), "float32"):
            y = R.dist.annotate_sharding(x, device_mesh="mesh[0]", placement="S[0]")
            return R.nn.relu(y)

    with pytest.raises(ValueError, match=r"`y` in `main`.*dimension 0 of size 8.*9 shards"):
        dx.transform.PropagateSharding()(Odd)


def test_module_without_annotations():
    with pytest.raises(ValueError, match="no sharding annotations"):
        dx.build(MLP)


def test_session_with_too_few_workers(executable):
    with dx.Session(2) as session, pytest.raises(ValueError, match=r"4 devices.*2 workers"):
        session.load(executable, params=WEIGHTS)


def test_wrong_shape_at_call_time(executable):
    with dx.Session(MESH) as session:
        model = session.load(executable, params=WEIGHTS)
        with pytest.raises(ValueError, match=r"dimension 1.*x.*13.*12"):
            model["main"](_array(8, 13))


def test_wrong_dtype_at_call_time(executable):
    with dx.Session(MESH) as session:
        model = session.load(executable, params=WEIGHTS)
        with pytest.raises((TypeError, ValueError), match=r"x.*float64.*float32"):
            model["main"](_array(8, 12, dtype="float64"))


def test_weight_that_is_missing(executable):
    with dx.Session(MESH) as session, pytest.raises(ValueError, match="down"):
        session.load(executable, params={"up": WEIGHTS["up"]})


def test_worker_that_raises():
    def fail(*_):
        raise ValueError("the kernel met a bad value")

    tvm_ffi.register_global_func("distir_test.fail", fail, override=True)

    @I.ir_module
    class Failing:
        I.module_global_infos(meshes((2,)))

        @R.function(pure=False)
        def main(x: R.Tensor((8, 12), "float32")) -> R.Tensor((8, 12), "float32"):
            y = R.dist.annotate_sharding(x, device_mesh="mesh[0]", placement="S[0]")
            z = R.call_packed("distir_test.fail", y, ty_args=(R.Tensor((8, 12), "float32"),))
            return z

    with dx.Session(2) as session:
        model = session.load(dx.build(Failing))
        with pytest.raises(RuntimeError, match=r"worker \d.*the kernel met a bad value"):
            model["main"](_array(8, 12))
        assert session.closed


def test_target_that_tvm_does_not_know():
    with pytest.raises(Exception, match="no_such_target"):
        dx.build(dx.annotate(MLP, MESH, PLAN), target="no_such_target")


def test_explaining_what_nothing_shards():
    with pytest.raises(ValueError, match="nothing in the module is sharded"):
        dx.explain(MLP, "hidden")
    propagated = dx.transform.PropagateSharding()(dx.annotate(MLP, MESH, PLAN))
    with pytest.raises(ValueError, match="no_such_variable"):
        dx.explain(propagated, "no_such_variable")
    assert "up" in str(dx.explain(propagated, "hidden"))


def test_collectives_of_a_program_that_is_not_lowered():
    with pytest.raises(ValueError, match="LowerDistIR"):
        dx.analysis.collectives(tvm.IRModule(MLP.functions))


@I.ir_module
class PowerOfIntegers:
    @R.function
    def main(x: R.Tensor((8, 12), "int32")) -> R.Tensor((8, 12), "int32"):
        with R.dataflow():
            y = R.power(x, x)
            R.output(y)
        return y


def test_power_of_integers_has_no_kernel():
    mod = dx.annotate(PowerOfIntegers, MESH, {"x": ("dp", None)})
    with pytest.raises(ValueError, match=r"R\.power of int32 has a kernel for constant exponents"):
        dx.build(mod)
