/*!
 * \file runtime/kernels/zero_test.h
 * \brief Tests whether floats are zero.
 */
#ifndef DISTIR_RUNTIME_KERNELS_ZERO_TEST_H_
#define DISTIR_RUNTIME_KERNELS_ZERO_TEST_H_

#include <cstdint>

#include "runtime/kernels/strided_copy.h"

namespace distir::runtime {

/*! \brief True if an element is 0 or -0; all bits but the sign of a float are zero then. */
struct ZeroTest {
  explicit ZeroTest(DLDataType dtype) : bytes(ElementBytes(dtype)) {}
  bool operator()(const char* element) const {
    for (int64_t b = 0; b + 1 < bytes; ++b)
      if (element[b] != 0) return false;
    return (element[bytes - 1] & 0x7f) == 0;
  }
  int64_t bytes;
};

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_KERNELS_ZERO_TEST_H_
