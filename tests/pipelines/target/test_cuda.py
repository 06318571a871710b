"""dx.build for GPUs, on any machine: kernels of per-worker size, and collectives between them."""

from __future__ import annotations

import json
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import tvm
import tvm_ffi
from tests.optimize.experts import Experts
from tests.pipelines.target.cuda_source import source_of
from tests.stages.programs import chain
from tvm import relax
from tvm.s_tir.dlight.gpu import matmul
from tvm.script import ir as I
from tvm.script import relax as R

import distir_ext as dx
from distir_ext.compile import gpu
from distir_ext.compile.kernels.cuda import bfloat16_products
from distir_ext.demo import llama
from distir_ext.native.executables import executable_module, pack
from distir_ext.native.machine import nvidia as _nvidia
from distir_ext.session.model import _read_signature

TARGETS = ["cuda", {"kind": "cuda", "arch": "sm_90"}, "nvidia/nvidia-h100"]


@I.ir_module
class MLP:
    @R.function
    def main(
        x: R.Tensor((8, 64), "float16"),
        up: R.Tensor((64, 256), "float16"),
        down: R.Tensor((256, 64), "float16"),
    ) -> R.Tensor((8, 64), "float16"):
        R.func_attr({"num_input": 1})
        h = R.nn.gelu(R.matmul(x, up))
        return R.matmul(h, down)


def annotated(shape=(2, 2)):
    mesh = dx.Mesh(shape, ("dp", "tp"))
    plan = {"x": ("dp", None), "up": (None, "tp"), "down": ("tp", None)}
    return dx.annotate(MLP, mesh, plan)


def collectives(exe):
    return re.findall(r"call +distir\.runtime\.(\w+)", exe.as_text())


def partitions(exe):
    machine = relax.VirtualMachine(exe, tvm.cpu())
    return sorted(json.loads(str(machine["distir_signature"]()))["partitions"])


def buffers(exe):
    """Shapes of the buffers that the executable allocates."""
    shapes = re.findall(r"shapetuple\[([\d, ]+)\]", exe.stats())
    return {tuple(int(size) for size in shape.split(",")) for shape in shapes}


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_builds_without_a_gpu(target):
    exe = dx.build(annotated(), target=target)
    assert "__global__" in source_of(exe)
    assert collectives(exe) == ["all_reduce"]


@pytest.mark.parametrize(
    ("shape", "hidden", "result"),
    [((2, 2), (4, 128), (4, 64)), ((1, 4), (8, 64), (8, 64)), ((4, 1), (2, 256), (2, 64))],
    ids=str,
)
def test_buffers_are_a_workers_part(shape, hidden, result):
    exe = dx.build(annotated(shape), target="cuda")
    assert {hidden, result} <= buffers(exe)
    whole = {(8, 256), (8, 64)} - {hidden, result}
    assert not whole & buffers(exe)
    assert collectives(exe) == (["all_reduce"] if shape[1] > 1 else [])


def test_buffers_lie_on_the_device():
    """Device 0 of a virtual machine is the GPU, 1 the host."""
    text = dx.build(annotated(), target="cuda").as_text()
    storages = re.findall(r"alloc_storage +in: %vm, c\[\d+\], (i\d+)", text)
    assert storages
    assert set(storages) == {"i0"}


@pytest.mark.parametrize(
    ("shape", "names"),
    [((2,), ("tp",)), ((4,), ("tp",)), ((2, 2), ("dp", "tp"))],
    ids=str,
)
def test_llama(shape, names):
    config = llama.LlamaConfig(layers=1)
    mod, _ = llama.export(config)
    mesh = dx.Mesh(shape, names)
    plan = {
        pattern: dims and tuple(axis if axis in names else None for axis in dims)
        for pattern, dims in llama.PLAN.items()
    }
    exe = dx.build(dx.annotate(mod, mesh, plan, func="forward"), target="nvidia/nvidia-h100")
    sizes = dict(zip(names, shape, strict=True))
    # One after attention and one after the feed-forward network.
    assert collectives(exe) == ["all_reduce"] * 2
    batch = config.batch // sizes.get("dp", 1)
    width = config.feed_forward // sizes["tp"]
    assert (batch, config.sequence, width) in buffers(exe)
    assert not any(each[-1] == config.feed_forward for each in buffers(exe))


def test_signature_lists_groups_that_communicate():
    """Of all stages; transfers between them are not in groups."""
    exe = dx.build(annotated())
    mesh = dx.Mesh((2, 2), ("pp", "tp"))
    plan = {r"w[02]": (None, "tp"), r"w[13]": ("tp", None)}
    stages = dx.annotate(chain([8, 16, 8, 16, 8]), mesh, plan)
    of_stages = dx.build(dx.transform.AssignStages(mesh, "pp")(stages))
    assert partitions(exe) == [[[0, 1], [2, 3]]]
    assert partitions(of_stages) == [[[0, 1]], [[2, 3]]]


@pytest.mark.skipif(
    tvm_ffi.get_global_func("device_api.cuda", allow_missing=True) is not None,
    reason="TVM's CUDA runtime is loaded",
)
def test_controller_needs_no_gpu():
    """It reads the signature, and makes what it sends to workers on other hosts."""
    exe = dx.build(annotated(), target="cuda")
    module = executable_module(exe)
    assert _read_signature(exe, module).device_ids == (0, 1, 2, 3)
    assert pack(exe, module)["files"]


def test_kernels_compile():
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90"})
    source = source_of(dx.build(annotated(), target=target))
    with target:
        binary = tvm_ffi.get_global_func("tvm_callback_cuda_compile")(source)
    assert len(binary) > 1000


def test_target_without_architecture(monkeypatch):
    monkeypatch.setattr(tvm, "cuda", lambda device: SimpleNamespace(exist=False))
    assumed = {"kind": "cuda", "max_shared_memory_per_block": 49152}
    assert _nvidia.resolve_target("cuda") == {**assumed, "arch": _nvidia.DEFAULT_ARCH}
    for target in (
        {"kind": "cuda"},
        {"kind": "cuda", "arch": "sm_75"},
        {"kind": "cuda", "max_shared_memory_per_block": 65536},
    ):
        resolved = {**assumed, "arch": _nvidia.DEFAULT_ARCH, **target}
        assert _nvidia.resolve_target(target) == resolved
    for given in ("llvm", "nvidia/nvidia-h100"):
        assert _nvidia.resolve_target(given) == given
    monkeypatch.setattr(tvm, "cuda", lambda device: SimpleNamespace(exist=True))
    assert _nvidia.resolve_target("cuda") == {"kind": "cuda"}  # TVM asks the device


def product(dtype):
    builder = relax.BlockBuilder()
    x, w = (relax.Var(name, relax.TensorType((128, 128), dtype)) for name in "xw")
    with builder.function("main", [x, w]):
        builder.emit_func_output(builder.emit(relax.op.matmul(x, w)))
    return dx.annotate(builder.get(), dx.Mesh((1,), ("x",)), {"x": (None, None)})


@pytest.mark.parametrize("target", ["nvidia/nvidia-h100", {"kind": "cuda", "arch": "sm_100a"}])
def test_architectures_with_a_suffix_have_tensor_cores(target):
    source = source_of(dx.build(product("float16"), target=target))
    assert "wmma::accumulator, 16, 16, 16, float>" in source


def test_products_of_bfloat16_are_those_of_float16_but_for_the_type():
    """On tensor cores, which take bfloat16 from sm_80 on; before they are computed without."""
    target = {"kind": "cuda", "arch": "sm_80"}
    ours, theirs = (kernels_of(product(dtype), target) for dtype in ("bfloat16", "float16"))
    assert "nvcuda::wmma::mma_sync" in ours
    assert ours.replace("nv_bfloat16", "half") == theirs
    older = kernels_of(product("bfloat16"), {"kind": "cuda", "arch": "sm_75"})
    assert "wmma" not in older


def test_other_threads_get_answers_of_tvm():
    """The substitution of float16 for bfloat16 in one thread does not affect other threads."""

    def block(read, written):
        places = ([SimpleNamespace(source=SimpleNamespace(dtype=each))] for each in (read, written))
        return SimpleNamespace(**dict(zip(("reads", "writes"), places, strict=True)))

    kernels_of(product("bfloat16"), {"kind": "cuda", "arch": "sm_80"})  # loads the intrinsics
    of_bfloat16 = block("bfloat16", "float32")
    with bfloat16_products._taken_for_float16(), ThreadPoolExecutor(1) as pool:
        assert matmul.get_in_out_dtypes(of_bfloat16) == ("float16", "float32")
        other = pool.submit(matmul.get_in_out_dtypes, of_bfloat16).result()
        assert tuple(map(str, other)) == ("bfloat16", "float32")
        assert matmul.get_in_out_dtypes(block("int8", "int32")) == ("int8", "int32")
    assert matmul.get_in_out_dtypes.__module__ == matmul.__name__


def kernels_of(mod, target):
    """Source of kernels, without the headers that depend on types."""
    return source_of(dx.build(mod, target=target)).split('extern "C" __global__', 1)[1]


@I.ir_module
class Tuples:
    @R.function
    def main(x: R.Tensor((4, 4), "float32")):
        with R.dataflow():
            pair = (x, x)
            nested = (pair, x)
            first = nested[0]
            second = first[1]
            R.output(nested, second)
        return (nested, second)


def test_nested_tuples_are_compiled_unfused():
    """TVM cannot fuse them (tests/packaging/test_tvm_defects.py)."""
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_80"})
    assert tvm.compile(Tuples, target=target, relax_pipeline=gpu.pipeline(target)) is not None


@pytest.mark.parametrize("arch", ["sm_20", "sm_999", "sm_80a", "sm_90f", "foo", "", "90"])
def test_an_architecture_that_the_compiler_does_not_know(arch):
    message = (
        rf'architecture is "{arch}"; NVRTC 13\.\d+ compiles for sm_75, sm_80, .*sm_90, .*State '
    )
    for target in ({"kind": "cuda", "arch": arch}, {"kind": "cuda", "arch": arch, "tag": ""}):
        with pytest.raises(ValueError, match=message):
            dx.build(annotated(), target=target)


def test_an_architecture_of_a_gpu_that_is_newer_than_the_compiler():
    """An executable is compiled where it is loaded."""
    with (
        tvm.target.Target({"kind": "cuda", "arch": "sm_999"}),
        pytest.raises(
            ValueError, match=r'"sm_999"; NVRTC .* install a CUDA compiler that knows it'
        ),
    ):
        tvm_ffi.get_global_func("tvm_callback_cuda_compile")("")


def test_architectures_of_nvcc(no_compiler, monkeypatch, tmp_path):
    nvcc = tmp_path / "nvcc"
    nvcc.write_text(
        """#!/bin/sh
        if [ "$1" = --list-gpu-arch ]; then printf 'compute_75\\ncompute_90\\n'
        else echo 'Cuda compilation tools, release 13.0, V13.0.88'; fi"""
    )
    nvcc.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(shutil, "which", lambda name: str(nvcc))
    _nvidia.check_architecture("sm_90a")
    with pytest.raises(ValueError, match=r'"sm_80"; nvcc 13\.0 compiles for sm_75, sm_90\. '):
        _nvidia.check_architecture("sm_80")


def test_architectures_without_a_compiler(no_compiler):
    """The host that loads the executable may have a newer compiler."""
    _nvidia.check_architecture("sm_999")
    with pytest.raises(ValueError, match=r'"sm_70"; CUDA 13 compiles for sm_75 and later\. '):
        _nvidia.check_architecture("sm_70")


COMPILER_VARIABLES = ("TVM_CUDA_COMPILE_MODE", "CUDA_PATH", "TVM_CUDA_NVRTC_EXTRA_OPTS")


@pytest.fixture
def no_compiler(monkeypatch):
    for name in COMPILER_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(_nvidia, "package_roots", lambda: [])
    monkeypatch.setattr(_nvidia, "_has_module", lambda name: False)
    monkeypatch.setattr(shutil, "which", lambda name: None)


def settings():
    return {name: os.environ[name] for name in COMPILER_VARIABLES if name in os.environ}


def test_compiler_of_packages(no_compiler, monkeypatch, tmp_path):
    (tmp_path / "cu13" / "include" / "cccl").mkdir(parents=True)
    (tmp_path / "cu13" / "include" / "crt").mkdir()
    for name in ("cuda_runtime.h", "crt/mma.h"):
        (tmp_path / "cu13" / "include" / name).touch()
    monkeypatch.setattr(_nvidia, "package_roots", lambda: [tmp_path])
    monkeypatch.setattr(_nvidia, "_has_module", lambda name: True)
    with _nvidia.compiler():
        assert settings() == {
            "TVM_CUDA_COMPILE_MODE": "nvrtc",
            "CUDA_PATH": str(tmp_path / "cu13"),
            "TVM_CUDA_NVRTC_EXTRA_OPTS": f"-I{tmp_path / 'cu13' / 'include' / 'cccl'}",
        }
    assert settings() == {}


def test_nvcc_where_nvrtc_is_not(no_compiler, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: "/cuda/bin/nvcc")
    with _nvidia.compiler():
        assert settings() == {"TVM_CUDA_COMPILE_MODE": "nvcc"}
    assert settings() == {}


def test_settings_of_the_user_stay(no_compiler, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: "/cuda/bin/nvcc")
    monkeypatch.setenv("TVM_CUDA_COMPILE_MODE", "nvrtc")
    with _nvidia.compiler():
        assert settings() == {"TVM_CUDA_COMPILE_MODE": "nvrtc"}


def test_no_compiler_at_all(no_compiler):
    with _nvidia.compiler():
        assert settings() == {}


@pytest.mark.parametrize("tokens", [("ep", None), (None, None)], ids=["sharded", "replicated"])
def test_experts_are_gathered(tokens):
    """Tokens are dispatched by CPU workers only; a module that does so already is refused."""
    plan = dict.fromkeys(("x", "ids", "scores"), tokens) | {"up": ("ep", None, None)}
    mod = dx.annotate(Experts(products=1).module(), dx.Mesh(ep=8), plan)
    sent = dx.analysis.collectives(dx.build(mod, target="nvidia/nvidia-h100"))
    assert {each.kind for each in sent} <= {"all_gather", "all_reduce"}
    with pytest.raises(ValueError, match=r'OptimizeCollectives\(disable="dispatch_experts"\)'):
        dx.build(dx.lower(mod), target="nvidia/nvidia-h100")
