// Loads the functions of OpenSSL 3.
#include "runtime/tls/openssl.h"

#include "runtime/shared_library.h"

namespace distir::runtime::tls {

namespace {

// Functions of libcrypto are found through libssl, which is linked to it.
OpenSslFunctions FindFunctions() {
  const SharedLibrary library("OpenSSL 3 (libssl.so.3), which encrypts connections between hosts,",
                              "DISTIR_EXT_OPENSSL_LIBRARY", {"libssl.so.3"},
                              "install it (Debian and Ubuntu: apt install libssl3)");
  void* handle = library.Open();
  OpenSslFunctions functions;
#define DISTIR_FIND(name, Result, Arguments) \
  functions.name = reinterpret_cast<Result(*) Arguments>(library.Find(handle, #name));
  DISTIR_OPENSSL_FUNCTIONS(DISTIR_FIND)
#undef DISTIR_FIND
  return functions;
}

}  // namespace

// A static whose initialisation throws is initialised again by the next call.
const OpenSslFunctions& OpenSsl() {
  static const OpenSslFunctions functions = FindFunctions();
  return functions;
}

std::string TakeError() {
  const OpenSslFunctions& openssl = OpenSsl();
  const char* reason = openssl.ERR_reason_error_string(openssl.ERR_get_error());
  openssl.ERR_clear_error();
  return reason == nullptr ? "" : reason;
}

}  // namespace distir::runtime::tls
