"""Results that stay on the workers and become inputs of the next call."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import distir_ext as dx
from distir_ext.workers.cuts import shard_for


@I.ir_module
class Cached:
    @R.function
    def append(x: R.Tensor((1, 4, 6), "float32"), cache: R.Tensor(("n", 4, 6), "float32")):
        n = T.int64()
        both: R.Tensor((n + 1, 4, 6), "float32") = R.concat((cache, x), axis=0)
        return (R.sum(both, axis=[0]), (both,))

    @R.function
    def exponential(x: R.Tensor((5, 7), "float32")):
        y = R.exp(x)
        return y

    @R.function
    def total(x: R.Tensor((5, 7), "float32")):
        y = R.sum(x)
        return y

    @R.function
    def first_rows(x: R.Tensor((4, 4, 6), "float32")):
        y = R.add(x, x)
        return y


MESH = dx.Mesh((2, 2), ("a", "b"))
PLANS = {
    "append": {"x": (None, "a", "b"), "cache": (None, "a", "b")},
    "exponential": {"x": ("a", "b")},
    "total": {"x": ("a", "b")},
    "first_rows": {"x": ("b", "a", None)},
}


@pytest.fixture(scope="module")
def executable():
    mod = Cached
    for name, plan in PLANS.items():
        mod = dx.annotate(mod, MESH, plan, func=name)
    return dx.build(mod)


@pytest.fixture(scope="module")
def model(executable):
    with dx.Session(MESH) as session:
        yield session.load(executable)


def rows(count, seed=0):
    return np.random.default_rng(seed).standard_normal((count, 4, 6)).astype("float32")


def test_a_state_stays_on_the_workers(model, monkeypatch):
    """Shards of a result are what the next call gets: nothing is gathered and cut in between."""
    x = rows(6)
    _, (cache,) = model["append"](x[:1], np.zeros((0, 4, 6), "float32"))
    gathered = []
    tensor = dx.ShardedArray.tensor
    monkeypatch.setattr(
        dx.ShardedArray, "tensor", lambda self: gathered.append(self) or tensor(self)
    )
    for index in range(1, 6):
        total, (cache,) = model["append"](x[index : index + 1], cache)
        assert cache.shape == (index + 1, 4, 6)
    assert gathered == []
    np.testing.assert_array_equal(cache.numpy(), x)
    np.testing.assert_allclose(total.numpy(), x.sum(0), rtol=1e-5)
    assert gathered == [cache, total]


def test_another_sharding_is_cut_again(model):
    x = rows(4)
    _, (cache,) = model["append"](x[3:], x[:3])
    np.testing.assert_array_equal(model["first_rows"](cache).numpy(), 2 * x)


def test_padding_of_a_result_is_not_passed_on(model):
    """The exponential of the padding, which is 1, would be part of the sum."""
    x = rows(2).reshape(-1)[:35].reshape(5, 7)
    y = model["exponential"](x)
    assert any((shard.numpy() == 1).any() for shard in y.shards.values())
    np.testing.assert_allclose(model["total"](y).numpy(), np.exp(x).sum(), rtol=1e-5)


def test_as_an_array(model):
    x = rows(1)
    total, (cache,) = model["append"](x, np.zeros((0, 4, 6), "float32"))
    assert (cache.shape, cache.ndim, cache.dtype, len(cache)) == ((1, 4, 6), 3, "float32", 1)
    assert repr(cache) == (
        "<ShardedArray float32[1, 4, 6] (None, 'a', 'b'), placement \"S[1], S[2]\">"
    )
    shapes = {device: tuple(each.shape) for device, each in cache.shards.items()}
    assert shapes == dict.fromkeys(range(4), (1, 2, 3))
    np.testing.assert_array_equal(np.asarray(cache), x)
    np.testing.assert_array_equal(np.asarray(cache, "float64"), x.astype("float64"))
    np.testing.assert_array_equal(np.from_dlpack(cache), x)
    np.testing.assert_array_equal(np.add(total, 1), x[0] + 1)
    assert isinstance(cache.tensor(), tvm.runtime.Tensor)
    echoed = tvm_ffi.get_global_func("testing.echo")(cache)
    np.testing.assert_array_equal(np.from_dlpack(echoed), x)
    with pytest.raises(ValueError, match="can only be copied"):
        np.array(cache, copy=False)


def test_jax_takes_it(model):
    jnp = pytest.importorskip("jax.numpy", reason="JAX is not installed")
    x = rows(1)
    total, (cache,) = model["append"](x, np.zeros((0, 4, 6), "float32"))
    np.testing.assert_array_equal(np.asarray(jnp.asarray(cache)), x)
    np.testing.assert_array_equal(np.asarray(jnp.add(jnp.asarray(total), 1)), x[0] + 1)


@pytest.mark.parametrize("dtype", ["bfloat16", "bool", "float8_e4m3fn"])
def test_numpy_is_a_copy_of_its_own_in_any_dtype(dtype):
    x = relax.Var("x", relax.TensorType((4, 6), dtype))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(relax.op.permute_dims(x))
        builder.emit_func_output(y)
    mod = dx.annotate(builder.get(), MESH, {"x": ("a", None)})
    values = np.arange(24).reshape(4, 6).astype(getattr(ml_dtypes, dtype, dtype))
    with dx.Session(MESH) as session:
        result = session.load(dx.build(mod))["main"](values)
        array = result.numpy()
        assert array.dtype == values.dtype
        # JAX takes an array whose dtype is NumPy's; a name it refuses.
        assert isinstance(result.dtype, np.dtype)
        assert result.dtype == values.dtype == dtype
        assert result.size == 24
        assert np.array_equal(array, values.T)
        array[:] = 0
        assert np.array_equal(result.numpy(), values.T)


def test_an_empty_array():
    mod = dx.annotate(Cached, MESH, {"x": (None, "a", "b")}, func="append")
    with dx.Session(MESH) as session:
        function = session.load(dx.build(mod))["append"]
        total, _ = function(np.ones((1, 4, 6), "float32"), np.ones((0, 4, 6), "float32"))
        assert np.array_equal(total.numpy(), np.ones((4, 6)))


def test_another_session(model, executable):
    x = rows(1)
    _, (cache,) = model["append"](x, np.zeros((0, 4, 6), "float32"))
    with dx.Session(MESH) as other:
        append = other.load(executable)["append"]
        np.testing.assert_array_equal(append(x, cache)[1][0].numpy(), np.tile(x, (2, 1, 1)))


def test_after_its_session_was_closed(executable):
    x = rows(1)
    with dx.Session(MESH) as session:
        append = session.load(executable)["append"]
        _, (cache,) = append(x, np.zeros((0, 4, 6), "float32"))
    np.testing.assert_array_equal(cache.numpy(), x)
    with pytest.raises(RuntimeError, match="the session is closed"):
        append(x, cache)
    with dx.Session(MESH) as other, pytest.raises(ValueError, match="another session"):
        other.load(executable)["append"](x, cache)


def test_wrong_shape_and_dtype(model):
    _, (cache,) = model["append"](rows(1), np.zeros((0, 4, 6), "float32"))
    with pytest.raises(ValueError, match=r'dimension 0 of input "x" of "first_rows" has size 1'):
        model["first_rows"](cache)
    with pytest.raises(ValueError, match=r"has 3 dimensions \[1, 4, 6\], expected 2"):
        model["total"](cache)


def test_a_value_that_other_devices_hold():
    with pytest.raises(ValueError, match=r"device 2 has no value .*: a function on \[0, 1\] ret"):
        shard_for(2, {0: "cache", 1: "cache"})
