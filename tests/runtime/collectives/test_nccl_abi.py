"""The declarations of NCCL, CUDA's runtime and cuBLASLt say the same as their headers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from distir_ext.native.machine import nvidia as _nvidia

ROOT = Path(__file__).parents[3]

# Two signatures are alike if results and arguments are passed alike: by size, pointers as pointers.
CHECKER = """
#include <type_traits>
#include "runtime/communicators/nccl/abi.h"
#include "runtime/cublaslt/abi.h"
namespace ours = distir::runtime::nccl;
using namespace ours;
namespace lt = distir::runtime::cublaslt;
template <typename A, typename B>
constexpr bool kAlike = sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B> &&
                        std::is_class_v<A> == std::is_class_v<B>;
template <typename Ours, typename Theirs>
struct Same : std::false_type {};
template <typename R, typename... A, typename S, typename... B>
struct Same<R (*)(A...), S (*)(B...)> {
  template <typename... P>
  static constexpr bool All() {
    if constexpr (sizeof...(A) == sizeof...(B)) return kAlike<R, S> && (kAlike<A, B> && ...);
    return false;
  }
  static constexpr bool value = All();
};
#define CHECK(name, Result, Arguments) \\
  static_assert(Same<Result(*) Arguments, decltype(&::name)>::value, #name);
"""

# nccl.h includes CUDA's C++ header, where some functions are overloaded.
PARTS = {
    "nccl.h": (
        "DISTIR_NCCL_FUNCTIONS(CHECK)\nstatic_assert(sizeof(UniqueId) == sizeof(ncclUniqueId));"
        "\nstatic_assert(kNcclSplitNoColor == NCCL_SPLIT_NOCOLOR);"
        "\nstatic_assert(kNcclUndefined == NCCL_CONFIG_UNDEF_INT);"
        "\nstatic_assert(kNcclMagic == NCCL_API_MAGIC);"
        "\nstatic_assert(offsetof(Config, splitShare) == offsetof(ncclConfig_t, splitShare));"
        "\n#if NCCL_VERSION_CODE >= 22800\nDISTIR_OPTIONAL_NCCL_FUNCTIONS(CHECK)\n#endif",
        [
            *(
                "Success",
                "InternalError",
                "RemoteError",
                "InProgress",
                "Sum",
                "Prod",
                "Max",
                "Min",
                "Avg",
            ),
            *("Int8", "Uint8", "Int32", "Uint32", "Int64", "Uint64"),
            *("Float16", "Float32", "Float64", "Bfloat16", "Float8e4m3", "Float8e5m2"),
        ],
    ),
    "cuda_runtime_api.h": (
        "DISTIR_CUDA_FUNCTIONS(CHECK)"
        "\nstatic_assert(offsetof(cudaDeviceProp, uuid) == kOffsetOfUuid);"
        "\nstatic_assert(sizeof(cudaDeviceProp::uuid) == kBytesOfUuid);"
        "\nstatic_assert(sizeof(cudaDeviceProp) <= kMostBytesOfDeviceProperties);",
        [
            "Success",
            "ErrorInsufficientDriver",
            "ErrorNoDevice",
            "ErrorNotReady",
            "StreamDefault",
            "EventDisableTiming",
            "HostAllocDefault",
            "StreamCaptureStatusNone",
            "MemcpyHostToDevice",
            "MemcpyDeviceToHost",
            "MemcpyDeviceToDevice",
            "MemPoolAttrReleaseThreshold",
        ],
    ),
    "cublasLt.h": (
        "using namespace lt;\nDISTIR_CUBLASLT_FUNCTIONS(CHECK)"
        "\nstatic_assert(sizeof(Algorithm) == sizeof(cublasLtMatmulAlgo_t));"
        "\nstatic_assert(sizeof(Heuristic) == sizeof(cublasLtMatmulHeuristicResult_t));"
        "\nstatic_assert(offsetof(Heuristic, workspaceSize) =="
        " offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));",
        [],
    ),
}

# Constants of cuBLASLt by the name in its header: k, and the same in camel case.
CUBLASLT_CONSTANTS = [
    *(f"CUBLAS_STATUS_{name}" for name in ("SUCCESS", "INVALID_VALUE", "NOT_SUPPORTED")),
    *("CUBLAS_OP_N", "CUBLAS_OP_T", "CUBLAS_COMPUTE_32F", "CUBLAS_COMPUTE_64F"),
    *("CUDA_R_32F", "CUDA_R_64F", "CUDA_R_16F", "CUDA_R_16BF"),
    *(f"CUBLASLT_MATRIX_LAYOUT_{name}" for name in ("TYPE", "ROWS", "COLS", "LD", "BATCH_COUNT")),
    "CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET",
    *(f"CUBLASLT_MATMUL_DESC_{name}" for name in ("TRANSA", "TRANSB", "EPILOGUE", "BIAS_POINTER")),
    *(
        f"CUBLASLT_EPILOGUE_{name}"
        for name in ("DEFAULT", "RELU", "BIAS", "RELU_BIAS", "GELU", "GELU_BIAS")
    ),
    "CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES",
    *(f"CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_{name}_BYTES" for name in "ABCD"),
]


def camel_case(name):
    return "".join(part[0].upper() + part[1:].lower() for part in name.split("_"))


def header_folders():
    """Include folders of packages and of the system."""
    roots = [*_nvidia.package_roots(), Path("/usr"), Path("/usr/local"), Path("/usr/local/cuda")]
    folders = [folder for root in roots for folder in [root / "include", *root.glob("*/include")]]
    return [folder for folder in folders if folder.is_dir()]


def compiles(header, source):
    folders = header_folders()
    if not any((folder / header).is_file() for folder in folders):
        pytest.skip(f"{header} is not installed")
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    run = subprocess.run(
        [compiler, "-std=c++17", "-fsyntax-only", "-x", "c++", "-", f"-I{ROOT / 'src'}"]
        + [f"-idirafter{folder}" for folder in folders],
        input=source,
        text=True,
        capture_output=True,
        check=False,
    )
    return run.returncode == 0, run.stderr


def checks(header):
    functions, constants = PARTS[header]
    library = "nccl" if header == "nccl.h" else "cuda"
    values = [
        f"static_assert(ours::k{library.title()}{name} == static_cast<int>({library}{name}));"
        for name in constants
    ]
    if header == "cublasLt.h":
        values = [
            f"static_assert(lt::k{camel_case(name)} == static_cast<int>({name}));"
            for name in CUBLASLT_CONSTANTS
        ]
    return "\n".join([f"#include <{header}>", CHECKER, functions, *values])


@pytest.mark.parametrize("header", PARTS)
def test_declarations_are_those_of_the_header(header):
    compiled, errors = compiles(header, checks(header))
    assert compiled, errors


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("NcclSum == static_cast<int>(ncclSum", "NcclSum == static_cast<int>(ncclProd")],
)
def test_check_notices_a_wrong_constant(wrong, right):
    source = checks("nccl.h")
    assert wrong in source
    compiled, _ = compiles("nccl.h", source.replace(wrong, right))
    assert not compiled


def test_check_notices_a_wrong_signature():
    source = checks("cuda_runtime_api.h")
    wrong = source + "\nstatic_assert(Same<int (*)(int), decltype(&cudaGetDeviceCount)>::value);"
    compiled, errors = compiles("cuda_runtime_api.h", wrong)
    assert not compiled
    assert "static assertion failed" in errors
