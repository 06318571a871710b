"""Prepared calls give what calls give, read their arrays anew, and write where they are told."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R
from tvm.script.parser import tirx as T

import distir_ext as dx

MESH = dx.Mesh((2, 2), ("a", "b"))


@I.ir_module
class Layers:
    @R.function
    def main(
        x: R.Tensor(("n", 8), "float32"),
        scale: R.Tensor((8,), "float32"),
        w: R.Tensor((8, 12), "float32"),
    ):
        R.func_attr({"num_input": 2})
        n = T.int64()
        with R.dataflow():
            scaled = R.multiply(x, scale)
            h = R.matmul(scaled, w)
            y = R.nn.relu(h)
            total = R.sum(y, axis=[1])
            gv = (y, (total, R.shape([n])))
            R.output(gv)
        return gv


def expected(x, scale, w):
    y = np.maximum((x * scale) @ w, 0)
    return y, y.sum(1)


def check(session, executable):
    generator = np.random.default_rng(0)
    w = generator.standard_normal((8, 12)).astype("float32")
    x = generator.standard_normal((6, 8)).astype("float32")
    scale = generator.standard_normal(8).astype("float32")
    function = session.load(executable, params={"w": w})["main"]
    prepared = function.prepare(x, scale=scale)
    y, total = np.empty((6, 12), "float32"), np.empty(6, "float32")
    first = prepared()
    before = expected(x, scale, w)
    for step in range(4):
        x[:] = generator.standard_normal((6, 8))
        wanted = expected(x, scale, w)
        if step % 2:
            out = (y, total)
            assert prepared(out=out) is out
            found = out
        else:
            found_y, (found_total, sizes) = prepared()
            assert list(sizes) == [6]
            found = found_y.numpy(), found_total.numpy()
        for mine, theirs in zip(found, wanted, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)
        called = function(x, scale)
        np.testing.assert_array_equal(found[0], called[0].numpy())
    np.testing.assert_allclose(first[0].numpy(), before[0], rtol=1e-5, atol=1e-5)
    held = function.prepare(first[0].numpy()[:, :8].copy(), scale)()[0]
    assert held.shape == (6, 12)
    return prepared, y, total


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_equals_a_call(workers):
    plan = {"x": ("a", None), "w": (None, "b")}
    executable = dx.build(dx.annotate(Layers, MESH, plan))
    with dx.Session(MESH, workers=workers) as session:
        prepared, y, total = check(session, executable)
        for out, kind, message in [
            (y, ValueError, 'out of "main" is 1 array, the result has 2 tensors'),
            (3, TypeError, 'out of "main" is int, expected NumPy arrays'),
            ((y, [1.0]), TypeError, 'out of "main"[1] is list, expected a NumPy array'),
            ((y.astype("int32"), total), TypeError, "[0] has dtype int32, expected float32"),
            ((y[:5], total), ValueError, "[0] has shape (5, 12), expected (6, 12)"),
            ((y.T.copy().T, total), ValueError, "[0] is not row-major"),
            ((np.broadcast_to(y[0], y.shape).copy(), total[::-1][::-1]), None, ""),
        ]:
            if kind is None:
                prepared(out=out)
                continue
            with pytest.raises(kind, match=re.escape(message)):
                prepared(out=out)
        y.flags.writeable = False
        with pytest.raises(ValueError, match=r"\[0\] is not writable"):
            prepared(out=(y, total))
        with pytest.raises(ValueError, match="expected 8"):
            session.load(executable, params={"w": np.zeros((8, 12), "float32")})["main"].prepare(
                np.zeros((6, 7), "float32"), np.zeros(8, "float32")
            )
    with pytest.raises(RuntimeError, match="closed"):
        prepared()


def test_programs_of_several_meshes():
    first = dx.Mesh((2,), ("a",), device_ids=(0, 1))
    second = dx.Mesh((2,), ("b",), device_ids=(2, 3))
    mod = dx.annotate(Layers, first, {"x": ("a", None)})
    mod = dx.annotate(mod, second, {"h": (None, "b")})
    with dx.Session(dx.Mesh((4,), ("all",))) as session:
        check(session, dx.build(mod))
