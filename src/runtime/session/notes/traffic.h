/*!
 * \file runtime/session/notes/traffic.h
 * \brief Counts the bytes that a worker sends and receives when programs call collectives.
 *
 * Bytes are counted as their records (abi::SentBy) and the plans state them, from the tensors and
 * groups that a program really gives: of a collective inside a group what a ring or pairwise
 * algorithm sends, whatever the backend does (workers that see each other's memory send nothing,
 * they read); of a transfer the pieces for other workers.
 *
 * Worked example: an all-gather of 4 bytes on each of 3 workers is 8 bytes in 2 messages.
 *
 * Counting costs one look-up by pointer for a collective, and nothing elsewhere.
 */
#ifndef DISTIR_RUNTIME_SESSION_NOTES_TRAFFIC_H_
#define DISTIR_RUNTIME_SESSION_NOTES_TRAFFIC_H_

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/string.h>

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/communicators/communicator.h"

namespace distir::abi {
enum class Collective : uint8_t;
}  // namespace distir::abi

namespace distir::runtime {

/*! \brief Bytes of one function by one collective on one group or plan. */
struct Flow {
  std::string function;
  abi::Collective kind;
  /*! \brief Groups or plan, as the program states them. */
  tvm::ffi::String descriptor;
  /*! \brief Ranks that the worker waits for: its group's, or those that send to it. */
  std::vector<int> waits_for;
  int64_t calls = 0;
  int64_t bytes_sent = 0, bytes_received = 0;
  int64_t messages = 0;  // that are sent
};

/*! \brief The counts of one worker. Used by its thread only. */
class Traffic {
 public:
  /*! \brief Collectives from now on are those of a function. */
  void FunctionBegins(const std::string& name);

  /*! \brief Counts a collective inside a group. \param bytes Of its argument on a worker. */
  void CountInGroup(abi::Collective kind, const tvm::ffi::String& groups, const Group& group,
                    int64_t bytes);
  /*! \brief Counts rows that move inside a group, of which a call says how many there are. */
  void CountRows(abi::Collective kind, const tvm::ffi::String& groups, const Group& group,
                 int64_t sent, int64_t received, int64_t messages);
  /*! \brief Counts the pieces of a plan. \param x, out As of Communicator::Transfer. */
  void CountPieces(abi::Collective kind, const tvm::ffi::String& text, const TransferPlan& plan,
                   const tvm::ffi::TensorView* x, const tvm::ffi::TensorView* out);

  /*! \brief The counted flows, in order of their first call. */
  const std::vector<Flow>& flows() const { return flows_; }
  /*! \brief The flow that was counted last since this was asked, or -1. */
  int TakeLast();
  /*! \brief Begins again from zero. */
  void Reset();

 private:
  /*! \brief Pieces of each local tensor that a worker sends and receives, in units of the plan. */
  struct Pieces {
    int64_t sent = 0, received = 0;
    int64_t source = 1, target = 1;  // units of the local tensors
    int64_t messages = 0;            // workers that get something
  };
  struct Key {
    const void* where;  // a group or a plan
    int function;
    abi::Collective kind;
    bool operator==(const Key& other) const {
      return where == other.where && function == other.function && kind == other.kind;
    }
  };
  struct KeyHash {
    size_t operator()(const Key& key) const {
      return std::hash<const void*>()(key.where) * 31 + static_cast<size_t>(key.function) * 32 +
             static_cast<size_t>(key.kind);
    }
  };

  /*! \brief The flow of a key; whether it is new. */
  std::pair<int, bool> Find(const Key& key, const tvm::ffi::String& descriptor);
  void Add(int flow, int64_t sent, int64_t received, int64_t messages);
  static Pieces PiecesOf(const TransferPlan& plan, Flow* flow);

  std::map<std::string, int> functions_;
  std::vector<std::string> names_;
  int function_ = -1;
  std::vector<Flow> flows_;
  std::vector<Pieces> pieces_;  // per flow
  std::unordered_map<Key, int, KeyHash> index_;
  int last_ = -1;
};

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_SESSION_NOTES_TRAFFIC_H_
