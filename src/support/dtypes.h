/*!
 * \file support/dtypes.h
 * \brief Constants for common dtypes, and tests of their kind.
 */
#ifndef DISTIR_SUPPORT_DTYPES_H_
#define DISTIR_SUPPORT_DTYPES_H_

#include <dlpack/dlpack.h>

namespace distir {

inline constexpr DLDataType kBool{kDLBool, 8, 1};
inline constexpr DLDataType kInt32{kDLInt, 32, 1};
inline constexpr DLDataType kInt64{kDLInt, 64, 1};
inline constexpr DLDataType kFloat32{kDLFloat, 32, 1};
inline constexpr DLDataType kFloat64{kDLFloat, 64, 1};

inline bool IsFloat(DLDataType dtype) { return dtype.code == kDLFloat || dtype.code == kDLBfloat; }

}  // namespace distir

#endif  // DISTIR_SUPPORT_DTYPES_H_
