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
from tests.pipelines.target.cuda_source import small_accumulators, source_of

import distir_ext as dx
from distir_ext.gpu_check.programs import programs
from distir_ext.native.machine import nvidia as _nvidia

ROOT = Path(__file__).resolve().parents[3]

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


@pytest.mark.large
@pytest.mark.parametrize(("dtype", "arch"), KERNELS)
def test_kernels_compile_and_add_in_float32(compile_source, dtype, arch):
    exe = dx.build(programs(dtype, MESH), target={"kind": "cuda", "arch": arch})
    source = source_of(exe)
    assert small_accumulators(source) == []
    name = {"float16": "half", "bfloat16": "nv_bfloat16"}[dtype]
    assert f"wmma::matrix_a, 16, 16, 16, {name}, nvcuda::wmma::row_major>" in source
    assert "wmma::accumulator, 16, 16, 16, float>" in source
    assert compile_source(source, arch)[:4] == b"\x7fELF"
