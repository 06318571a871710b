/*!
 * \file runtime/communicators/message_carrier.h
 * \brief Interface of a library that carries messages between workers of different hosts.
 *
 * One worker's end. Messages of one worker to another arrive in the order in which they were sent;
 * sending does not wait for who receives. Sent data goes on its way, and what arrives is
 * received, while somebody calls Progress, and slowly otherwise.
 *
 * Example, both sides of one message:
 * \code
 *   std::atomic<uint32_t> unsent{1};
 *   carrier->Send(3, bytes, 100, &unsent);           // `bytes` stay until it is 0
 *
 *   carrier->Receive({begin, end});                  // once, before the first message
 *   carrier->Progress();                             // p = begin(2, 100), then end(2, p, 100)
 * \endcode
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_MESSAGE_CARRIER_H_
#define DISTIR_RUNTIME_COMMUNICATORS_MESSAGE_CARRIER_H_

#include <atomic>
#include <cstdint>
#include <functional>

namespace distir::runtime {

/*!
 * \brief Callbacks for messages that arrive. Called by whichever thread of the process looks after
 *        the library, one at a time for a worker.
 */
struct MessageReceiver {
  /*! \brief Memory for the bytes of the next message of a rank; null: it is no message. */
  std::function<char*(int rank, int64_t num_bytes)> begin;
  /*! \brief They are there. */
  std::function<void(int rank, char* bytes, int64_t num_bytes)> end;
};

class MessageCarrier {
 public:
  virtual ~MessageCarrier() = default;

  /*! \brief Sets the receiver of messages that arrive from now on. */
  virtual void Receive(MessageReceiver receiver) = 0;

  /*! \brief Sends bytes, which have to stay until `unsent` has been counted down. */
  virtual void Send(int rank, const char* bytes, int64_t num_bytes,
                    std::atomic<uint32_t>* unsent) = 0;

  virtual void Progress() = 0;

  /*! \brief A rank that can no longer be reached, or -1. */
  virtual int lost() const = 0;
};

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_COMMUNICATORS_MESSAGE_CARRIER_H_
