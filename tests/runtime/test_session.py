"""Sessions on hand-written per-worker programs: global arrays in, global arrays out."""

from __future__ import annotations

import threading

import ml_dtypes
import numpy as np
import pytest
import tvm
from tests.abi.plans import layout, transfer_plan
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from distir_ext.session.session import Session, ShardedArray


@pytest.fixture
def mlp(signature, tensor_type, function_type):
    """relu(x @ w0) @ w1 on a 2x2 mesh: batch over axis 0, Megatron sharding over axis 1."""
    mesh = (2, 2)
    text = signature(
        main=function_type(
            {
                "x": tensor_type(["n", 8], "float32", mesh, [0, -1]),
                "w0": tensor_type([8, 16], "float32", mesh, [-1, 1]),
                "w1": tensor_type([16, 4], "float32", mesh, [-1, 0]),
            },
            tensor_type(["n", 4], "float32", mesh, [0, -1]),
            [("main", range(4), [0, 1, 2], [0])],
            num_input=1,
        ),
    )

    @I.ir_module
    class Module:
        @R.function
        def main(
            x: R.Tensor(("m", 8), "float32"),
            w0: R.Tensor((8, 8), "float32"),
            w1: R.Tensor((8, 4), "float32"),
        ):
            m = T.int64()
            with R.dataflow():
                h = R.nn.relu(R.matmul(x, w0))
                p = R.matmul(h, w1)
                y = R.call_dps_packed(
                    "distir.runtime.all_reduce",
                    (p, R.str("[[0,1],[2,3]]"), R.str("sum")),
                    out_ty=R.Tensor((m, 4), "float32"),
                )
                R.output(y)
            return y

        @R.function
        def distir_signature() -> R.Object:
            return R.str(text)

    return tvm.compile(Module, "llvm")


def mlp_arrays(batch):
    rng = np.random.default_rng(batch)
    x = rng.standard_normal((batch, 8)).astype("float32")
    params = {
        "w0": rng.standard_normal((8, 16)).astype("float32"),
        "w1": rng.standard_normal((16, 4)).astype("float32"),
    }
    return x, params, np.maximum(x @ params["w0"], 0) @ params["w1"]


def test_one_program_on_a_mesh(open_session, mlp):
    mesh = tvm.relax.distributed.DeviceMesh((2, 2), tvm.ir.Range(0, 4))
    x, params, expected = mlp_arrays(6)
    with open_session(mesh) as session:
        model = session.load(mlp, params=params)
        result = model["main"](x)
        assert isinstance(result, ShardedArray)
        np.testing.assert_allclose(result.numpy(), expected, rtol=1e-5)


def test_symbolic_batch_and_repeated_calls(open_session, mlp):
    with open_session(4) as session:
        _, params, _ = mlp_arrays(2)
        main = session.load(mlp, params=params)["main"]
        for batch in (2, 4, 10, 0, 4, 2):
            x, _, _ = mlp_arrays(batch)
            expected = np.maximum(x @ params["w0"], 0) @ params["w1"]
            for _ in range(3):
                np.testing.assert_allclose(main(x).numpy(), expected, rtol=1e-5, atol=1e-6)


def test_weights_in_order_and_weights_are_not_read_again(open_session, mlp):
    x, params, expected = mlp_arrays(4)
    with open_session(4) as session:
        main = session.load(mlp, params=list(params.values()))["main"]
        for value in params.values():
            value[:] = np.nan
        np.testing.assert_allclose(main(x).numpy(), expected, rtol=1e-5)


def test_executable_as_a_loaded_library(mlp, tmp_path):
    mlp.export_library(tmp_path / "mlp.so")
    x, params, expected = mlp_arrays(4)
    with Session(4) as session:
        model = session.load(tvm.runtime.load_module(str(tmp_path / "mlp.so")), params)
        np.testing.assert_allclose(model["main"](x).numpy(), expected, rtol=1e-5)


def test_executable_as_a_path(open_session, mlp, tmp_path):
    mlp.export_library(tmp_path / "mlp.so")
    x, params, expected = mlp_arrays(4)
    with open_session(4) as session:
        model = session.load(tmp_path / "mlp.so", params)
        np.testing.assert_allclose(model["main"](x).numpy(), expected, rtol=1e-5)


def test_more_workers_than_the_executable_needs(mlp):
    x, params, expected = mlp_arrays(4)
    with Session(6) as session:
        np.testing.assert_allclose(
            session.load(mlp, params)["main"](x).numpy(), expected, rtol=1e-5
        )


@pytest.fixture
def stages(signature, tensor_type, function_type):
    """Two programs on disjoint devices: y = x + x on 0 and 1, then y * y on 2 and 3, transposed."""
    plan = transfer_plan(layout([0, 1], [2, 1]), layout([2, 3], [1, 2]), channel=1)
    text = signature(
        main=function_type(
            {
                "x": tensor_type([4, 6], "float32", (2,), [0], [0, 1]),
                "w": tensor_type([6], "float32", (2,), [0], [2, 3]),
            },
            tensor_type([4, 6], "float32", (2,), [1], [2, 3]),
            [("first", [0, 1], [0], []), ("second", [2, 3], [1], [0])],
            num_input=1,
        ),
    )

    @I.ir_module
    class Module:
        @R.function(pure=False)
        def first(x: R.Tensor((2, 6), "float32")):
            with R.dataflow():
                y = R.add(x, x)
                R.output(y)
            _ = R.call_packed("distir.runtime.send", y, R.str(plan), ty_args=R.Shape([]))
            return R.tuple()

        @R.function
        def second(w: R.Tensor((3,), "float32")):
            with R.dataflow():
                y = R.call_dps_packed(
                    "distir.runtime.recv", (R.str(plan),), out_ty=R.Tensor((4, 3), "float32")
                )
                z = R.multiply(y, w)
                R.output(z)
            return z

        @R.function
        def distir_signature() -> R.Object:
            return R.str(text)

    return tvm.compile(Module, "llvm")


def test_two_programs_on_disjoint_devices(open_session, stages):
    rng = np.random.default_rng(0)
    w = rng.standard_normal(6).astype("float32")
    with open_session(4) as session:
        main = session.load(stages, {"w": w})["main"]
        for _ in range(5):
            x = rng.standard_normal((4, 6)).astype("float32")
            np.testing.assert_allclose(main(x).numpy(), 2 * x * w, rtol=1e-6)


@pytest.fixture
def nested(signature, tensor_type, function_type):
    """(a, (b, c)) -> ((a + a, c), (), b): tuples in and out, several functions, shapes."""
    mesh = (2,)
    a = tensor_type([4], "float32", mesh, [0])
    b = tensor_type([3, 2], "int32", mesh, [-1])
    c = tensor_type([], "bool", mesh, [-1])
    pair = {"kind": "tuple", "fields": [b, c]}
    empty = {"kind": "tuple", "fields": []}
    out = {"kind": "tuple", "fields": [{"kind": "tuple", "fields": [a, c]}, empty, b]}
    shape = {"kind": "shape"}
    text = signature(
        main=function_type({"a": a, "bc": pair}, out, [("main", [0, 1], [0, 1], [0, 1, 2])]),
        shapes=function_type(
            {"s": shape, "x": tensor_type(["n"], "float32", mesh, [-1])},
            shape,
            [("shapes", [0, 1], [0, 1], [0])],
        ),
    )

    @I.ir_module
    class Module:
        @R.function
        def main(
            a: R.Tensor((2,), "float32"),
            bc: R.Tuple(R.Tensor((3, 2), "int32"), R.Tensor((), "bool")),
        ):
            with R.dataflow():
                double = R.add(a, a)
                b = bc[0]
                c = bc[1]
                result = ((double, c), b)
                R.output(result)
            return result

        @R.function
        def shapes(s: R.Shape(["n", 2]), x: R.Tensor(("n",), "float32")):
            return s

        @R.function
        def distir_signature() -> R.Object:
            return R.str(text)

    return tvm.compile(Module, "llvm")


def test_nested_tuples(open_session, nested):
    a = np.arange(4, dtype="float32")
    b = np.arange(6, dtype="int32").reshape(3, 2)
    with open_session(2) as session:
        model = session.load(nested)
        (double, c), empty, same = model["main"](a, (b, np.True_))
        np.testing.assert_array_equal(double.numpy(), a + a)
        np.testing.assert_array_equal(same.numpy(), b)
        assert c.numpy() == np.True_
        assert c.numpy().dtype == bool
        assert empty == ()
        assert list(model["shapes"]((3, 2), np.zeros(3, "float32"))) == [3, 2]


def test_result_does_not_share_memory_with_the_input(open_session, nested):
    b = np.arange(6, dtype="int32").reshape(3, 2)
    with open_session(2) as session:
        main = session.load(nested)["main"]
        result = main(np.zeros(4, "float32"), [b, np.False_])[2]
        b[:] = -1
        main(np.zeros(4, "float32"), [b, np.False_])
        np.testing.assert_array_equal(result.numpy(), np.arange(6).reshape(3, 2))


@pytest.fixture
def identity(signature, tensor_type, function_type):
    """Returns an executable that passes an array through, sharded as asked."""

    def build(shape, dtype, mesh, placement, device_ids=None):
        ids = list(range(int(np.prod(mesh)))) if device_ids is None else device_ids
        spec = tensor_type(shape, dtype, mesh, placement, ids)
        text = signature(main=function_type({"x": spec}, spec, [("main", ids, [0], [0])]))

        @I.ir_module
        class Module:
            @R.function
            def main(x: R.Tensor(ndim=len(shape), dtype=dtype)):
                return x

            @R.function
            def distir_signature() -> R.Object:
                return R.str(text)

        return tvm.compile(Module, "llvm")

    return build


@pytest.mark.parametrize(
    ("shape", "mesh", "placement", "device_ids"),
    [
        ([8, 6], (4,), [0], None),
        ([8, 6], (2, 2), [0, 0], None),
        ([8, 6], (2, 2), [1, 0], None),
        ([8, 6], (2, 2), [-1, 1], [3, 1, 0, 2]),
        ([8, 6], (2, 2), [0, 0], [3, 1, 0, 2]),
        ([8, 6, 4], (2, 1, 2), [2, 1, 2], None),
        ([8, 6, 4], (4,), [-1], None),
    ],
)
def test_cutting_and_joining_are_inverse(
    open_session, identity, shape, mesh, placement, device_ids
):
    exe = identity(shape, "float32", mesh, placement, device_ids)
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    with open_session(4) as session:
        np.testing.assert_array_equal(session.load(exe)["main"](x).numpy(), x)


def test_axes_on_one_dimension_nest_in_mesh_order(identity):
    """Device 1 of a 2x2 mesh with placement [0, 0] holds the second quarter, not the third."""
    from distir_ext.signature.specs import TensorSpec

    spec = TensorSpec((8,), "float32", (2, 2), (0, 1, 2, 3), (0, 0))
    assert spec.blocks == {0: (0,), 1: (1,), 2: (2,), 3: (3,)}
    assert spec.parts == (4,)


ARRAYS = {
    "transposed": np.arange(12, dtype="float32").reshape(3, 4).T,
    "every other": np.arange(48, dtype="float32").reshape(8, 6)[::2, ::2],
    "reversed": np.arange(12, dtype="float32").reshape(4, 3)[::-1, ::-1],
    "broadcast": np.broadcast_to(np.arange(3, dtype="float32"), (4, 3)),
    "read-only": np.frombuffer(np.arange(12, dtype="float32").tobytes(), "float32").reshape(4, 3),
    "unaligned": np.frombuffer(b"\0" + bytes(48), "uint8")[1:].view("float32").reshape(4, 3),
    "tvm": tvm.runtime.tensor(np.arange(12, dtype="float32").reshape(4, 3)),
    "nested lists": [[np.float32(i * 3 + j) for j in range(3)] for i in range(4)],
}


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS.keys())
def test_arrays_of_every_layout(open_session, identity, array):
    expected = array.numpy() if isinstance(array, tvm.runtime.Tensor) else np.array(array)
    with open_session(4) as session:
        main = session.load(identity([4, 3], "float32", (4,), [0]))["main"]
        np.testing.assert_array_equal(main(array).numpy(), expected)


class OnlyDlpack:
    """An array of another library."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


def test_dlpack(open_session, identity):
    array = np.arange(12, dtype="float32").reshape(4, 3)
    with open_session(2) as session:
        main = session.load(identity([4, 3], "float32", (2,), [0]))["main"]
        np.testing.assert_array_equal(main(OnlyDlpack(array)).numpy(), array)


@pytest.mark.parametrize(
    "dtype",
    ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float16", "float64", "bool", "int8", "uint64"],
)
def test_dtypes(open_session, identity, dtype):
    kind = getattr(ml_dtypes, dtype, None) or np.dtype(dtype)
    x = (np.arange(12).reshape(4, 3) % 2).astype(kind)
    with open_session(2) as session:
        result = session.load(identity([4, 3], dtype, (2,), [0]))["main"](x).numpy()
        assert result.dtype == x.dtype
        np.testing.assert_array_equal(result.astype("float64"), x.astype("float64"))


def test_scalars(open_session, identity):
    with open_session(2) as session:
        main = session.load(identity([], "float32", (2,), [-1]))["main"]
        for value in (np.float32(2.5), np.array(2.5, "float32")):
            assert main(value).numpy() == np.float32(2.5)


def test_calls_from_several_threads(open_session, mlp):
    x, params, expected = mlp_arrays(4)
    with open_session(4) as session:
        main = session.load(mlp, params)["main"]
        failures = []

        def call():
            for _ in range(20):
                if not np.allclose(main(x).numpy(), expected, rtol=1e-5):
                    failures.append("wrong")

        threads = [threading.Thread(target=call) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []


def test_functions_share_weights(open_session, signature, tensor_type, function_type):
    mesh = (2,)
    x = tensor_type([4], "float32", mesh, [0])
    text = signature(
        plus=function_type({"x": x, "w": x}, x, [("plus", [0, 1], [0, 1], [0])], num_input=1),
        times=function_type(
            {"x": x, "w": x, "v": x}, x, [("times", [0, 1], [0, 1, 2], [0])], num_input=1
        ),
    )

    @I.ir_module
    class Module:
        @R.function
        def plus(x: R.Tensor((2,), "float32"), w: R.Tensor((2,), "float32")):
            y = R.add(x, w)
            return y

        @R.function
        def times(
            x: R.Tensor((2,), "float32"),
            w: R.Tensor((2,), "float32"),
            v: R.Tensor((2,), "float32"),
        ):
            y = R.multiply(R.multiply(x, w), v)
            return y

        @R.function
        def distir_signature() -> R.Object:
            return R.str(text)

    values = np.arange(1, 5, dtype="float32")
    with open_session(2) as session:
        exe = tvm.compile(Module, "llvm")
        model = session.load(exe, {"w": values, "v": 2 * values})
        np.testing.assert_array_equal(model["plus"](values).numpy(), 2 * values)
        np.testing.assert_array_equal(model["times"](values).numpy(), 2 * values**3)
        with pytest.raises(ValueError, match="different weights; pass them by name"):
            session.load(exe, [values, values])
        assert list(model) == ["plus", "times"]
        assert "plus" in model
        assert "minus" not in model
        assert len(model) == 2


def test_representations(mlp):
    _, params, _ = mlp_arrays(2)
    with Session(4) as session:
        model = session.load(mlp, params)
        assert repr(session) == "<Session devices=[0, 1, 2, 3] ccl='cpu' workers='threads' open>"
        assert (
            repr(model) == "<Model\n"
            "  main(x: float32[n, 8] ('x', None)) -> float32[n, 4] ('x', None) with 2 weights>"
        )
        assert "main(x: float32[n, 8]" in repr(model["main"])
    assert repr(session).endswith("closed>")
