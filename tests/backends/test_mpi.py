"""MPI between copies of a script, under the mpiexec of the wheel mpich."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import distir_ext as dx

MPIEXEC = Path(sys.executable).with_name("mpiexec")
INCLUDE = MPIEXEC.parents[1] / "include"
ABI = Path(__file__).parents[2] / "src/runtime/communicators/mpi/abi.h"

needs_mpi = pytest.mark.skipif(not MPIEXEC.exists(), reason="the wheel mpich is not installed")

PREFIXES = ("DISTIR_EXT_", "PMI", "OMPI", "SLURM", "RANK", "WORLD", "LWS", "JOB", "MASTER")
CLEAN = {name: each for name, each in os.environ.items() if not name.startswith(PREFIXES)} | {
    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    "DISTIR_EXT_START_TIMEOUT": "60",
}
if library := os.environ.get("DISTIR_EXT_LIBRARY"):
    CLEAN["DISTIR_EXT_LIBRARY"] = library

PREAMBLE = """
import json, os, sys, time
import numpy as np
import tvm, tvm_ffi
import distir_ext as dx
from distir_ext import conformance
rank = int(os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0")))
"""


def run(program, *options, copies=2, **environment):
    """Exit status, lines of standard output, and errors of a program under mpiexec."""
    done = subprocess.run(
        [str(MPIEXEC), *options, "-n", str(copies), sys.executable, "-c", PREAMBLE + program],
        env={**CLEAN, **environment},
        capture_output=True,
        text=True,
        timeout=200,
    )
    return done.returncode, done.stdout.splitlines(), done.stderr


CONFORMANCE = """
import re
cases = [each for each in conformance._cases(4) if re.match("{text}", each.text)][::{step}]
conformance._cases = lambda count: cases
{sabotage}
print(conformance.check_backend("mpi", workers="auto"), flush=True)
"""


@pytest.mark.large
@needs_mpi
@pytest.mark.parametrize("library", ["libmpi_abi.so.1", "libmpi.so.12"])
def test_mpi_conforms(sample, library):
    """All that MPI's own collectives can do, they do; on 2 copies of 2 workers, and 4 of 1."""
    step = sample(20, 4, 1, 1)
    status, lines, errors = run(
        CONFORMANCE.format(text="", step=step, sabotage=""),
        copies=2 if library == "libmpi_abi.so.1" else 4,
        DISTIR_EXT_MPI_COLLECTIVES="always",
        DISTIR_EXT_MPI_LIBRARY=str(MPIEXEC.parents[1] / "lib" / library),
    )
    assert status == 0, errors
    assert int(lines[-1]) > 200 // step


SABOTAGE = """
original = tvm_ffi.get_global_func("distir.runtime.{name}")
def changed(*arguments):
    result = original(*arguments)
    out = np.from_dlpack(arguments[-1] if result is None else result)
    out += np.asarray(1, out.dtype)
    return result
tvm_ffi.register_global_func("distir.runtime.{name}", changed, override=True)
"""


@pytest.mark.large
@needs_mpi
@pytest.mark.parametrize(
    ("name", "text"), [("all_reduce", ".* along dimension 0"), ("all_gather", "redistribution")]
)
def test_a_wrong_collective_is_noticed(name, text):
    program = CONFORMANCE.format(text=text, step=12, sabotage=SABOTAGE.format(name=name))
    status, _, errors = run(program)
    assert status != 0
    assert "checks of mpi fail" in errors


SUMS = """
import ml_dtypes
def sums(ccl, workers, bitwise):
    with dx.Session(4, ccl=ccl, workers=workers, bitwise=bitwise) as session:
        session._workers.open_groups(["[[0,1,2,3]]"])
        found, sent = {}, {}
        for dtype, count in CASES:
            of = np.dtype(getattr(ml_dtypes, dtype, dtype))
            rng = np.random.default_rng(1)
            given = [np.asarray(rng.standard_normal(count) * 7, of) for _ in range(4)]
            before = session.bytes_between_hosts()
            results = session._workers.run(
                "sum", ["test.sum"] * 4, [[tvm.runtime.tensor(each)] for each in given]
            )
            after = session.bytes_between_hosts()
            name = f"{dtype} {count}"
            found[name] = [bytes(each).hex() for each in results]
            sent[name] = sum(after[i] - before[i] for i in (0, 1))
        return found, sent

@tvm_ffi.register_global_func("test.sum", override=True)
def test_sum(x):
    out = tvm.runtime.empty(x.shape, x.dtype)
    tvm_ffi.get_global_func("distir.runtime.all_reduce")(x, "[[0,1,2,3]]", "sum", out)
    return tvm_ffi.convert(out.numpy().tobytes())

CASES = @CASES@
ordered, many = sums("mpi", "auto", True)
free, few = sums("mpi", "auto", False)
alone, _ = sums("cpu", "threads", False)
for name, bits in alone.items():
    assert ordered[name] == bits, name           # in group order: the bits of threads
    assert len(set(free[name])) == 1, name       # the same everywhere
    dtype, count = name.split()
    of = np.dtype(getattr(ml_dtypes, dtype, dtype))
    read = lambda text: np.frombuffer(bytes.fromhex(text), of).astype("float64")
    if of.itemsize < 4:
        assert free[name] == bits, name
    np.testing.assert_allclose(read(free[name][0]), read(bits[0]), rtol=1e-4, atol=1e-4)
print(json.dumps([many, few]), flush=True)
"""


@pytest.mark.large
@needs_mpi
def test_sums_by_dtype_and_bytes_between_hosts():
    """Within hosts first unless bits are asked for; the first host's two workers send a half."""
    count = 60_000
    cases = [(dtype, 1000) for dtype in ("float16", "bfloat16", "float8_e4m3fn", "int8", "float64")]
    cases += [("float32", count), ("int32", count + 1), ("float16", count)]
    program = SUMS.replace("@CASES@", repr(cases))
    status, lines, errors = run(program, DISTIR_EXT_MPI_COLLECTIVES="always")
    assert status == 0, errors
    many, few = json.loads(lines[-1])
    exact = f"float32 {count}"
    assert few[exact] == 4 * count  # 2 (h - 1) / h of the tensor, h = 2
    assert many[exact] == 2 * few[exact]
    assert few[f"int32 {count + 1}"] == 4 * (count + 2)  # padded to two parts
    assert many[f"int32 {count + 1}"] == few[f"int32 {count + 1}"]  # whole numbers have one order
    assert few[f"float16 {count}"] == many[f"float16 {count}"]


@needs_mpi
@pytest.mark.large
def test_a_choice_that_is_none():
    program = 'dx.Session(2, ccl="mpi", workers="auto")'
    _, _, errors = run(program, DISTIR_EXT_MPI_COLLECTIVES="maybe")
    assert 'is "maybe"; it is always, never, or not set' in errors


OWN = """
EVERYBODY = "[[0,1,2]]"
KINDS = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}

def given(member, shape, dtype):
    rng = np.random.default_rng(member)
    if np.issubdtype(dtype, np.integer):
        return rng.integers(0, 256, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)

def check(member, name, shape, dtype, arguments, expected, exact=True):
    x = tvm.runtime.tensor(given(member, shape, dtype))
    out = tvm.runtime.empty(expected.shape, dtype)
    tvm_ffi.get_global_func("distir.runtime." + name)(x, EVERYBODY, *arguments, out)
    tolerance = 0 if exact else 1e-5
    np.testing.assert_allclose(out.numpy(), expected, rtol=tolerance, atol=tolerance)

@tvm_ffi.register_global_func("test.own", override=True)
def own(member, shape, dtype):
    # All collectives along dimension 1, of 3 members.
    shape, count = tuple(shape), tvm_ffi.get_global_func("distir.runtime.bytes_to_hosts")
    everybody = [given(each, shape, dtype) for each in range(3)]
    blocks = [np.split(each, 3, axis=1) for each in everybody]
    sent = []
    for kind, ufunc in KINDS.items():
        exact = np.issubdtype(np.dtype(dtype), np.integer) or kind in ("max", "min")
        begin, expected = count(), ufunc.reduce(everybody, dtype=dtype)
        check(member, "all_reduce", shape, dtype, [kind], expected, exact)
        sent.append(count() - begin)
        mine = ufunc.reduce([each[member] for each in blocks], dtype=dtype)
        check(member, "reduce_scatter", shape, dtype, [1, kind], mine, exact)
    check(member, "all_gather", shape, dtype, [1], np.concatenate(everybody, axis=1))
    expected = np.concatenate([each[member] for each in blocks], axis=0)
    check(member, "all_to_all", shape, dtype, [1, 0], expected)
    return json.dumps(sent)

@tvm_ffi.register_global_func("test.nan", override=True)
def nan(member):
    values = np.array([np.nan if member == each else 1 for each in range(3)], "float32")
    out = tvm.runtime.empty((3,), "float32")
    x = tvm.runtime.tensor(values)
    tvm_ffi.get_global_func("distir.runtime.all_reduce")(x, EVERYBODY, "max", out)
    assert np.isnan(out.numpy()).all()

with dx.Session(3, ccl="mpi", workers="auto", bitwise=False, timeout=60) as session:
    run = session._workers.run
    for _ in range(2):  # the second time nothing is left to be opened
        session._workers.open_groups([EVERYBODY])
    run("nan", ["test.nan"] * 3, [[rank] for rank in range(3)])
    for shape, dtype in CASES:
        sent = run("own", ["test.own"] * 3, [[rank, list(shape), dtype] for rank in range(3)])
        print(sent[0], flush=True)
"""


@pytest.mark.large
@needs_mpi
def test_its_own_collectives():
    """Of every dtype that it can reduce; one that takes several pieces, and bytes that say so."""
    integers = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
    small, large = [2, 12, 5], [3, 9, 50_000]
    cases = [(small, each) for each in [*integers, "float64"]] + [(large, "float32")]
    program = OWN.replace("CASES", repr(cases))
    status, lines, errors = run(program, copies=3, DISTIR_EXT_MPI_COLLECTIVES="always")
    assert status == 0, errors
    for (shape, dtype), line in zip(cases, lines, strict=True):
        least = 2 * 2 * math.prod(shape) * np.dtype(dtype).itemsize // 3
        # Messages would send small tensors whole to both others. max and min of floats, the last
        # two, are messages, for the sake of NaN, and so are narrow sums, the first two.
        dtype = np.dtype(dtype)
        by_mpi = slice(0, 2) if dtype.kind == "f" else slice(2 if dtype.itemsize < 4 else 0, 4)
        assert set(json.loads(line)[by_mpi]) == {least}


LOST = """
tvm_ffi.register_global_func("test.die", lambda: os._exit(7) if rank == 1 else None)
with dx.Session(2, ccl="mpi", workers="auto", timeout=60) as session:
    begin = time.monotonic()
    try:
        out = tvm.runtime.empty((4,), "float32")
        session._workers.run(
            "die", ["distir.runtime.all_reduce", "test.die"], [[out, "[[0,1]]", "sum", out], []]
        )
    except dx.WorkerError as error:
        print(round(time.monotonic() - begin), str(error)[:160], flush=True)
os._exit(3)
"""


LOST_WITHIN = """
import threading

@tvm_ffi.register_global_func("test.loop", override=True)
def loop(dies):
    if dies:
        threading.Timer(0.3, os._exit, [7]).start()
    x, out = (tvm.runtime.empty((1 << 22,), "float32") for _ in range(2))
    while True:
        tvm_ffi.get_global_func("distir.runtime.all_reduce")(x, "[[0,1]]", "sum", out)

with dx.Session(2, ccl="mpi", workers="auto", timeout=60, bitwise=False) as session:
    session._workers.open_groups(["[[0,1]]"])
    begin = time.monotonic()
    try:
        session._workers.run("loop", ["test.loop"] * 2, [[False], [True]])
    except dx.WorkerError as error:
        print(round(time.monotonic() - begin), str(error)[:160], flush=True)
os._exit(3)
"""


@pytest.mark.large
@needs_mpi
@pytest.mark.parametrize("program", [LOST, LOST_WITHIN], ids=["before", "within"])
def test_a_lost_rank_ends_the_session(program):
    """Also where mpiexec does not end the others itself."""
    _, lines, errors = run(program, "-disable-auto-cleanup", DISTIR_EXT_MPI_COLLECTIVES="always")
    assert lines, errors
    seconds, _, why = lines[0].partition(" ")
    assert int(seconds) < 15
    assert "worker 1" in why


def test_without_mpi():
    for workers in ("threads", "processes", "auto"):
        with pytest.raises(RuntimeError, match="copies of a script that MPI has started"):
            dx.Session(2, ccl="mpi", workers=workers)


@pytest.mark.large
@needs_mpi
def test_under_a_launcher_that_does_not_start_mpi():
    done = subprocess.run(
        [sys.executable, "-c", 'import distir_ext as dx; dx.Session(2, "mpi", workers="auto")'],
        env=CLEAN | {"DISTIR_EXT_RANK": "0", "DISTIR_EXT_WORLD_SIZE": "2"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    assert 'has not started MPI, which ccl="mpi" needs' in done.stderr


def abi(name):
    """The numbers of an ABI in abi.h, by the order of its fields."""
    text = ABI.read_text(encoding="utf-8")
    found = re.search(rf"constexpr Abi {name}\{{(.*?)\}};", text, re.DOTALL)
    return [int(each.strip(), 0) for each in found[1].split(",")[1:]]


FIELDS = [
    "MPI_THREAD_SERIALIZED",
    "MPI_THREAD_MULTIPLE",
    "MPI_ANY_SOURCE",
    "MPI_ANY_TAG",
    "-",
    "-",
    "MPI_COMM_WORLD",
    "MPI_BYTE",
    "MPI_ERRORS_RETURN",
    "MPI_INT8_T",
    "MPI_INT16_T",
    "MPI_INT32_T",
    "MPI_INT64_T",
    "MPI_UINT8_T",
    "MPI_UINT16_T",
    "MPI_UINT32_T",
    "MPI_UINT64_T",
    "MPI_FLOAT",
    "MPI_DOUBLE",
    "MPI_SUM",
    "MPI_MAX",
    "MPI_MIN",
    "MPI_PROD",
]


@pytest.mark.parametrize(
    ("name", "header"), [("kStandardAbi", "mpi_abi.h"), ("kMpichAbi", "mpi.h")]
)
def test_constants_are_those_of_the_headers(name, header):
    file = INCLUDE / header
    if not file.exists():
        pytest.skip(f"{header} is not installed")
    text = file.read_text(encoding="utf-8")
    for field, value in zip(FIELDS, abi(name), strict=True):
        if field == "-":
            continue
        pattern = rf"{field}\b\s*(?:=|\s)\s*\(*(?:\(?MPI_\w+\)\s*)?\(*(-?(?:0x)?[0-9a-fA-F]+)"
        assert int(re.search(pattern, text)[1], 0) == value, field
