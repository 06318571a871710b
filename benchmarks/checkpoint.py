"""How fast weights that one mesh saved come up on another one, beside copying the files.

    python benchmarks/checkpoint.py [--gigabytes 1] [--processes] [--repeats 5]

The weights of a chain of products, over tp=8, are saved as the workers hold them, and loaded over
dp=1, tp=2, pp=4: of each weight four pieces become a half, which two workers of one stage hold.
Then they go from one session to the other in memory. Beside it the files are copied within the
same directory, and read into memory once. Runs are
interleaved; times are medians, ratios medians of ratios of neighbouring runs. The loaded weights
are compared with those that were saved. Files are in memory already (the page cache), as after a
restart; whoever reads from a disk waits for that first. Before each of them as much memory as it
takes is touched and given back: a virtual machine may return free memory to its host (free page
reporting of virtio-balloon, after 2 seconds), and who takes it again waits up to ten times as long.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from tvm import relax

import distir_ext as dx

SIZE = 4096
MESHES = {"tp8": dx.Mesh(tp=8), "tp2 x pp4": dx.Mesh(pp=4, tp=2)}


def executable(layers: int, mesh: dx.Mesh) -> object:
    """A chain of products, over tp, and over stages if the mesh has an axis for them."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, SIZE), "float32"))
    weights = [
        relax.Var(f"w{index}", relax.TensorType((SIZE, SIZE), "float32")) for index in range(layers)
    ]
    with builder.function("main", [x, *weights], attrs={"num_input": 1}):
        with builder.dataflow():
            y = x
            for weight in weights:
                y = builder.emit(relax.op.matmul(y, weight))
            y = builder.emit_output(y)
        builder.emit_func_output(y)
    plan = {r"w\d*[02468]": (None, "tp"), r"w\d*[13579]": ("tp", None)}
    mod = dx.annotate(builder.finalize(), mesh, plan)
    if "pp" in mesh.axis_names:
        mod = dx.transform.AssignStages(mesh, "pp")(mod)
    return dx.build(mod)


def touch(num_bytes: int) -> None:
    """Has the system give memory, and gives it back."""
    np.empty(num_bytes, np.uint8).fill(1)


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
    options = parser.parse_args()
    layers = max(4, round(options.gigabytes * 1e9 / (SIZE * SIZE * 4) / 4) * 4)
    num_bytes = layers * SIZE * SIZE * 4
    kind = "processes" if options.processes else "threads"
    rng = np.random.default_rng(0)
    weights = {
        f"w{index}": rng.standard_normal((SIZE, SIZE), "float32") / 64 for index in range(layers)
    }
    x = rng.standard_normal((1, SIZE), "float32")
    with tempfile.TemporaryDirectory() as folder:
        source, copy = Path(folder) / "source", Path(folder) / "copy"
        exe = executable(layers, MESHES["tp2 x pp4"])
        times: dict[str, list[float]] = {"load": [], "move": [], "copy": [], "read": []}
        with (
            dx.Session(MESHES["tp8"], workers=kind) as first,
            dx.Session(MESHES["tp2 x pp4"], workers=kind) as session,
        ):
            old = first.load(executable(layers, MESHES["tp8"]), params=weights)
            del weights
            wanted = old(x).numpy()
            saved = timed(old.save_shards, source)
            files = sorted(source.glob("*.safetensors"))
            for _ in range(options.repeats):
                for name, params in [("load", source), ("move", old.weights())]:
                    touch(num_bytes)
                    begin = time.perf_counter()
                    model = session.load(exe, params=params)
                    times[name].append(time.perf_counter() - begin)
                    np.testing.assert_allclose(model(x).numpy(), wanted, rtol=1e-3, atol=1e-4)
                    del model
                touch(num_bytes)
                times["copy"].append(timed(shutil.copytree, source, copy))
                shutil.rmtree(copy)
                times["read"].append(timed(read_all, files))
    table = Table(title=f"{num_bytes / 1e9:.1f} GB, tp8 to tp2 x pp4, workers are {kind}")
    for column in ("what", "seconds", "of a copy"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for name, title in [
        ("load", "load on the other mesh"),
        ("move", "the same in memory, from the other session"),
        ("copy", "copy the files"),
        ("read", "read the files"),
    ]:
        ratios = [mine / other for mine, other in zip(times[name], times["copy"], strict=True)]
        table.add_row(
            title, f"{statistics.median(times[name]):.2f}", f"{statistics.median(ratios):.2f}"
        )
    table.add_row("save, before that", f"{saved:.2f}", f"{saved / times['copy'][0]:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
