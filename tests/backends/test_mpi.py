"""MPI between copies of a script, under the mpiexec of the wheel mpich."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

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


@needs_mpi
@pytest.mark.parametrize(
    "library", ["libmpi.so.12", pytest.param("libmpi_abi.so.1", marks=pytest.mark.large)]
)
def test_mpi_conforms(sample, library):
    step = sample(20, 1, 1)
    status, lines, errors = run(
        CONFORMANCE.format(text="", step=step, sabotage=""),
        copies=2 if library == "libmpi.so.12" else 4,
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


@needs_mpi
def test_sums_by_dtype_and_bytes_between_hosts():
    """Within hosts first unless bits are asked for; the first host's two workers send a half."""
    count = 60_000
    cases = [(dtype, 1000) for dtype in ("float16", "bfloat16", "float8_e4m3fn", "int8", "float64")]
    cases += [("float32", count), ("int32", count + 1), ("float16", count)]
    status, lines, errors = run(SUMS.replace("@CASES@", repr(cases)))
    assert status == 0, errors
    many, few = json.loads(lines[-1])
    exact = f"float32 {count}"
    assert few[exact] == 4 * count  # 2 (h - 1) / h of the tensor, h = 2
    assert many[exact] == 2 * few[exact]
    assert few[f"int32 {count + 1}"] == 4 * (count + 2)  # padded to two parts
    assert many[f"int32 {count + 1}"] == few[f"int32 {count + 1}"]  # whole numbers have one order
    assert few[f"float16 {count}"] == many[f"float16 {count}"]


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


@needs_mpi
def test_a_lost_rank_ends_the_session():
    """Also where mpiexec does not end the others itself."""
    _, lines, errors = run(LOST, "-disable-auto-cleanup")
    assert lines, errors
    seconds, _, why = lines[0].partition(" ")
    assert int(seconds) < 15
    assert "worker 1" in why


def test_without_mpi():
    for workers in ("threads", "processes", "auto"):
        with pytest.raises(RuntimeError, match="copies of a script that MPI has started"):
            dx.Session(2, ccl="mpi", workers=workers)


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
    "MPI_INT32_T",
    "MPI_INT64_T",
    "MPI_UINT8_T",
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
