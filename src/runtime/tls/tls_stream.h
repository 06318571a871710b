/*!
 * \file runtime/tls/tls_stream.h
 * \brief TLS 1.3 stream over a non-blocking socket.
 *
 * There are two ways for both ends to know each other. For connections that prove the token it is
 * by certificates (Identity): the proof covers Binding(), so that somebody in the middle, with a
 * connection to either end, cannot pass the proof on. For others it is by a key that both ends
 * have, made for one connection and told over one of the first kind.
 *
 * Reading and writing make the handshake first. Any thread may call anything at any time.
 */
#ifndef DISTIR_RUNTIME_TLS_TLS_STREAM_H_
#define DISTIR_RUNTIME_TLS_TLS_STREAM_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>

#include "support/descriptor.h"

namespace distir::runtime::tls {

/*! \brief Results of Read and Write that are not byte counts. */
constexpr ssize_t kEnded = 0;       // by the other side, or because something is wrong: why()
constexpr ssize_t kWaitsRead = -1;  // try again when there is something to be read
constexpr ssize_t kWaitsWrite = -2;

/*!
 * \brief Limit of bytes written with one key: RFC 8446 (5.5) allows AES-GCM at most 2^24.5
 * records of 2^14 bytes.
 */
constexpr int64_t kBytesOfAKey = int64_t{1} << 37;

/*! \brief A certificate with its key, and which certificates it accepts. */
class Identity {
 public:
  /*!
   * \param certificate A PEM file of a certificate and those between it and its authority; empty
   *        for a new one that nobody else knows.
   * \param key A PEM file of its private key.
   * \param authority A PEM file of the authorities that have to have signed the other side's
   *        certificate; empty if any certificate will do.
   * \throws RuntimeError if OpenSSL cannot be loaded, ValueError that names a file of no use.
   */
  Identity(const std::string& certificate, const std::string& key, const std::string& authority);
  ~Identity();
  Identity(const Identity&) = delete;
  Identity& operator=(const Identity&) = delete;

  void* context() const { return context_; }
  bool has_authority() const { return has_authority_; }

 private:
  void* context_;
  bool has_authority_;
};

/*! \brief A socket as OpenSSL reads it. */
struct BoundedSocket {
  support::Descriptor descriptor;
  size_t left = 0;  // how many bytes this call may still read
};

class TlsStream {
 public:
  /*!
   * \param socket A connected socket.
   * \param connecting True if this is the end that has connected.
   * \param identity Has to stay as long as this.
   * \param name The address that was dialled, without port; where there is an authority, the
   *        certificate has to be for it.
   */
  TlsStream(support::Descriptor socket, bool connecting, const Identity& identity,
            const std::string& name);
  /*!
   * \param key 32 random bytes, for this connection alone.
   * \param bytes_of_a_key After how many bytes another key takes the place of one.
   */
  TlsStream(support::Descriptor socket, bool connecting, std::string key,
            int64_t bytes_of_a_key = kBytesOfAKey);
  ~TlsStream();
  TlsStream(const TlsStream&) = delete;
  TlsStream& operator=(const TlsStream&) = delete;

  /*! \brief 1 when it is made. */
  ssize_t Handshake();
  /*! \brief Number of bytes that were read. */
  ssize_t Read(char* data, size_t size);
  /*!
   * \brief Number of bytes that were written. A call that begins with the same bytes writes the
   *        rest.
   */
  ssize_t Write(const char* data, size_t size);

  /*! \brief Gives the socket back: from now on the stream has ended. */
  void Close();

  /*! \brief Closes the stream in a fork, where nobody may release the lock that a thread had. */
  void Forget() { socket_.descriptor.Close(); }

  /*! \brief Reason why it has ended, or an empty string if the other side has just ended it. */
  std::string why() const;

  /*!
   * \brief 96 bytes that both ends have the same of, and no two connections: the fingerprints of
   *        the listening and the connecting end's certificates, and a secret of the connection.
   */
  std::string Binding();

 private:
  void Begin(void* context);
  ssize_t HandshakeLocked();
  ssize_t TakeNewKey();
  ssize_t Outcome(int result);
  static unsigned TellKey(void* ssl, const char* hint, char* identity, unsigned max_identity,
                          unsigned char* key, unsigned max_key);
  static unsigned FindKey(void* ssl, const char* identity, unsigned char* key, unsigned max_key);
  unsigned CopyKey(unsigned char* target, unsigned size) const;

  BoundedSocket socket_;
  const bool connecting_;
  const int64_t bytes_of_a_key_ = kBytesOfAKey;
  const std::string key_;
  void* ssl_ = nullptr;
  mutable std::mutex mutex_;
  bool established_ = false;
  bool ended_ = false;
  int64_t num_written_ = 0;     // with one key
  bool within_record_ = false;  // which has to be written before anything else
  std::string why_;
};

}  // namespace distir::runtime::tls

#endif  // DISTIR_RUNTIME_TLS_TLS_STREAM_H_
