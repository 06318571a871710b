"""Mistakes of users: one exception that names the entity, on a session that stays open."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import distir_ext as dx
from distir_ext.session import model
from distir_ext.session.session import Session, WorkerError


@pytest.fixture
def build(signature, tensor_type, function_type):
    """x [n, 4] times w [4], rows over two devices, by a kernel written in Python."""

    def compile_with(kernel="distir.test.multiply", **changes):
        rows = tensor_type(["n", 4], "float32", (2,), [0])
        function = function_type(
            {"x": rows, "y": rows, "w": tensor_type([4], "float32", (2,), [-1])},
            rows,
            [("main", [0, 1], [0, 2], [0])],
            num_input=2,
        )
        function |= {"dividing": {"n": ""}} | changes
        text = signature(main=function)

        @I.ir_module
        class Module:
            @R.function
            def main(x: R.Tensor(("m", 4), "float32"), w: R.Tensor((4,), "float32")):
                m = T.int64()
                z = R.call_dps_packed(kernel, (x, w), out_ty=R.Tensor((m, 4), "float32"))
                y = R.call_dps_packed(
                    "distir.runtime.all_reduce",
                    (z, R.str("[[0,1]]"), R.str("max")),
                    out_ty=R.Tensor((m, 4), "float32"),
                )
                return y

            @R.function
            def distir_signature() -> R.Object:
                return R.str(text)

        return tvm.compile(Module, "llvm")

    return compile_with


@tvm_ffi.register_global_func("distir.test.multiply", override=True)
def _multiply(x, w, out):
    out.copyfrom(x.numpy() * w.numpy())


@tvm_ffi.register_global_func("distir.test.fail_on_worker_1", override=True)
def _fail_on_worker_1(x, w, out):
    if tvm_ffi.get_global_func("runtime.disco.worker_rank")() == 1:
        raise ValueError("no such luck")
    out.copyfrom(x)


W = np.arange(4, dtype="float32")
X = np.ones((2, 4), "float32")


@pytest.mark.parametrize(
    ("inputs", "error", "match"),
    [
        ((), TypeError, r'"main" takes 2 inputs \(x, y\), 0 were given'),
        ((X, X, X), TypeError, r'"main" takes 2 inputs \(x, y\), 3 were given'),
        (
            (X.astype("float64"), X),
            TypeError,
            r'input "x" of "main" has dtype float64, expected float32',
        ),
        (
            (X, X.astype(">f4")),
            TypeError,
            r'input "y" of "main" cannot be used: its byte order',
        ),
        (
            (np.ones((2, 5), "float32"), X),
            ValueError,
            r'dimension 1 of input "x" of "main" has size 5, expected 4',
        ),
        (
            (np.ones(4, "float32"), X),
            ValueError,
            r'input "x" of "main" has 1 dimension \[4\], expected 2: float32\[n, 4\]',
        ),
        (
            (X, np.ones((4, 4), "float32")),
            ValueError,
            r'dimension 0 of input "y" of "main" has n = 4, but dimension 0 of input "x".*n = 2',
        ),
        (
            (np.ones((3, 4), "float32"), np.ones((3, 4), "float32")),
            ValueError,
            r'dimension 0 of input "x" of "main" has size n = 3, which does not divide among the',
        ),
        ((["a"], X), TypeError, r'input "x" of "main" cannot be used: it is an array of <U1'),
        (([[1, 2], [3]], X), TypeError, r'input "x" of "main" cannot be used: list is not an'),
        (
            (None, X),
            TypeError,
            r'"x" of "main" cannot be used: it is a NoneType, not an array',
        ),
    ],
)
def test_wrong_inputs(build, inputs, error, match):
    with Session(2) as session:
        main = session.load(build(), {"w": W})["main"]
        with pytest.raises(error, match=match):
            main(*inputs)
        np.testing.assert_array_equal(main(X, X).numpy(), X * W)


@pytest.mark.parametrize(
    ("params", "error", "match"),
    [
        (None, ValueError, r'no value was given for weight "w"'),
        ({}, ValueError, r'no value was given for weight "w"'),
        ({"v": W}, ValueError, r'for weight "w"; other names were given: "v"'),
        ({"w": W, "v": W}, ValueError, r'has no weight "v", which was given; it has "w"'),
        ([], ValueError, r'has 1 weight \("w"\), 0 were given'),
        ([W, W], ValueError, r'has 1 weight \("w"\), 2 were given'),
        ({"w": W[:3]}, ValueError, r'dimension 0 of weight "w" of "main" has size 3, expected 4'),
        ({"w": W.astype("int32")}, TypeError, r'weight "w" of "main" has dtype int32, expected'),
    ],
)
def test_wrong_weights(build, params, error, match):
    with Session(2) as session:
        exe = build()
        with pytest.raises(error, match=match):
            session.load(exe, params)
        np.testing.assert_array_equal(session.load(exe, [W])["main"](X, X).numpy(), X * W)


def test_inputs_by_name(build):
    with Session(2) as session:
        model = session.load(build(), {"w": W})
        main = model["main"]
        for result in (main(x=X, y=X), main(X, y=X), model(X, X), model(y=X, x=X)):
            np.testing.assert_array_equal(result.numpy(), X * W)
        with pytest.raises(TypeError, match=r'"z" is unknown'):
            main(X, z=X)
        with pytest.raises(TypeError, match='"w" is a weight, which Session'):
            main(X, w=W)
        with pytest.raises(TypeError, match='input "x" of "main" was given twice'):
            main(X, x=X)
        with pytest.raises(TypeError, match=r"takes 2 inputs \(x, y\), 1 was given; x is missing"):
            main(y=X)


def test_unknown_function(build):
    with Session(2) as session:
        model = session.load(build(), {"w": W})
        with pytest.raises(KeyError, match=r'no function \\?"prefill\\?"; it has \\?"main\\?"'):
            model["prefill"]


def test_too_few_workers(build):
    with Session(1) as session:
        with pytest.raises(
            ValueError,
            match=r"needs 2 devices \[0, 1\], the session has 1 worker for devices \[0\]",
        ):
            session.load(build(), {"w": W})
        assert not session.closed


def test_a_program_for_gpus(build, monkeypatch):
    read = model._read_signature
    on_gpus = int(tvm_ffi.DLDeviceType.kDLCUDA)
    monkeypatch.setattr(
        model, "_read_signature", lambda *given: replace(read(*given), device_type=on_gpus)
    )
    with Session(2) as session, pytest.raises(ValueError, match=r"for CUDA, .*CPU.*device=.cuda"):
        session.load(build(), {"w": W})


def test_not_an_executable(build):
    @I.ir_module
    class Plain:
        @R.function
        def main(x: R.Tensor((2,), "float32")):
            return x

    with Session(2) as session:
        with pytest.raises(TypeError, match=r"expected an executable from dx.build, got IRModule"):
            session.load(Plain)
        with pytest.raises(FileNotFoundError, match=r"no_such_file\.so"):
            session.load("no_such_file.so")
        with pytest.raises(ValueError, match=r"no distir_signature; build it with dx.build"):
            session.load(tvm.compile(Plain, "llvm"))
        assert not session.closed


def test_executable_that_calls_a_missing_function(build):
    with Session(2) as session:
        with pytest.raises(RuntimeError, match=r"distir.test.missing"):
            session.load(build(kernel="distir.test.missing"), {"w": W})
        np.testing.assert_array_equal(session.load(build(), [W])["main"](X, X).numpy(), X * W)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"programs": [{"name": "gone", "device_ids": [0, 1], "params": [0, 2], "results": [0]}]},
         r'no function "gone"'),
        ({"programs": [{"name": "main", "device_ids": [0], "params": [0, 2], "results": [0]}]},
         r'no program of function "main" returns all of result 0'),
        ({"programs": [{"name": "main", "device_ids": [0, 1, 2], "params": [0], "results": [0]}]},
         r'takes parameter "x" on devices \[2\], which are not in its mesh'),
        ({"programs": [{"name": "main", "device_ids": [0, 1, 1], "params": [0], "results": [0]}]},
         r"two programs for devices \[1\]"),
        ({"result": {"kind": "object"}}, "a type that is none: 'object'"),
        ({"params": [{"name": "x", "type": {"kind": "float32[8]"}}]}, "a type that is none"),
    ],
)  # fmt: skip
def test_bad_signatures(build, changes, match):
    with Session(2) as session:
        with pytest.raises(ValueError, match=match):
            session.load(build(**changes), {"w": W})
        assert not session.closed


def test_signatures_of_another_version_or_that_contradict_themselves():
    from distir_ext.signature.signature import parse_signature

    def written(**changes):
        program = {"name": "f", "devices": "0", "params": "", "results": "0"}
        result = changes.pop("result", "int8[2] S[0]")
        function = {"params": [], "result": result, "programs": [program]}
        return json.dumps(
            {"version": 9, "meshes": [[[1], "0"]], "functions": {"f": function}} | changes
        )

    assert parse_signature(written()).device_ids == (0,)
    with pytest.raises(ValueError, match="signature of version 3, this package reads version 9"):
        parse_signature(written(version=3))
    with pytest.raises(ValueError, match="mesh of shape"):
        parse_signature(written(meshes=[[[2], "0"]]))
    with pytest.raises(ValueError, match="placement"):
        parse_signature(written(result="int8[2] S[1]"))
    with pytest.raises(ValueError, match="malformed"):
        parse_signature(written(meshes=[]))
    with pytest.raises(ValueError, match="malformed"):
        parse_signature(written(shardings={"int8[4] R": "(None,)"}))
    with pytest.raises(ValueError, match="malformed"):
        parse_signature(written(dims={"int8[4] R": [["x"]]}))
    with pytest.raises(ValueError, match=r"dims .* do not fit a tensor"):
        parse_signature(written(dims={"int8[2] S[0]": []}))
    for shard in (1, 3, -2, 10**20):
        with pytest.raises(ValueError, match=r"shards .* do not fit a tensor of \[2\]"):
            parse_signature(written(result=f"int8[2:{shard}] S[0]"))
    for damaged in ("2:", "2:x", "n:2", ":2"):
        with pytest.raises(ValueError, match=r"invalid literal|malformed|do not fit"):
            parse_signature(written(result=f"int8[{damaged}] S[0]"))
    for named in ([[1], ["x", "y"], [0]], [[1], [1], [0]]):
        with pytest.raises(ValueError, match=r"a mesh of shape \[1\] has the axes"):
            parse_signature(written(named_meshes=[named]))
    for named in ([[1], ["x"]], 1, [1, ["x"], [0]]):
        with pytest.raises(ValueError, match=r"malformed|not enough values"):
            parse_signature(written(named_meshes=[named]))


class FakeMesh:
    def __init__(self, *device_ids):
        self.device_ids = device_ids


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ((0,), ValueError, "at least one worker, not 0"),
        ((-2,), ValueError, "at least one worker, not -2"),
        ((True,), TypeError, "a mesh or a number of workers, not bool"),
        (("2",), TypeError, "a mesh or a number of workers, not str"),
        ((2.0,), TypeError, "a mesh or a number of workers, not float"),
        ((FakeMesh(),), ValueError, "the mesh has no devices"),
        ((FakeMesh(0, 1, 1, 0),), ValueError, r"devices more than once: \[0, 1\]"),
        ((FakeMesh(-1, 1),), ValueError, "device id -1 is negative"),
        ((2, "gloo"), ValueError, r"ccl='gloo' is not supported; this build has \["),
        ((2, "cpu", "fibers"), ValueError, r"workers='fibers' is not supported; known are \["),
    ],
)
def test_wrong_sessions(arguments, error, match):
    with pytest.raises(error, match=match):
        Session(*arguments)


def test_worker_that_raises_closes_the_session(build):
    session = Session(2)
    main = session.load(build(kernel="distir.test.fail_on_worker_1"), {"w": W})["main"]
    with pytest.raises(
        WorkerError,
        match=r'worker 1 \(device 1\) failed in "main" in operator '
        r'"distir.test.fail_on_worker_1": ValueError: no such luck',
    ):
        main(X, X)
    assert session.closed
    for use in (lambda: main(X, X), lambda: session.load(build(), {"w": W})):
        with pytest.raises(RuntimeError, match=r"the session is closed: worker 1 .* no such luck"):
            use()
    session.close()
    with Session(2) as another:
        np.testing.assert_array_equal(another.load(build(), [W])["main"](X, X).numpy(), X * W)


def test_failure_names_the_operator_that_failed(build):
    """The kernel that fails is not the program's first operator, nor its last."""
    with Session(FakeMesh(1, 0, 7)) as session:
        main = session.load(build(kernel="distir.test.wrong_shape"), {"w": W})["main"]
        with pytest.raises(WorkerError, match="array shape do not match") as caught:
            main(X, X)
    assert caught.value.operator == "distir.test.wrong_shape"
    assert caught.value.function == "main"
    assert caught.value.device in (0, 1)


@tvm_ffi.register_global_func("distir.test.wrong_shape", override=True)
def _wrong_shape(x, w, out):
    out.copyfrom(w.numpy())


def test_closing_twice_and_using_a_closed_session(build):
    session = Session(2)
    main = session.load(build(), {"w": W})["main"]
    session.close()
    session.close()
    assert session.closed
    with pytest.raises(RuntimeError, match=r"the session is closed$"):
        main(X, X)
    with pytest.raises(RuntimeError, match=r"the session is closed$"):
        session.load(build(), {"w": W})


def test_what_is_built_for_gpus():
    """Those of the session are on CPUs, and the error says which are not."""
    mesh = dx.Mesh((2,), ("tp",))

    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((4,), "float32")):
            return R.add(x, x)

    exe = dx.build(dx.annotate(Module, mesh, {"x": ("tp",)}), target="cuda")
    words = (
        r"built for CUDA, the session's workers are on CPU: those of Session\(ccl=\"nccl\"\) are "
        r"on GPUs, .* and those of Session\(ccl=\"mpi\", device=\"cuda\"\)"
    )
    with Session(2) as session, pytest.raises(ValueError, match=words):
        session.load(exe)
