/*!
 * \file support/load.cc
 * \brief What the Python package asks of a library that it has just loaded.
 */
#include <tvm/ffi/string.h>

#include "support/functions.h"

namespace distir {
namespace support {

TVM_FFI_STATIC_INIT_BLOCK() {
  support::Functions().def("distir.version", []() { return tvm::ffi::String(DISTIR_VERSION); });
}

}  // namespace support
}  // namespace distir
