/*!
 * \file runtime/tls/python.cc
 * \brief TLS for Python's connections between hosts, over non-blocking sockets.
 */
#include <sys/socket.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/object.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/string.h>

#include <memory>
#include <string>

#include "runtime/tls/exit_status.h"
#include "runtime/tls/tls_stream.h"
#include "support/functions.h"

namespace distir::runtime::tls {

namespace ffi = tvm::ffi;

namespace {

// Limit of the bytes that one call from Python reads or writes.
constexpr int64_t kTurnBytes = int64_t{1} << 20;

class IdentityObj : public ffi::Object {
 public:
  IdentityObj(const std::string& certificate, const std::string& key, const std::string& authority)
      : identity(certificate, key, authority) {}
  const Identity identity;

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("distir.runtime.TlsIdentity", IdentityObj, ffi::Object);
};

using IdentityPtr = ffi::Arc<IdentityObj>;

class StreamObj : public ffi::Object {
 public:
  StreamObj(int descriptor, bool connecting, const IdentityPtr& own, const std::string& name)
      : identity(own),
        stream(support::Descriptor::CopyOf(descriptor), connecting, own->identity, name) {}
  StreamObj(int descriptor, bool connecting, const std::string& key, int64_t bytes_of_a_key)
      : stream(support::Descriptor::CopyOf(descriptor), connecting, key, bytes_of_a_key) {}

  const ffi::ObjectPtr<IdentityObj> identity;  // nullptr for a stream of a key
  TlsStream stream;

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("distir.runtime.TlsStream", StreamObj, ffi::Object);
};

using StreamPtr = ffi::Arc<StreamObj>;

// As many bytes as there are, or what the first attempt has said.
template <typename Attempt>
int64_t Repeat(int64_t size, Attempt attempt) {
  int64_t done = 0;
  while (done < std::min(size, kTurnBytes)) {
    const int64_t count = attempt(done, static_cast<size_t>(size - done));
    if (count <= 0) return done > 0 ? done : count;
    done += count;
  }
  return done;
}

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = tvm::ffi::reflection;
  refl::ObjectDef<IdentityObj>(refl::init(false));
  refl::ObjectDef<StreamObj>(refl::init(false));
  support::Functions()
      .def(
          "distir.runtime.tls_identity",
          [](const ffi::String& certificate, const ffi::String& key, const ffi::String& authority) {
            return ffi::make_object<IdentityObj>(certificate, key, authority);
          })
      .def("distir.runtime.tls_stream",
           [](int descriptor, bool connecting, const IdentityPtr& identity,
              const ffi::String& name) {
             return ffi::make_object<StreamObj>(descriptor, connecting, identity, name);
           })
      .def("distir.runtime.tls_stream_of_key",
           [](int descriptor, bool connecting, const ffi::Bytes& key,
              const ffi::Optional<int64_t>& bytes_of_a_key) {
             return ffi::make_object<StreamObj>(descriptor, connecting, std::string(key),
                                                bytes_of_a_key.value_or(kBytesOfAKey));
           })
      .def("distir.runtime.tls_handshake",
           [](const StreamPtr& stream) -> int64_t { return stream->stream.Handshake(); })
      .def("distir.runtime.tls_read",
           [](const StreamPtr& stream, int64_t address, int64_t size) {
             char* data = reinterpret_cast<char*>(address);
             return Repeat(size, [&](int64_t done, size_t left) {
               return stream->stream.Read(data + done, left);
             });
           })
      .def("distir.runtime.tls_write",
           [](const StreamPtr& stream, int64_t address, int64_t size) {
             const char* data = reinterpret_cast<const char*>(address);
             return Repeat(size, [&](int64_t done, size_t left) {
               return stream->stream.Write(data + done, left);
             });
           })
      .def("distir.runtime.tls_close", [](const StreamPtr& stream) { stream->stream.Close(); })
      .def("distir.runtime.tls_forget", [](const StreamPtr& stream) { stream->stream.Forget(); })
      .def("distir.runtime.tls_why",
           [](const StreamPtr& stream) { return ffi::String(stream->stream.why()); })
      .def("distir.runtime.tls_binding",
           [](const StreamPtr& stream) { return ffi::Bytes(stream->stream.Binding()); })
      .def("distir.runtime.tell_exit_status",
           [](int descriptor, const ffi::Optional<StreamPtr>& stream) {
             TellExitStatus([descriptor, stream](char status) {
               if (stream.has_value()) {
                 stream.value()->stream.Write(&status, 1);
               } else {
                 send(descriptor, &status, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
               }
             });
           });
}

}  // namespace

}  // namespace distir::runtime::tls
