/*!
 * \file runtime/cublaslt/abi.h
 * \brief Declarations of functions of cuBLASLt in use, without its header.
 *
 * Handles are void*, enumerations are int; the values are those of cublasLt.h (12 and 13), with
 * which tests/runtime/collectives/test_nccl_abi.py compares this file where it is installed.
 */
#ifndef DISTIR_RUNTIME_CUBLASLT_ABI_H_
#define DISTIR_RUNTIME_CUBLASLT_ABI_H_

#include <cstddef>
#include <cstdint>

namespace distir::runtime::cublaslt {

using Handle = void*;      // cublasLtHandle_t
using Descriptor = void*;  // cublasLtMatmulDesc_t
using Layout = void*;      // cublasLtMatrixLayout_t
using Preference = void*;  // cublasLtMatmulPreference_t

/*! \brief cublasLtMatmulAlgo_t. */
struct Algorithm {
  uint64_t data[8];
};

/*! \brief cublasLtMatmulHeuristicResult_t. */
struct Heuristic {
  Algorithm algo;
  size_t workspaceSize;
  int state;
  float wavesCount;
  int reserved[4];
};

constexpr int kCublasStatusSuccess = 0;
constexpr int kCublasStatusInvalidValue = 7;
constexpr int kCublasStatusNotSupported = 15;

constexpr int kCublasOpN = 0;
constexpr int kCublasOpT = 1;

constexpr int kCublasCompute32f = 68;
constexpr int kCublasCompute64f = 70;

// cudaDataType
constexpr int kCudaR32f = 0;
constexpr int kCudaR64f = 1;
constexpr int kCudaR16f = 2;
constexpr int kCudaR16bf = 14;

constexpr int kCublasltMatrixLayoutType = 0;
constexpr int kCublasltMatrixLayoutRows = 2;
constexpr int kCublasltMatrixLayoutCols = 3;
constexpr int kCublasltMatrixLayoutLd = 4;
constexpr int kCublasltMatrixLayoutBatchCount = 5;
constexpr int kCublasltMatrixLayoutStridedBatchOffset = 6;

constexpr int kCublasltMatmulDescTransa = 3;
constexpr int kCublasltMatmulDescTransb = 4;
constexpr int kCublasltMatmulDescEpilogue = 7;
constexpr int kCublasltMatmulDescBiasPointer = 8;

constexpr int kCublasltEpilogueDefault = 1;
constexpr int kCublasltEpilogueRelu = 2;
constexpr int kCublasltEpilogueBias = 4;
constexpr int kCublasltEpilogueReluBias = 6;
constexpr int kCublasltEpilogueGelu = 32;
constexpr int kCublasltEpilogueGeluBias = 36;

constexpr int kCublasltMatmulPrefMaxWorkspaceBytes = 1;
constexpr int kCublasltMatmulPrefMinAlignmentABytes = 5;
constexpr int kCublasltMatmulPrefMinAlignmentBBytes = 6;
constexpr int kCublasltMatmulPrefMinAlignmentCBytes = 7;
constexpr int kCublasltMatmulPrefMinAlignmentDBytes = 8;

// FUNCTION(name, type of the result, types of the arguments)
#define DISTIR_CUBLASLT_FUNCTIONS(FUNCTION)                                                    \
  FUNCTION(cublasLtGetVersion, size_t, ())                                                     \
  FUNCTION(cublasLtGetStatusString, const char*, (int))                                        \
  FUNCTION(cublasLtCreate, int, (Handle*))                                                     \
  FUNCTION(cublasLtDestroy, int, (Handle))                                                     \
  FUNCTION(cublasLtMatmulDescCreate, int, (Descriptor*, int, int))                             \
  FUNCTION(cublasLtMatmulDescDestroy, int, (Descriptor))                                       \
  FUNCTION(cublasLtMatmulDescSetAttribute, int, (Descriptor, int, const void*, size_t))        \
  FUNCTION(cublasLtMatrixLayoutCreate, int, (Layout*, int, uint64_t, uint64_t, int64_t))       \
  FUNCTION(cublasLtMatrixLayoutDestroy, int, (Layout))                                         \
  FUNCTION(cublasLtMatrixLayoutSetAttribute, int, (Layout, int, const void*, size_t))          \
  FUNCTION(cublasLtMatmulPreferenceCreate, int, (Preference*))                                 \
  FUNCTION(cublasLtMatmulPreferenceDestroy, int, (Preference))                                 \
  FUNCTION(cublasLtMatmulPreferenceSetAttribute, int, (Preference, int, const void*, size_t))  \
  FUNCTION(                                                                                    \
      cublasLtMatmulAlgoGetHeuristic, int,                                                     \
      (Handle, Descriptor, Layout, Layout, Layout, Layout, Preference, int, Heuristic*, int*)) \
  FUNCTION(                                                                                    \
      cublasLtMatmul, int,                                                                     \
      (Handle, Descriptor, const void*, const void*, Layout, const void*, Layout, const void*, \
       const void*, Layout, void*, Layout, const Algorithm*, void*, size_t, void*))

#define DISTIR_DECLARE(name, Result, Arguments) Result(*name) Arguments = nullptr;

/*! \brief Addresses of cuBLASLt's functions. */
struct CublasLtFunctions {
  DISTIR_CUBLASLT_FUNCTIONS(DISTIR_DECLARE)
};

#undef DISTIR_DECLARE

}  // namespace distir::runtime::cublaslt

#endif  // DISTIR_RUNTIME_CUBLASLT_ABI_H_
