/*!
 * \file support/load.cc
 * \brief Registers distir.version, which Python reads right after it has loaded the library.
 */
#include <tvm/ffi/string.h>

#include "support/functions.h"

namespace distir::support {

TVM_FFI_STATIC_INIT_BLOCK() {
  support::Functions().def("distir.version", []() { return tvm::ffi::String(DISTIR_VERSION); });
}

}  // namespace distir::support
