/*!
 * \file runtime/communicators/library_collectives.h
 * \brief Interface of collectives between hosts that a backend's library runs.
 *
 * One worker's end, used by its thread. Tensors are not known here: what a collective takes and
 * gives are equal blocks of elements, one behind the other, in memory that is packed for it. A
 * collective that was started and is given up (the session is aborted) leaves the library with that
 * memory, so it is kept until the library has done with it.
 *
 * Example: an all-gather of 100 elements of each of two members:
 * \code
 *   library->Open({{0, 2}}, wait);                                   // on all workers
 *   LibraryCall call{LibraryOperation::kAllGather, float32, ReduceKind::kSum, 800};
 *   if (library->Takes({0, 2}, call)) {
 *     auto started = library->Start({0, 2}, call, operand, result, 100);
 *     wait("all_gather", [&] { return started->Done(); });           // result: 200 elements
 *   }
 * \endcode
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_LIBRARY_COLLECTIVES_H_
#define DISTIR_RUNTIME_COMMUNICATORS_LIBRARY_COLLECTIVES_H_

#include <tvm/ffi/dtype.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/kernels/reduce.h"

namespace distir::runtime {

enum class LibraryOperation { kAllReduce, kReduceScatter, kAllGather, kAllToAll };

struct LibraryCall {
  LibraryOperation operation;
  DLDataType dtype;
  ReduceKind kind;    // of reductions
  int64_t num_bytes;  // of the larger of the two tensors
};

/*! \brief Waits until `ready()`, which is called again and again. \throws if the session ends. */
using WaitUntil = std::function<void(const std::function<std::string()>& what,
                                     const std::function<bool()>& ready)>;

/*! \brief A collective that has begun; given up if it is not done when this ends. */
class StartedCollective {
 public:
  virtual ~StartedCollective() = default;
  virtual bool Done() = 0;
};

class LibraryCollectives {
 public:
  using Ranks = std::vector<int>;

  virtual ~LibraryCollectives() = default;

  /*! \brief Waits for all workers of the session to have found each other. */
  virtual void Join(const WaitUntil& wait) = 0;

  /*! \brief Opens groups, as Communicator::OpenPartition; those within a host are left out. */
  virtual void Open(const std::vector<Ranks>& groups, const WaitUntil& wait) = 0;

  /*! \brief True if the memory that it is given may be that of a GPU. */
  virtual bool TakesDeviceMemory() const { return false; }

  /*! \brief True if it has the group, does the call, and should. The same on all members. */
  virtual bool Takes(const Ranks& ranks, const LibraryCall& call) const = 0;

  /*!
   * \brief Starts a call that it takes.
   * \param count Elements of a block: of the operand of a reduce-scatter or an all-to-all, and of
   *        the result of an all-gather or an all-to-all, each has one for each member.
   */
  virtual std::unique_ptr<StartedCollective> Start(const Ranks& ranks, const LibraryCall& call,
                                                   std::shared_ptr<const char> operand,
                                                   std::shared_ptr<char> result, int64_t count) = 0;
};

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_COMMUNICATORS_LIBRARY_COLLECTIVES_H_
