/*!
 * \file runtime/communicators/cpu/transport.h
 * \brief Interface for messages between workers that share no address space.
 *
 * One worker's end. A message has a header that says what it belongs to, and bytes. Messages of one
 * worker to another arrive in order within a scope: a group, or a channel of transfers; what
 * other scopes have sent waits. Posting does not wait for receivers, except that a transport may
 * wait while a receiver has very much to read; meanwhile it goes on receiving itself, so that
 * workers that send to each other go on.
 *
 * Example, both sides of one message:
 * \code
 *   std::memcpy(transport->Reserve(header), bytes, header.num_bytes);
 *   transport->Post({1}, describe);
 *
 *   Message message = transport->Take(0, header.scope, describe);
 *   ... message.bytes ...
 *   transport->Release(message);
 * \endcode
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_CPU_TRANSPORT_H_
#define DISTIR_RUNTIME_COMMUNICATORS_CPU_TRANSPORT_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/communicators/cpu/collective_call.h"

namespace distir::runtime::cpu {

struct MessageHeader {
  uint64_t scope = 0;
  int64_t num_bytes = 0;
  CollectiveCall call;

  /*! \brief True if a message of at most so many bytes can have it, whoever has sent it. */
  bool IsValid(int64_t most_bytes) const {
    return num_bytes >= 0 && num_bytes <= most_bytes && call.IsWellFormed();
  }
};

/*! \brief A received message; readable until it is released. */
struct Message {
  MessageHeader header;  // a copy: what a peer can write to may change after it was looked at
  const char* bytes;     // as many as the header says
  void* owner;           // the transport's
  bool is_shared;        // whether the sender's memory has it
};

/*! \brief Describes the call that a worker waits in: "all_reduce over devices [0, 1]". */
using Describe = std::function<std::string()>;

class Transport {
 public:
  virtual ~Transport() = default;

  /*! \brief Reserves memory for the bytes of the next message; Post sends it. */
  virtual char* Reserve(const MessageHeader& header) = 0;

  /*!
   * \brief Sends the reserved message to each of `ranks`, which is not empty.
   * \throws as Take, if it must wait.
   */
  virtual void Post(const std::vector<int>& ranks, const Describe& describe) = 0;

  /*!
   * \brief Waits for the next message of a worker in a scope.
   * \throws RuntimeError if the session is aborted, ValueError if no message can ever come.
   */
  virtual Message Take(int rank, uint64_t scope, const Describe& describe) = 0;

  virtual void Release(const Message& message) noexcept = 0;

  /*!
   * \brief Waits for something else, and goes on receiving; `ready` is called again and again.
   * \throws as Take, but it does not know what can never come.
   */
  virtual void WaitFor(const Describe& describe, const std::function<bool()>& ready) = 0;

  /*! \brief The step that the worker runs; messages say which one they are of. */
  virtual int64_t step() const = 0;

  /*! \brief Bytes sent to workers of other hosts, without headers. */
  virtual int64_t bytes_to_hosts() const = 0;
  /*! \brief True if these workers, and this one, see each other's tensors of NewTensor. */
  virtual bool SeeTensors(const std::vector<int>& ranks) const = 0;
  /*! \brief A tensor that others may see where it lies. */
  virtual tvm::ffi::Tensor NewTensor(tvm::ffi::ShapeView shape, DLDataType dtype) = 0;
  /*! \brief Place of this worker's memory, for others; -1 if it is not that of a NewTensor. */
  virtual int64_t PlaceOf(const char* data) const = 0;
  /*!
   * \brief The memory at a place of another worker, or of this one, which it has sent.
   * \throws ValueError if so many bytes are not there.
   */
  virtual char* At(int rank, int64_t place, int64_t num_bytes) const = 0;
};

}  // namespace distir::runtime::cpu

#endif  // DISTIR_RUNTIME_COMMUNICATORS_CPU_TRANSPORT_H_
