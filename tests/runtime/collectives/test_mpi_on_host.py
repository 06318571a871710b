"""MPI between GPUs, which are on host memory here, under the mpiexec of the wheel mpich."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
from tests.backends import test_mpi

import distir_ext as dx

pytestmark = test_mpi.needs_mpi
LIBRARY = test_mpi.MPIEXEC.parents[1] / "lib" / "libmpi.so.12"
PREAMBLE = """
import ctypes
HOST = ctypes.CDLL(os.environ["DISTIR_EXT_CUDART_LIBRARY"])
HOST.cuda_on_host_misuse.restype = ctypes.c_char_p
ON_GPUS = {"ccl": "mpi", "workers": "auto", "device": "cuda"}
TARGET = {"kind": "llvm", "target_device_type": 2}
"""


@pytest.fixture(scope="session")
def aware(tmp_path_factory):
    """MPICH, which says that it takes memory of GPUs; that of the host it does take."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    library = tmp_path_factory.mktemp("aware") / "libmpi.so"
    command = [compiler, "-shared", "-fPIC", "-x", "c", "-", "-x", "none"]
    subprocess.run(
        [*command, "-Wl,--no-as-needed", LIBRARY, f"-Wl,-rpath,{LIBRARY.parent}", "-o", library],
        input="int MPIX_Query_cuda_support(void) { return 1; }",
        text=True,
        check=True,
    )
    return library


@pytest.fixture
def run(stand_in, folder, aware):
    """Runs a program; by ``is_aware`` MPI gets the memory of GPUs, or copies in host memory."""

    def run_it(program, is_aware, *options, copies=2, **environment):
        stated = {
            "DISTIR_EXT_CUDART_LIBRARY": str(stand_in),
            "DISTIR_EXT_NCCL_LIBRARY": "none, and none is needed",
            "DISTIR_EXT_MPI_LIBRARY": str(aware if is_aware else LIBRARY),
            "DISTIR_EXT_MPI_COLLECTIVES": "always",
            "CUDA_ON_HOST_FOLDER": folder,
        }
        return test_mpi.run(
            PREAMBLE + program, *options, copies=copies, **{**stated, **environment}
        )

    return run_it


@pytest.mark.large
@pytest.mark.parametrize("copies", [2, 4], ids=["two GPUs each", "one GPU each"])
@pytest.mark.parametrize("is_aware", [False, True], ids=["copied", "aware"])
def test_mpi_between_gpus_conforms(run, sample, is_aware, copies):
    step = sample(40, 10, 4, 1)
    program = f"""
cases = list(conformance._cases(4))[::{step}]
conformance._cases = lambda count: cases
stated = {{"device": "cuda", "target": TARGET}}
print(conformance.check_backend("mpi", workers="auto", **stated), flush=True)
assert HOST.cuda_on_host_misuse() == b""
"""
    status, lines, errors = run(program, is_aware, copies=copies, CUDA_ON_HOST_BLOCKING="1")
    assert status == 0, errors
    assert int(lines[-1]) > 200 // step


SUMS = """
find = tvm_ffi.get_global_func
WHAT = (b"pageable copy", b"legacy stream")

def sums(given):
    # Each reads what the one before writes, and nobody waits in between.
    rows, columns = given.shape
    shapes = (rows // 2, columns), (rows // 2, columns), (rows // 2, 2 * columns)
    x, out, gathered = (tvm.runtime.empty(shape, given.dtype, given.device) for shape in shapes)
    for what in WHAT:
        HOST.cuda_on_host_count(what)
    find("distir.runtime.slice")(given, GROUP, 0, x)
    find("distir.runtime.all_reduce")(x, GROUP, "sum", out)
    find("distir.runtime.synchronized")(find("distir.runtime.all_gather"))(out, GROUP, 1, gathered)
    counted = [HOST.cuda_on_host_count(what) for what in WHAT]
    return counted, find("distir.runtime.copy_to_host")(gathered).numpy()

@tvm_ffi.register_global_func("test.sums", override=True)
def on_worker(given):
    first = sums(given)
    HOST.cuda_on_host_fault(b"no copy to the device")
    second = sums(given)
    HOST.cuda_on_host_fault(b"")
    return json.dumps([[*each, bool((out == expected).all())] for each, out in (first, second)])

GROUP = "[[0,1]]"
given = np.arange(2 * ROWS * 5, dtype="int32").reshape(2 * ROWS, 5)
expected = np.concatenate([given[:ROWS] + given[ROWS:]] * 2, axis=1)
with dx.Session(2, timeout=60, **ON_GPUS) as session:
    session._workers.open_groups([GROUP])
    shard = tvm.runtime.tensor(given)
    for each in session._workers.run("sums", ["test.sums"] * 2, [[shard]] * 2):
        print(each, flush=True)
"""


@pytest.mark.large
@pytest.mark.parametrize("is_aware", [False, True], ids=["copied", "aware"])
def test_what_is_copied(run, is_aware):
    """Nothing that MPI takes itself; otherwise operands to the host, and results back.

    Where nothing is copied back, the second time, results are wrong.
    """
    status, lines, errors = run(SUMS.replace("ROWS", "200_000"), is_aware)
    assert status == 0, errors
    expected = [[0, 0, True]] * 2 if is_aware else [[2, 0, True], [2, 0, False]]
    assert [json.loads(line) for line in lines] == [expected] * 2


FAILS = """
@tvm_ffi.register_global_func("test.break", override=True)
def break_gpu(x, out):
    if rank == 1:  # a copy where there is no memory
        HOST.cuda_on_host_blocking(1)
        HOST.cudaMemcpyAsync(8, 8, 8, 3, None)
    tvm_ffi.get_global_func("distir.runtime.all_reduce")(x, "[[0,1]]", "sum", out)

with dx.Session(2, timeout=60, **ON_GPUS) as session:
    session._workers.open_groups(["[[0,1]]"])
    x = tvm.runtime.tensor(np.ones(3, "float32"))
    begin = time.monotonic()
    try:
        session._workers.run("break", ["test.break"] * 2, [[x, x]] * 2)
    except dx.WorkerError as error:
        print(round(time.monotonic() - begin), str(error)[:300], flush=True)
"""


@pytest.mark.large
@pytest.mark.parametrize("is_aware", [False, True], ids=["copied", "aware"])
def test_a_gpu_that_breaks_ends_the_session(run, is_aware):
    _, lines, errors = run(FAILS, is_aware)
    assert lines, errors
    seconds, _, why = lines[0].partition(" ")
    assert int(seconds) < 15
    assert "worker 1" in why
    assert "illegal" in why


@pytest.mark.large
@pytest.mark.parametrize(
    ("devices", "words"),
    [
        ({"CUDA_ON_HOST_DEVICES": "0"}, "needs CUDA device 0, this machine has 0"),
        ({"DISTIR_EXT_CUDA_DEVICES": "9"}, "needs CUDA device 9, this machine has 8"),
        ({"DISTIR_EXT_CUDART_LIBRARY": "/no/such/file"}, "/no/such/file"),
    ],
)
def test_without_a_gpu(run, devices, words):
    program = "dx.Session(2, ccl='mpi', workers='auto', device='cuda')"
    if "DISTIR_EXT_CUDART_LIBRARY" in devices:
        program = f"os.environ.update({devices})\n{program}"
        devices = {}
    status, _, errors = run(program, False, **devices)
    assert status != 0
    assert words in errors


@pytest.mark.parametrize(("ccl", "device"), [("cpu", "cuda"), ("nccl", "cpu"), ("mpi", "rocm")])
def test_devices_that_a_backend_does_not_have(ccl, device):
    with pytest.raises(ValueError, match=f'with ccl="{ccl}" programs run on device='):
        dx.Session(2, ccl=ccl, device=device)
