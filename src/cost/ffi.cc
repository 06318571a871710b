// Registers a function for Python: the bytes that a device sends in a collective.
#include <tvm/ffi/error.h>
#include <tvm/ffi/string.h>

#include <string>

#include "abi/collective.h"
#include "support/functions.h"

namespace distir::cost {

namespace ffi = tvm::ffi;

TVM_FFI_STATIC_INIT_BLOCK() {
  support::Functions().def(
      "distir.cost.BytesSent", [](ffi::String name, int64_t group_size, double local_bytes) {
        const abi::CollectiveRecord* record = abi::FindCollective({name.data(), name.size()});
        if (record == nullptr)
          TVM_FFI_THROW(ValueError) << "unknown collective " << static_cast<std::string>(name);
        return abi::SentBy(record->collective, group_size).Bytes(local_bytes);
      });
}

}  // namespace distir::cost
