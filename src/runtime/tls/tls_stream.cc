// Speaks TLS 1.3 over a non-blocking socket, by certificates or a pre-shared key.
#include "runtime/tls/tls_stream.h"

#include <poll.h>
#include <sys/socket.h>
#include <tvm/ffi/error.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/tls/openssl.h"
#include "support/error.h"

namespace distir::runtime::tls {

namespace {

constexpr size_t kFingerprintBytes = 32;
constexpr size_t kSecretBytes = 32;
constexpr char kSecretLabel[] = "EXPORTER-distir";
constexpr char kNotVerified[] = "certificate verify failed";  // as OpenSSL says it
constexpr char kKeyName[] = "distir";

// Bytes that a record costs a key on top of its data, as a small one has as many blocks again.
constexpr int64_t kBytesOfARecord = 32;

// Bytes given to one call of SSL_read or SSL_write; a record has 2^14 bytes.
constexpr size_t kMostBytes = size_t{1} << 20;

// Bytes that one call reads of the socket; a record has some 2^14 bytes. Messages on new keys are
// no data, so a call would go on for as long as the other side sends them.
constexpr size_t kMostRead = size_t{1} << 16;

constexpr int64_t kSecondsOfADay = 24 * 3600;

// A BIO of a socket that does not block: OpenSSL's own raises SIGPIPE where the other side is gone.
// Its data is a BoundedSocket.
BoundedSocket& SocketOf(void* bio) {
  return *static_cast<BoundedSocket*>(OpenSsl().BIO_get_data(bio));
}

int Retried(void* bio, ssize_t count, int flag) {
  const OpenSslFunctions& openssl = OpenSsl();
  openssl.BIO_clear_flags(bio, kBioFlagRead | kBioFlagWrite | kBioFlagRetry);
  if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
    openssl.BIO_set_flags(bio, flag | kBioFlagRetry);
  }
  return static_cast<int>(count);
}

int WriteSocket(void* bio, const char* data, int size) {
  const int descriptor = SocketOf(bio).descriptor.number();
  return Retried(bio, send(descriptor, data, static_cast<size_t>(size), MSG_NOSIGNAL),
                 kBioFlagWrite);
}

int ReadSocket(void* bio, char* data, int size) {
  BoundedSocket& socket = SocketOf(bio);
  if (socket.left == 0) {
    errno = EAGAIN;  // there may be more, which the next call reads
    return Retried(bio, -1, kBioFlagRead);
  }
  const size_t most = std::min(static_cast<size_t>(size), socket.left);
  const ssize_t count = recv(socket.descriptor.number(), data, most, 0);
  if (count > 0) socket.left -= static_cast<size_t>(count);
  return Retried(bio, count, kBioFlagRead);
}

long ControlSocket(void*, int command, long, void*) {  // NOLINT(google-runtime-int)
  return command == kBioFlush ? 1 : 0;
}

void* SocketMethod() {
  static void* const method = [] {
    const OpenSslFunctions& openssl = OpenSsl();
    void* made = openssl.BIO_meth_new(openssl.BIO_get_new_index() | kBioSourceSink, "distir");
    openssl.BIO_meth_set_write(made, WriteSocket);
    openssl.BIO_meth_set_read(made, ReadSocket);
    openssl.BIO_meth_set_ctrl(made, ControlSocket);
    return made;
  }();
  return method;
}

// TLS 1.3 without tickets: on an idle connection nothing arrives but its end.
void* NewContext(const char* ciphers) {
  const OpenSslFunctions& openssl = OpenSsl();
  void* context = openssl.SSL_CTX_new(openssl.TLS_method());
  const bool good = context != nullptr &&
                    openssl.SSL_CTX_ctrl(context, kCtrlMinVersion, kTls13, nullptr) == 1 &&
                    openssl.SSL_CTX_set_ciphersuites(context, ciphers) == 1 &&
                    openssl.SSL_CTX_set_num_tickets(context, 0) == 1;
  if (!good) TVM_FFI_THROW(RuntimeError) << "OpenSSL cannot be used for TLS 1.3: " << TakeError();
  openssl.SSL_CTX_ctrl(context, kCtrlMode, kModePartialWrite | kModeMovingBuffer, nullptr);
  return context;
}

// The context of streams that have a key: who listens has no certificate and asks for none.
void* KeyContext() {
  static void* const context = NewContext("TLS_AES_128_GCM_SHA256");
  return context;
}

// A certificate that its own key has signed. Nobody looks at its name or dates.
bool UseNewCertificate(void* context) {
  const OpenSslFunctions& openssl = OpenSsl();
  void* key = openssl.EVP_PKEY_Q_keygen(nullptr, nullptr, "EC", "P-256");
  void* certificate = openssl.X509_new();
  void* name = openssl.X509_get_subject_name(certificate);
  const unsigned char text[] = "distir";
  const bool good =
      key != nullptr && openssl.X509_set_version(certificate, 2) == 1 &&
      openssl.ASN1_INTEGER_set(openssl.X509_get_serialNumber(certificate), 1) == 1 &&
      openssl.X509_gmtime_adj(openssl.X509_getm_notBefore(certificate), -kSecondsOfADay) &&
      openssl.X509_gmtime_adj(openssl.X509_getm_notAfter(certificate), 3650 * kSecondsOfADay) &&
      openssl.X509_set_pubkey(certificate, key) == 1 &&
      openssl.X509_NAME_add_entry_by_txt(name, "CN", kAsciiText, text, -1, -1, 0) == 1 &&
      openssl.X509_set_issuer_name(certificate, name) == 1 &&
      openssl.X509_sign(certificate, key, openssl.EVP_sha256()) > 0 &&
      openssl.SSL_CTX_use_certificate(context, certificate) == 1 &&
      openssl.SSL_CTX_use_PrivateKey(context, key) == 1;
  openssl.X509_free(certificate);
  openssl.EVP_PKEY_free(key);
  return good;
}

int AcceptAny(int, void*) { return 1; }

std::string Fingerprint(const void* certificate) {
  const OpenSslFunctions& openssl = OpenSsl();
  unsigned char digest[kFingerprintBytes];
  unsigned size = 0;
  const bool good = certificate != nullptr &&
                    openssl.X509_digest(certificate, openssl.EVP_sha256(), digest, &size) == 1;
  DISTIR_REQUIRE(good && size == kFingerprintBytes, RuntimeError)
      << "a connection has no certificate";
  return std::string(reinterpret_cast<char*>(digest), size);
}

}  // namespace

Identity::Identity(const std::string& certificate, const std::string& key,
                   const std::string& authority)
    : context_(NewContext("TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:"
                          "TLS_CHACHA20_POLY1305_SHA256")),
      has_authority_(!authority.empty()) {
  const OpenSslFunctions& openssl = OpenSsl();
  std::string wrong;
  if (certificate.empty()) {
    if (!UseNewCertificate(context_)) wrong = "OpenSSL cannot make a certificate";
  } else if (openssl.SSL_CTX_use_certificate_chain_file(context_, certificate.c_str()) != 1) {
    wrong = certificate + " has no certificate that can be used";
  } else if (openssl.SSL_CTX_use_PrivateKey_file(context_, key.c_str(), kFileTypePem) != 1 ||
             openssl.SSL_CTX_check_private_key(context_) != 1) {
    wrong = key + " does not have the private key of the certificate in " + certificate;
  }
  if (wrong.empty() && has_authority_ &&
      openssl.SSL_CTX_load_verify_locations(context_, authority.c_str(), nullptr) != 1) {
    wrong = authority + " has no certificate of an authority";
  }
  if (!wrong.empty()) {
    const std::string reason = TakeError();
    openssl.SSL_CTX_free(context_);
    TVM_FFI_THROW(ValueError) << wrong << ": " << reason;
  }
  openssl.SSL_CTX_set_verify(context_, kVerifyPeer | kFailIfNoCertificate,
                             has_authority_ ? nullptr : AcceptAny);
}

Identity::~Identity() { OpenSsl().SSL_CTX_free(context_); }

TlsStream::TlsStream(support::Descriptor socket, bool connecting, const Identity& identity,
                     const std::string& name)
    : socket_{std::move(socket)}, connecting_(connecting) {
  const OpenSslFunctions& openssl = OpenSsl();
  Begin(identity.context());
  if (!connecting || !identity.has_authority()) return;
  if (openssl.X509_VERIFY_PARAM_set1_ip_asc(openssl.SSL_get0_param(ssl_), name.c_str()) == 1)
    return;
  openssl.SSL_set1_host(ssl_, name.c_str());
}

TlsStream::TlsStream(support::Descriptor socket, bool connecting, std::string key,
                     int64_t bytes_of_a_key)
    : socket_{std::move(socket)},
      connecting_(connecting),
      bytes_of_a_key_(bytes_of_a_key),
      key_(std::move(key)) {
  const OpenSslFunctions& openssl = OpenSsl();
  Begin(KeyContext());
  // A certificate instead of the key is not accepted: there is no authority.
  if (connecting) openssl.SSL_set_verify(ssl_, kVerifyPeer, nullptr);
  openssl.SSL_set_ex_data(ssl_, 0, this);
  openssl.SSL_set_psk_client_callback(ssl_, TellKey);
  openssl.SSL_set_psk_server_callback(ssl_, FindKey);
}

void TlsStream::Begin(void* context) {
  const OpenSslFunctions& openssl = OpenSsl();
  ssl_ = openssl.SSL_new(context);
  void* bio = openssl.BIO_new(SocketMethod());
  DISTIR_REQUIRE(ssl_ != nullptr && bio != nullptr, RuntimeError)
      << "OpenSSL cannot be used: " << TakeError();
  openssl.BIO_set_data(bio, &socket_);
  openssl.BIO_set_init(bio, 1);
  openssl.SSL_set_bio(ssl_, bio, bio);
  (connecting_ ? openssl.SSL_set_connect_state : openssl.SSL_set_accept_state)(ssl_);
}

TlsStream::~TlsStream() { OpenSsl().SSL_free(ssl_); }

unsigned TlsStream::CopyKey(unsigned char* target, unsigned size) const {
  if (key_.size() > size) return 0;
  std::memcpy(target, key_.data(), key_.size());
  return static_cast<unsigned>(key_.size());
}

unsigned TlsStream::TellKey(void* ssl, const char*, char* identity, unsigned max_identity,
                            unsigned char* key, unsigned max_key) {
  if (sizeof(kKeyName) > max_identity) return 0;
  std::memcpy(identity, kKeyName, sizeof(kKeyName));
  return static_cast<TlsStream*>(OpenSsl().SSL_get_ex_data(ssl, 0))->CopyKey(key, max_key);
}

unsigned TlsStream::FindKey(void* ssl, const char*, unsigned char* key, unsigned max_key) {
  return static_cast<TlsStream*>(OpenSsl().SSL_get_ex_data(ssl, 0))->CopyKey(key, max_key);
}

// Result of an OpenSSL call that was not successful.
ssize_t TlsStream::Outcome(int result) {
  const OpenSslFunctions& openssl = OpenSsl();
  const int system_error = errno;
  const int error = openssl.SSL_get_error(ssl_, result);
  if (error == kErrorWantRead) return kWaitsRead;
  if (error == kErrorWantWrite) return kWaitsWrite;
  ended_ = true;
  why_ = TakeError();
  const auto verified = openssl.SSL_get_verify_result(ssl_);
  if (why_ == kNotVerified && verified != kVerified) {
    why_ += std::string(": ") + openssl.X509_verify_cert_error_string(verified);
  }
  if (why_.empty() && result < 0) why_ = std::strerror(system_error);
  return kEnded;
}

ssize_t TlsStream::HandshakeLocked() {
  const OpenSslFunctions& openssl = OpenSsl();
  if (ended_) return kEnded;
  if (established_) return 1;
  openssl.ERR_clear_error();
  const int result = openssl.SSL_do_handshake(ssl_);
  if (result != 1) return Outcome(result);
  if (!key_.empty() && openssl.SSL_session_reused(ssl_) != 1) {
    ended_ = true;
    why_ = "the other side does not have the key";
    return kEnded;
  }
  established_ = true;
  return 1;
}

ssize_t TlsStream::Handshake() {
  std::lock_guard<std::mutex> lock(mutex_);
  socket_.left = kMostRead;
  return HandshakeLocked();
}

ssize_t TlsStream::Read(char* data, size_t size) {
  std::lock_guard<std::mutex> lock(mutex_);
  socket_.left = kMostRead;
  if (const ssize_t made = HandshakeLocked(); made != 1) return made;
  const OpenSslFunctions& openssl = OpenSsl();
  openssl.ERR_clear_error();
  const int count = openssl.SSL_read(ssl_, data, static_cast<int>(std::min(size, kMostBytes)));
  return count > 0 ? count : Outcome(count);
}

// Until the other side is told of the new key OpenSSL reads nothing, either. So it is told when the
// socket takes that at once: two sides that both wait to be read would wait forever.
ssize_t TlsStream::TakeNewKey() {
  const OpenSslFunctions& openssl = OpenSsl();
  pollfd socket{socket_.descriptor.number(), POLLOUT, 0};
  if (poll(&socket, 1, 0) <= 0) return kWaitsWrite;
  openssl.ERR_clear_error();
  int result = openssl.SSL_key_update(ssl_, kKeyUpdateNotRequested);
  if (result == 1) {
    num_written_ = 0;
    result = openssl.SSL_do_handshake(ssl_);
  }
  return result == 1 ? 1 : Outcome(result);
}

ssize_t TlsStream::Write(const char* data, size_t size) {
  std::lock_guard<std::mutex> lock(mutex_);
  socket_.left = kMostRead;
  if (const ssize_t made = HandshakeLocked(); made != 1) return made;
  if (num_written_ >= bytes_of_a_key_ && !within_record_) {
    if (const ssize_t taken = TakeNewKey(); taken != 1) return taken;
  }
  const OpenSslFunctions& openssl = OpenSsl();
  openssl.ERR_clear_error();
  const int count = openssl.SSL_write(ssl_, data, static_cast<int>(std::min(size, kMostBytes)));
  within_record_ = count <= 0;
  if (count <= 0) return Outcome(count);
  num_written_ += count + kBytesOfARecord;
  return count;
}

void TlsStream::Close() {
  std::lock_guard<std::mutex> lock(mutex_);
  socket_.descriptor.Close();
  if (!ended_) why_ = "the stream was closed";
  ended_ = true;
}

std::string TlsStream::why() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return why_;
}

std::string TlsStream::Binding() {
  std::lock_guard<std::mutex> lock(mutex_);
  const OpenSslFunctions& openssl = OpenSsl();
  DISTIR_REQUIRE(established_, RuntimeError) << "the connection has not been made";
  const std::string mine = Fingerprint(openssl.SSL_get_certificate(ssl_));
  void* certificate = openssl.SSL_get1_peer_certificate(ssl_);
  const std::string theirs = Fingerprint(certificate);
  openssl.X509_free(certificate);
  unsigned char secret[kSecretBytes];
  const int made = openssl.SSL_export_keying_material(ssl_, secret, kSecretBytes, kSecretLabel,
                                                      sizeof(kSecretLabel) - 1, nullptr, 0, 0);
  DISTIR_REQUIRE(made == 1, RuntimeError) << "OpenSSL gives no secret: " << TakeError();
  return (connecting_ ? theirs + mine : mine + theirs) +
         std::string(reinterpret_cast<char*>(secret), kSecretBytes);
}

}  // namespace distir::runtime::tls
