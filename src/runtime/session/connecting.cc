/*!
 * \file runtime/session/connecting.cc
 * \brief Registers the first steps of a session: workers connect to each other, and open groups.
 *
 * Each is run by all workers of a session, make_address by one of them. They take time on backends
 * that connect processes or GPUs; on others they do nothing.
 */
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/string.h>

#include "runtime/session/worker_context.h"
#include "support/functions.h"

namespace distir::runtime {

namespace ffi = tvm::ffi;

namespace {

TVM_FFI_STATIC_INIT_BLOCK() {
  support::Functions()
      .def("distir.runtime.make_address",
           []() { return ffi::Bytes(WorkerContext::Current().communicator().MakeAddress()); })
      .def("distir.runtime.join",
           [](const ffi::Bytes& address) {
             WorkerContext::Current().communicator().Join(std::string(address));
           })
      .def("distir.runtime.bytes_to_hosts",
           []() { return WorkerContext::Current().communicator().bytes_to_hosts(); })
      .def("distir.runtime.open_groups", [](const ffi::Array<ffi::String>& partitions) {
        for (const ffi::String& groups : partitions) WorkerContext::Current().OpenPartition(groups);
      });
}

}  // namespace

}  // namespace distir::runtime
