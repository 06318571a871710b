"""Programs of small floats for GPUs, built without one: all kernels compile, and add in float32.

They are compiled by the packages that ``distir-ext[cuda]`` declares, and by nothing else.
"""

from __future__ import annotations

import importlib.metadata
import re
import shutil
from pathlib import Path

import pytest
import tvm
import tvm_ffi
from tests.pipelines.cuda_source import small_accumulators, source_of
from tvm import relax
from tvm.relax import op

import distir_ext as dx
from distir_ext import _nvidia

ROOT = Path(__file__).resolve().parents[2]

# The small sample has each type and each architecture.
KERNELS = [
    ("float16", "sm_80"),
    ("bfloat16", "sm_90"),
    ("float16", "sm_100"),
    *(
        pytest.param(*pair, marks=pytest.mark.large)
        for pair in [("bfloat16", "sm_80"), ("float16", "sm_90"), ("bfloat16", "sm_100")]
    ),
]
MESH = dx.Mesh((2,), ("tp",))

# Llama 3 8B (arXiv:2407.21783, table 3); rows of a prefill, and what was there before.
HIDDEN, HEADS, KV_HEADS, FEED_FORWARD = 4096, 32, 8, 14336
ROWS, PAST = 128, 128
SIZE = HIDDEN // HEADS

LAYER = {
    "norm1": (HIDDEN,),
    "q": (HIDDEN, HIDDEN),
    "k": (HIDDEN, KV_HEADS * SIZE),
    "v": (HIDDEN, KV_HEADS * SIZE),
    "o": (HIDDEN, HIDDEN),
    "norm2": (HIDDEN,),
    "gate": (HIDDEN, FEED_FORWARD),
    "up": (HIDDEN, FEED_FORWARD),
    "down": (FEED_FORWARD, HIDDEN),
}

PLAN = {"q|k|v|gate|up|w": (None, "tp"), "o|down": ("tp", None), "image": ("tp", None, None, None)}


def product(x, w):
    """128 x 256 x 128 on each worker."""
    return op.matmul(x, w)


def emit(value):
    return relax.BlockBuilder.current().emit(value)


def rotated(x, cos, sin):
    halves = emit(op.split(x, 2, axis=-1))
    left, right = emit(halves[0]), emit(halves[1])
    first = op.subtract(op.multiply(left, cos), op.multiply(right, sin))
    second = op.add(op.multiply(right, cos), op.multiply(left, sin))
    return op.concat([first, second], axis=-1)


def layer(x, cos, sin, past_keys, past_values, norm1, q, k, v, o, norm2, gate, up, down):
    """Of a Llama: grouped-query attention with rotary embedding, SwiGLU."""
    rows = x.ty.shape.values[0]
    group = HEADS // KV_HEADS
    h = emit(op.nn.rms_norm(x, norm1, [-1]))
    queries = op.reshape(op.matmul(h, q), (rows, KV_HEADS, group, SIZE))
    keys = op.reshape(op.matmul(h, k), (rows, KV_HEADS, 1, SIZE))
    values = op.reshape(op.matmul(h, v), (rows, KV_HEADS, 1, SIZE))
    queries = op.permute_dims(rotated(queries, cos, sin), [1, 2, 0, 3])
    keys = op.permute_dims(rotated(keys, cos, sin), [1, 2, 3, 0])
    keys = op.concat([past_keys, keys], axis=-1)
    values = op.concat([past_values, op.permute_dims(values, [1, 2, 0, 3])], axis=2)
    scores = op.nn.softmax(op.matmul(queries, keys))
    mixed = op.matmul(scores, values)
    mixed = op.reshape(op.permute_dims(mixed, [2, 0, 1, 3]), (rows, HIDDEN))
    x = emit(op.add(x, op.matmul(mixed, o)))
    h = emit(op.nn.rms_norm(x, norm2, [-1]))
    h = op.multiply(op.nn.silu(emit(op.matmul(h, gate))), op.matmul(h, up))
    return op.add(x, op.matmul(h, down))


def convolutions(image, kernel1, kernel2, dense):
    h = op.nn.relu(op.nn.conv2d(image, kernel1, padding=1))
    h = op.nn.avg_pool2d(op.nn.relu(op.nn.conv2d(h, kernel2, strides=2, padding=1)), 2, 2)
    return op.nn.softmax(op.matmul(op.mean(h, [2, 3]), dense))


def layer_of(rows):
    shapes = {"x": (rows, HIDDEN), "cos": (rows, 1, 1, SIZE // 2), "sin": (rows, 1, 1, SIZE // 2)}
    shapes["past_keys"] = (KV_HEADS, 1, SIZE, PAST)
    shapes["past_values"] = (KV_HEADS, 1, PAST, SIZE)
    return layer, {**shapes, **LAYER}


PROGRAMS = {
    "product": (product, {"x": (128, 256), "w": (256, 256)}),
    "prefill": layer_of(ROWS),
    "decode": layer_of(1),
    "convolutions": (
        convolutions,
        {
            "image": (4, 64, 16, 16),
            "kernel1": (128, 64, 3, 3),
            "kernel2": (128, 128, 3, 3),
            "dense": (128, 100),
        },
    ),
}


def programs(dtype):
    """All of them in one module, so that one compilation serves all."""
    mod = tvm.IRModule()
    for name, (make, shapes) in PROGRAMS.items():
        builder = relax.BlockBuilder()
        params = [relax.Var(each, relax.TensorType(size, dtype)) for each, size in shapes.items()]
        with builder.function(name, params):
            with builder.dataflow():
                result = builder.emit_output(builder.normalize(make(*params)))
            builder.emit_func_output(result)
        mod[name] = builder.get()[name]
    for name, (_, shapes) in PROGRAMS.items():
        plan = {
            key: dims for key, dims in PLAN.items() if any(map(re.compile(key).fullmatch, shapes))
        }
        mod = dx.annotate(mod, MESH, plan, func=name)
    return mod


def declared_packages():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (listed,) = re.findall(r"^nvrtc = \[(.*?)\]", text, re.DOTALL | re.MULTILINE)
    return re.findall(r'"([\w-]+)', listed)


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """A folder with the headers of these packages alone, and the files of all of them."""
    root = tmp_path_factory.mktemp("nvidia")
    files = []
    for name in declared_packages():
        for file in importlib.metadata.files(name):
            files.append(Path(file.locate()).resolve())
            if file.parts[0] == "nvidia" and "include" in file.parts:
                target = root.joinpath(*file.parts[1:])
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(file.locate())
    return root, set(files)


@pytest.fixture
def compile_source(packages, monkeypatch):
    """Compiles CUDA source by the declared packages."""
    root, files = packages
    for name in ("TVM_CUDA_COMPILE_MODE", "CUDA_PATH", "TVM_CUDA_NVRTC_EXTRA_OPTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(_nvidia, "package_roots", lambda: [root])
    monkeypatch.setattr(shutil, "which", lambda name: None)

    def run(source, arch):
        with tvm.target.Target({"kind": "cuda", "arch": arch}):
            binary = tvm_ffi.get_global_func("tvm_callback_cuda_compile")(source)
        with _nvidia.compiler():
            assert _nvidia._headers().parent == root  # and not those of a toolkit
        maps = Path("/proc/self/maps").read_text(encoding="utf-8")
        assert {Path(each) for each in re.findall(r"/\S+libnvrtc\.so\S*", maps)} <= files
        return binary

    return run


@pytest.mark.parametrize(("dtype", "arch"), KERNELS)
def test_kernels_compile_and_add_in_float32(compile_source, dtype, arch):
    exe = dx.build(programs(dtype), target={"kind": "cuda", "arch": arch})
    source = source_of(exe)
    assert small_accumulators(source) == []
    # TVM's schedules have tensor cores for half floats.
    assert ("wmma::mma_sync" in source) == (dtype == "float16")
    assert compile_source(source, arch)[:4] == b"\x7fELF"
