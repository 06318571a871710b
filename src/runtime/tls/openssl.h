/*!
 * \file runtime/tls/openssl.h
 * \brief Declarations of OpenSSL 3 functions in use, without its headers, loaded at first use.
 *
 * Objects are void*. The names, types and numbers are those of OpenSSL's documented interface,
 * which stays the same for all of version 3.
 */
#ifndef DISTIR_RUNTIME_TLS_OPENSSL_H_
#define DISTIR_RUNTIME_TLS_OPENSSL_H_

#include <cstddef>
#include <string>

namespace distir::runtime::tls {

constexpr int kVerifyPeer = 1;             // SSL_VERIFY_PEER
constexpr int kFailIfNoCertificate = 2;    // SSL_VERIFY_FAIL_IF_NO_PEER_CERT
constexpr int kFileTypePem = 1;            // SSL_FILETYPE_PEM
constexpr int kErrorWantRead = 2;          // SSL_ERROR_WANT_READ
constexpr int kErrorWantWrite = 3;         // SSL_ERROR_WANT_WRITE
constexpr int kCtrlMode = 33;              // SSL_CTRL_MODE
constexpr int kCtrlMinVersion = 123;       // SSL_CTRL_SET_MIN_PROTO_VERSION
constexpr int kModePartialWrite = 1;       // SSL_MODE_ENABLE_PARTIAL_WRITE
constexpr int kModeMovingBuffer = 2;       // SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER
constexpr int kModeReleaseBuffers = 16;    // SSL_MODE_RELEASE_BUFFERS
constexpr int kTls13 = 0x0304;             // TLS1_3_VERSION
constexpr int kKeyUpdateNotRequested = 0;  // SSL_KEY_UPDATE_NOT_REQUESTED
constexpr int kVerified = 0;               // X509_V_OK
constexpr int kAsciiText = 0x1001;         // MBSTRING_ASC
constexpr int kBioSourceSink = 0x0400;     // BIO_TYPE_SOURCE_SINK
constexpr int kBioFlagRead = 1;            // BIO_FLAGS_READ
constexpr int kBioFlagWrite = 2;           // BIO_FLAGS_WRITE
constexpr int kBioFlagRetry = 8;           // BIO_FLAGS_SHOULD_RETRY
constexpr int kBioFlush = 11;              // BIO_CTRL_FLUSH

using VerifyCallback = int (*)(int, void*);
using PskClientCallback = unsigned (*)(void*, const char*, char*, unsigned, unsigned char*,
                                       unsigned);
using PskServerCallback = unsigned (*)(void*, const char*, unsigned char*, unsigned);
using BioWrite = int (*)(void*, const char*, int);
using BioRead = int (*)(void*, char*, int);
using BioControl = long (*)(void*, int, long, void*);  // NOLINT(google-runtime-int): OpenSSL's

// FUNCTION(name, type of the result, types of the arguments)
#define DISTIR_OPENSSL_FUNCTIONS(FUNCTION)                                                     \
  FUNCTION(TLS_method, const void*, ())                                                        \
  FUNCTION(SSL_CTX_new, void*, (const void*))                                                  \
  FUNCTION(SSL_CTX_free, void, (void*))                                                        \
  FUNCTION(SSL_CTX_ctrl, long, (void*, int, long, void*))                                      \
  FUNCTION(SSL_CTX_set_num_tickets, int, (void*, size_t))                                      \
  FUNCTION(SSL_CTX_set_ciphersuites, int, (void*, const char*))                                \
  FUNCTION(SSL_CTX_use_certificate, int, (void*, void*))                                       \
  FUNCTION(SSL_CTX_use_PrivateKey, int, (void*, void*))                                        \
  FUNCTION(SSL_CTX_use_certificate_chain_file, int, (void*, const char*))                      \
  FUNCTION(SSL_CTX_use_PrivateKey_file, int, (void*, const char*, int))                        \
  FUNCTION(SSL_CTX_check_private_key, int, (const void*))                                      \
  FUNCTION(SSL_CTX_load_verify_locations, int, (void*, const char*, const char*))              \
  FUNCTION(SSL_CTX_set_verify, void, (void*, int, VerifyCallback))                             \
  FUNCTION(SSL_new, void*, (void*))                                                            \
  FUNCTION(SSL_free, void, (void*))                                                            \
  FUNCTION(SSL_set_bio, void, (void*, void*, void*))                                           \
  FUNCTION(SSL_set_verify, void, (void*, int, VerifyCallback))                                 \
  FUNCTION(SSL_set_connect_state, void, (void*))                                               \
  FUNCTION(SSL_set_accept_state, void, (void*))                                                \
  FUNCTION(SSL_set_psk_client_callback, void, (void*, PskClientCallback))                      \
  FUNCTION(SSL_set_psk_server_callback, void, (void*, PskServerCallback))                      \
  FUNCTION(SSL_set_ex_data, int, (void*, int, void*))                                          \
  FUNCTION(SSL_get_ex_data, void*, (const void*, int))                                         \
  FUNCTION(SSL_set1_host, int, (void*, const char*))                                           \
  FUNCTION(SSL_get0_param, void*, (void*))                                                     \
  FUNCTION(SSL_do_handshake, int, (void*))                                                     \
  FUNCTION(SSL_session_reused, int, (const void*))                                             \
  FUNCTION(SSL_read, int, (void*, void*, int))                                                 \
  FUNCTION(SSL_write, int, (void*, const void*, int))                                          \
  FUNCTION(SSL_key_update, int, (void*, int))                                                  \
  FUNCTION(SSL_get_error, int, (const void*, int))                                             \
  FUNCTION(SSL_get_verify_result, long, (const void*))                                         \
  FUNCTION(SSL_get_certificate, void*, (const void*))                                          \
  FUNCTION(SSL_get1_peer_certificate, void*, (const void*))                                    \
  FUNCTION(                                                                                    \
      SSL_export_keying_material, int,                                                         \
      (void*, unsigned char*, size_t, const char*, size_t, const unsigned char*, size_t, int)) \
  FUNCTION(EVP_PKEY_Q_keygen, void*, (void*, const char*, const char*, ...))                   \
  FUNCTION(EVP_PKEY_free, void, (void*))                                                       \
  FUNCTION(EVP_sha256, const void*, ())                                                        \
  FUNCTION(X509_new, void*, ())                                                                \
  FUNCTION(X509_free, void, (void*))                                                           \
  FUNCTION(X509_set_version, int, (void*, long))                                               \
  FUNCTION(X509_get_serialNumber, void*, (void*))                                              \
  FUNCTION(ASN1_INTEGER_set, int, (void*, long))                                               \
  FUNCTION(X509_getm_notBefore, void*, (const void*))                                          \
  FUNCTION(X509_getm_notAfter, void*, (const void*))                                           \
  FUNCTION(X509_gmtime_adj, void*, (void*, long))                                              \
  FUNCTION(X509_set_pubkey, int, (void*, void*))                                               \
  FUNCTION(X509_get_subject_name, void*, (const void*))                                        \
  FUNCTION(X509_NAME_add_entry_by_txt, int,                                                    \
           (void*, const char*, int, const unsigned char*, int, int, int))                     \
  FUNCTION(X509_set_issuer_name, int, (void*, const void*))                                    \
  FUNCTION(X509_sign, int, (void*, void*, const void*))                                        \
  FUNCTION(X509_digest, int, (const void*, const void*, unsigned char*, unsigned*))            \
  FUNCTION(X509_VERIFY_PARAM_set1_ip_asc, int, (void*, const char*))                           \
  FUNCTION(X509_verify_cert_error_string, const char*, (long))                                 \
  FUNCTION(ERR_clear_error, void, ())                                                          \
  FUNCTION(ERR_get_error, unsigned long, ())                                                   \
  FUNCTION(ERR_reason_error_string, const char*, (unsigned long))                              \
  FUNCTION(BIO_get_new_index, int, ())                                                         \
  FUNCTION(BIO_meth_new, void*, (int, const char*))                                            \
  FUNCTION(BIO_meth_set_write, int, (void*, BioWrite))                                         \
  FUNCTION(BIO_meth_set_read, int, (void*, BioRead))                                           \
  FUNCTION(BIO_meth_set_ctrl, int, (void*, BioControl))                                        \
  FUNCTION(BIO_new, void*, (const void*))                                                      \
  FUNCTION(BIO_set_data, void, (void*, void*))                                                 \
  FUNCTION(BIO_get_data, void*, (void*))                                                       \
  FUNCTION(BIO_set_init, void, (void*, int))                                                   \
  FUNCTION(BIO_set_flags, void, (void*, int))                                                  \
  FUNCTION(BIO_clear_flags, void, (void*, int))

struct OpenSslFunctions {
#define DISTIR_DECLARE(name, Result, Arguments) Result(*name) Arguments = nullptr;
  DISTIR_OPENSSL_FUNCTIONS(DISTIR_DECLARE)
#undef DISTIR_DECLARE
};

/*! \throws RuntimeError, on each call, if the library is not found; says where it was sought. */
const OpenSslFunctions& OpenSsl();

/*! \brief Takes the errors of this thread: what the first one says. */
std::string TakeError();

}  // namespace distir::runtime::tls

#endif  // DISTIR_RUNTIME_TLS_OPENSSL_H_
