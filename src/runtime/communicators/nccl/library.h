/*!
 * \file runtime/communicators/nccl/library.h
 * \brief NCCL and CUDA's runtime, loaded at first use (shared_library.h).
 *
 * Variables name their files: DISTIR_EXT_NCCL_LIBRARY, DISTIR_EXT_CUDART_LIBRARY. Python tells
 * which files it has found in installed packages.
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_NCCL_LIBRARY_H_
#define DISTIR_RUNTIME_COMMUNICATORS_NCCL_LIBRARY_H_

#include <string>

#include "runtime/communicators/nccl/abi.h"

namespace distir::runtime::nccl {

/*!
 * \throws RuntimeError, on each call, if the library is not found or too old; says where it was
 *         sought, or which one it is.
 */
const NcclFunctions& Nccl();
const CudaFunctions& Cuda();

/*! \brief NCCL's version and its file: "2.27.3 of /usr/lib/libnccl.so.2". */
std::string DescribeNccl();
/*! \brief The file of CUDA's runtime. */
std::string CudaLibraryFile();
/*! \brief "2.27.3" of 22703. */
std::string NcclVersionText(int version);
/*! \brief "12.4" of 12040. */
std::string CudaVersionText(int version);

/*!
 * \brief Throws RuntimeError unless `result` is success; ConnectionError if NCCL says that another
 *        rank, or the network, is gone.
 * \param what "cudaSetDevice".
 */
void CheckNccl(int result, const std::string& what);
void CheckCuda(int result, const std::string& what);

}  // namespace distir::runtime::nccl

#endif  // DISTIR_RUNTIME_COMMUNICATORS_NCCL_LIBRARY_H_
