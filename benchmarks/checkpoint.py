"""Times loading weights on another mesh than the one that saved them, beside copying the files.

    python benchmarks/checkpoint.py [--gigabytes 1] [--processes] [--repeats 5] [--dtype float32]
                                    [--size 4096] [--only files|memory] [--cold]

The weights of a chain of products, over tp=8, are saved as the workers hold them, and loaded over
dp=1, tp=2, pp=4: of each weight four pieces become a half, which two workers of one stage hold.
They also go from one session to the other in memory. Beside it the files are copied within the same
directory, and read into memory once. Runs are interleaved; times are medians, ratios medians of
ratios of neighbouring runs. Results with the loaded weights are compared with those of the first
mesh. Files are in memory already (the page cache), as after a restart, unless they are ``--cold``:
then what the system has of them in memory is dropped before each of the runs (which needs root).
Before each of them as much memory as it takes is touched and given back: a virtual machine may
return free memory to its host (free page reporting of virtio-balloon, after 2 seconds), and who
takes it again waits up to ten times as long.

With ``--only files`` the first session is closed before the weights are loaded, so that memory has
to have room for them once; with ``--only memory`` they are saved for the copy alone.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import ml_dtypes  # noqa: F401  (makes its types known to NumPy by name)
import numpy as np
from rich.console import Console
from rich.table import Table
from tvm import relax

import distir_ext as dx

MESHES = {"tp8": dx.Mesh(tp=8), "tp2 x pp4": dx.Mesh(pp=4, tp=2)}
# Arrays that the weights are made of, in turns; workers have their own memory for each weight.
NUM_ARRAYS = 4
TITLES = {
    "load": "load on the other mesh",
    "move": "the same in memory, from the other session",
    "copy": "copy the files",
    "read": "read the files",
}


def executable(layers: int, size: int, dtype: str, mesh: dx.Mesh) -> object:
    """A chain of products, over tp, and over stages if the mesh has an axis for them."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, size), "float32"))
    weights = [
        relax.Var(f"w{index}", relax.TensorType((size, size), dtype)) for index in range(layers)
    ]
    with builder.function("main", [x, *weights], attrs={"num_input": 1}):
        with builder.dataflow():
            y = x
            for weight in weights:
                if dtype != "float32":
                    weight = builder.emit(relax.op.astype(weight, "float32"))
                y = builder.emit(relax.op.matmul(y, weight))
            y = builder.emit_output(y)
        builder.emit_func_output(y)
    plan = {r"w\d*[02468]": (None, "tp"), r"w\d*[13579]": ("tp", None)}
    mod = dx.annotate(builder.finalize(), mesh, plan)
    if "pp" in mesh.axis_names:
        mod = dx.transform.AssignStages(mesh, "pp")(mod)
    return dx.build(mod)


def weights_of(layers: int, size: int, dtype: str) -> dict[str, np.ndarray]:
    """Whole numbers from -2 to 2 by a power of two, so that products neither grow nor vanish."""
    rng = np.random.default_rng(0)
    scale = 2.0 ** -round(math.log2(2 * size) / 2)
    arrays = [
        (rng.integers(-2, 3, (size, size), "int8") * np.float32(scale)).astype(dtype)
        for _ in range(min(NUM_ARRAYS, layers))
    ]
    return {f"w{index}": arrays[index % len(arrays)] for index in range(layers)}


def touch(num_bytes: int) -> None:
    """Has the system give memory, and gives it back."""
    np.empty(num_bytes, np.uint8).fill(1)


def drop_files() -> None:
    """Drops files from the page cache."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("1\n", encoding="ascii")


def timed(call: object, *arguments: object) -> float:
    """Seconds of a call."""
    begin = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - begin


def read_all(files: list[Path]) -> None:
    """Reads files into memory, one after the other."""
    buffer = bytearray(32 << 20)
    for file in files:
        with file.open("rb", buffering=0) as opened:
            while opened.readinto(buffer):
                pass


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gigabytes", type=float, default=1)
    parser.add_argument("--processes", action="store_true", help="workers are processes")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--dtype", default="float32", help="of weights; products are of float32")
    parser.add_argument("--size", type=int, default=4096, help="rows and columns of each weight")
    parser.add_argument("--only", choices=("files", "memory"))
    parser.add_argument("--cold", action="store_true", help="files are read from the disk")
    options = parser.parse_args()
    weight_bytes = options.size**2 * np.dtype(options.dtype).itemsize
    layers = max(4, round(options.gigabytes * 1e9 / weight_bytes / 4) * 4)
    num_bytes = layers * weight_bytes
    kind = "processes" if options.processes else "threads"
    shape = (layers, options.size, options.dtype)
    x = np.random.default_rng(0).standard_normal((1, options.size), "float32")
    ways = [
        way for way, of in (("load", "files"), ("move", "memory")) if options.only in (of, None)
    ]
    times: dict[str, list[float]] = {name: [] for name in (*ways, "copy", "read")}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        source, copy = Path(folder) / "source", Path(folder) / "copy"

        def prepare() -> None:
            touch(num_bytes)
            if options.cold:
                drop_files()

        first = stack.enter_context(dx.Session(MESHES["tp8"], workers=kind))
        old = first.load(executable(*shape, MESHES["tp8"]), params=weights_of(*shape))
        wanted = old(x).numpy()
        saved = timed(old.save_shards, source)
        files = sorted(source.glob("*.safetensors"))
        if options.only == "files":
            first.close()
        exe = executable(*shape, MESHES["tp2 x pp4"])
        session = stack.enter_context(dx.Session(MESHES["tp2 x pp4"], workers=kind))
        for _ in range(options.repeats):
            for name in ways:
                params = source if name == "load" else old.weights()
                prepare()
                begin = time.perf_counter()
                model = session.load(exe, params=params)
                times[name].append(time.perf_counter() - begin)
                found = model(x).numpy()
                np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4 * wanted.std())
                del model
            prepare()
            times["copy"].append(timed(shutil.copytree, source, copy))
            shutil.rmtree(copy)
            if options.cold:
                drop_files()
            times["read"].append(timed(read_all, files))
    title = f"{num_bytes / 1e9:.1f} GB of {options.dtype}, tp8 to tp2 x pp4, workers are {kind}"
    table = Table(title=title)
    for column in ("what", "seconds", "of a copy"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for name, seconds in times.items():
        ratios = [mine / other for mine, other in zip(seconds, times["copy"], strict=True)]
        median, ratio = statistics.median(seconds), statistics.median(ratios)
        table.add_row(TITLES[name], f"{median:.2f}", f"{ratio:.2f}")
    table.add_row("save, before that", f"{saved:.2f}", f"{saved / times['copy'][0]:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
