/*!
 * \file runtime/communicators/nccl/abi.h
 * \brief Declarations of functions of NCCL and of CUDA's runtime in use, without their headers.
 *
 * Both are loaded when a session asks for them, so one build of this library works with and
 * without a GPU. Handles are void*, enumerations are int; the values are those of nccl.h (NCCL 2)
 * and cuda_runtime_api.h (CUDA 12 and 13). tests/runtime/collectives/test_nccl_abi.py compares this
 * file with the real headers where they are installed.
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_NCCL_ABI_H_
#define DISTIR_RUNTIME_COMMUNICATORS_NCCL_ABI_H_

#include <cstddef>

namespace distir::runtime::nccl {

using Comm = void*;    // ncclComm_t
using Stream = void*;  // cudaStream_t
using Event = void*;   // cudaEvent_t

/*! \brief ncclUniqueId: passed by value. */
struct UniqueId {
  char internal[128];
};

/*! \brief The first fields of ncclConfig_t, as NCCL 2.18 has them; later ones keep defaults. */
struct Config {
  std::size_t size;
  unsigned int magic;
  unsigned int version;
  int blocking;
  int cgaClusterSize;
  int minCTAs;
  int maxCTAs;
  const char* netName;
  int splitShare;
};

constexpr unsigned int kNcclMagic = 0xcafebeef;       // NCCL_API_MAGIC
constexpr unsigned int kNcclVersionOfConfig = 21800;  // what Config is the ncclConfig_t of
constexpr int kNcclUndefined = -2147483647 - 1;       // NCCL_CONFIG_UNDEF_INT

constexpr int kNcclSuccess = 0;
constexpr int kNcclInternalError = 3;
constexpr int kNcclRemoteError = 6;
constexpr int kNcclInProgress = 7;

constexpr int kNcclSplitNoColor = -1;  // NCCL_SPLIT_NOCOLOR

constexpr int kNcclInt8 = 0;
constexpr int kNcclUint8 = 1;
constexpr int kNcclInt32 = 2;
constexpr int kNcclUint32 = 3;
constexpr int kNcclInt64 = 4;
constexpr int kNcclUint64 = 5;
constexpr int kNcclFloat16 = 6;
constexpr int kNcclFloat32 = 7;
constexpr int kNcclFloat64 = 8;
constexpr int kNcclBfloat16 = 9;
constexpr int kNcclFloat8e4m3 = 10;
constexpr int kNcclFloat8e5m2 = 11;

constexpr int kNcclSum = 0;
constexpr int kNcclProd = 1;
constexpr int kNcclMax = 2;
constexpr int kNcclMin = 3;
constexpr int kNcclAvg = 4;

constexpr int kCudaSuccess = 0;
constexpr int kCudaErrorInsufficientDriver = 35;
constexpr int kCudaErrorNoDevice = 100;
constexpr int kCudaErrorNotReady = 600;
constexpr int kCudaStreamDefault = 0;
constexpr int kCudaEventDisableTiming = 2;
constexpr int kCudaHostAllocDefault = 0;
constexpr int kCudaStreamCaptureStatusNone = 0;
constexpr int kCudaMemcpyHostToDevice = 1;
constexpr int kCudaMemcpyDeviceToHost = 2;
constexpr int kCudaMemcpyDeviceToDevice = 3;
constexpr int kCudaMemPoolAttrReleaseThreshold = 4;

// Offset of a device's UUID in cudaDeviceProp: behind its name, in each version of CUDA.
constexpr std::size_t kOffsetOfUuid = 256;
constexpr std::size_t kBytesOfUuid = 16;
constexpr std::size_t kMostBytesOfDeviceProperties = 8192;

// FUNCTION(name, type of the result, types of the arguments)
#define DISTIR_NCCL_FUNCTIONS(FUNCTION)                                                       \
  FUNCTION(ncclGetErrorString, const char*, (int))                                            \
  FUNCTION(ncclGetLastError, const char*, (Comm))                                             \
  FUNCTION(ncclGetUniqueId, int, (UniqueId*))                                                 \
  FUNCTION(ncclGetVersion, int, (int*))                                                       \
  FUNCTION(ncclCommInitRankConfig, int, (Comm*, int, UniqueId, int, Config*))                 \
  FUNCTION(ncclCommSplit, int, (Comm, int, int, Comm*, Config*))                              \
  FUNCTION(ncclCommDestroy, int, (Comm))                                                      \
  FUNCTION(ncclCommAbort, int, (Comm))                                                        \
  FUNCTION(ncclCommGetAsyncError, int, (Comm, int*))                                          \
  FUNCTION(ncclAllReduce, int, (const void*, void*, std::size_t, int, int, Comm, Stream))     \
  FUNCTION(ncclAllGather, int, (const void*, void*, std::size_t, int, Comm, Stream))          \
  FUNCTION(ncclReduceScatter, int, (const void*, void*, std::size_t, int, int, Comm, Stream)) \
  FUNCTION(ncclSend, int, (const void*, std::size_t, int, int, Comm, Stream))                 \
  FUNCTION(ncclRecv, int, (void*, std::size_t, int, int, Comm, Stream))                       \
  FUNCTION(ncclGroupStart, int, ())                                                           \
  FUNCTION(ncclGroupEnd, int, ())

// Those that not every NCCL has; null where it does not.
#define DISTIR_OPTIONAL_NCCL_FUNCTIONS(FUNCTION) FUNCTION(ncclCommRevoke, int, (Comm, int))

#define DISTIR_CUDA_FUNCTIONS(FUNCTION)                                                           \
  FUNCTION(cudaGetErrorString, const char*, (int))                                                \
  FUNCTION(cudaGetDeviceCount, int, (int*))                                                       \
  FUNCTION(cudaSetDevice, int, (int))                                                             \
  FUNCTION(cudaGetDevice, int, (int*))                                                            \
  FUNCTION(cudaGetDeviceProperties, int, (void*, int))                                            \
  FUNCTION(cudaRuntimeGetVersion, int, (int*))                                                    \
  FUNCTION(cudaDriverGetVersion, int, (int*))                                                     \
  FUNCTION(cudaStreamCreateWithFlags, int, (Stream*, unsigned int))                               \
  FUNCTION(cudaStreamDestroy, int, (Stream))                                                      \
  FUNCTION(cudaStreamQuery, int, (Stream))                                                        \
  FUNCTION(cudaStreamSynchronize, int, (Stream))                                                  \
  FUNCTION(cudaStreamIsCapturing, int, (Stream, int*))                                            \
  FUNCTION(cudaEventCreateWithFlags, int, (Event*, unsigned int))                                 \
  FUNCTION(cudaEventRecord, int, (Event, Stream))                                                 \
  FUNCTION(cudaEventQuery, int, (Event))                                                          \
  FUNCTION(cudaEventDestroy, int, (Event))                                                        \
  FUNCTION(cudaHostAlloc, int, (void**, std::size_t, unsigned int))                               \
  FUNCTION(cudaFreeHost, int, (void*))                                                            \
  FUNCTION(cudaMalloc, int, (void**, std::size_t))                                                \
  FUNCTION(cudaFree, int, (void*))                                                                \
  FUNCTION(cudaMallocAsync, int, (void**, std::size_t, Stream))                                   \
  FUNCTION(cudaFreeAsync, int, (void*, Stream))                                                   \
  FUNCTION(cudaDeviceGetDefaultMemPool, int, (void**, int))                                       \
  FUNCTION(cudaMemPoolSetAttribute, int, (void*, int, void*))                                     \
  FUNCTION(cudaMemcpyAsync, int, (void*, const void*, std::size_t, int, Stream))                  \
  FUNCTION(cudaMemcpy2DAsync, int,                                                                \
           (void*, std::size_t, const void*, std::size_t, std::size_t, std::size_t, int, Stream)) \
  FUNCTION(cudaMemsetAsync, int, (void*, int, std::size_t, Stream))

#define DISTIR_DECLARE(name, Result, Arguments) Result(*name) Arguments = nullptr;

/*! \brief Addresses of NCCL's functions. */
struct NcclFunctions {
  DISTIR_NCCL_FUNCTIONS(DISTIR_DECLARE)
  DISTIR_OPTIONAL_NCCL_FUNCTIONS(DISTIR_DECLARE)
};

/*! \brief Addresses of the functions of CUDA's runtime. */
struct CudaFunctions {
  DISTIR_CUDA_FUNCTIONS(DISTIR_DECLARE)
};

#undef DISTIR_DECLARE

}  // namespace distir::runtime::nccl

#endif  // DISTIR_RUNTIME_COMMUNICATORS_NCCL_ABI_H_
