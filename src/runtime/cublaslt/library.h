/*!
 * \file runtime/cublaslt/library.h
 * \brief cuBLASLt, loaded at first use (shared_library.h).
 *
 * DISTIR_EXT_CUBLASLT_LIBRARY names its file. Python tells which files it has found in packages.
 */
#ifndef DISTIR_RUNTIME_CUBLASLT_LIBRARY_H_
#define DISTIR_RUNTIME_CUBLASLT_LIBRARY_H_

#include <string>

#include "runtime/cublaslt/abi.h"

namespace distir::runtime::cublaslt {

/*!
 * \throws RuntimeError, on each call, if the library is not found or too old; says where it was
 *         sought, or which one it is.
 */
const CublasLtFunctions& CublasLt();

/*! \brief The version and the file: "13.1.0 of /usr/lib/libcublasLt.so.13". */
std::string DescribeCublasLt();

/*! \brief Throws RuntimeError unless `status` is success. \param what "cublasLtCreate". */
void CheckCublasLt(int status, const std::string& what);

}  // namespace distir::runtime::cublaslt

#endif  // DISTIR_RUNTIME_CUBLASLT_LIBRARY_H_
