/*!
 * \file runtime/nccl/unique_id_exchange.h
 * \brief How the members of a group agree on the unique id of its NCCL communicator.
 *
 * NCCL's initialisation waits for all members and can not be interrupted, so it begins only once
 * all of them are known to be there: Meet returns on all members or on none.
 *
 * ThreadExchange serves workers that are threads. Workers in processes need another
 * implementation, in which one member makes the id and the others read it from where it is
 * published.
 */
#ifndef DISTIR_RUNTIME_NCCL_UNIQUE_ID_EXCHANGE_H_
#define DISTIR_RUNTIME_NCCL_UNIQUE_ID_EXCHANGE_H_

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "runtime/nccl/abi.h"

namespace distir::runtime::nccl {

class UniqueIdExchange {
 public:
  virtual ~UniqueIdExchange() = default;

  /*!
   * \brief Waits for all members of a group; called once per group and member.
   * \return The id, the same for all members.
   * \throws RuntimeError after Abort, or if a member does not come in time.
   */
  virtual UniqueId Meet(const std::vector<int>& ranks, int position) = 0;

  /*! \brief Makes every Meet throw. Idempotent. */
  virtual void Abort() noexcept = 0;
};

class ThreadExchange : public UniqueIdExchange {
 public:
  /*! \param timeout How long Meet waits; zero waits for ever. */
  explicit ThreadExchange(std::chrono::milliseconds timeout) : timeout_(timeout) {}

  UniqueId Meet(const std::vector<int>& ranks, int position) final;
  void Abort() noexcept final;

 private:
  struct Meeting {
    std::optional<UniqueId> id;
    std::vector<bool> arrived;
    size_t num_arrived = 0;
  };

  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool aborted_ = false;
  std::map<std::vector<int>, Meeting> meetings_;
};

}  // namespace distir::runtime::nccl

#endif  // DISTIR_RUNTIME_NCCL_UNIQUE_ID_EXCHANGE_H_
