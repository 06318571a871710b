/*!
 * \file autosharding/kernels.h
 * \brief Prices the calls of a graph as parts of the kernels that TVM fuses them to.
 *
 * A kernel takes the longest of its operations, its bytes and a launch (roofline), and which of
 * them depends on the ways of all its calls. So a call is priced within the kernel that there is if
 * nothing is redistributed in it: the ways of the other calls follow from its own, tensor by
 * tensor. Prices of calls whose ways agree add up to the time of the kernel. Where a tensor within
 * it is redistributed, there are two kernels in place of one, and the redistribution has the
 * difference.
 *
 * Worked example: relu(x w) on 4 devices. Each way of the product that is not partial gives one of
 * the relu, and each pair has the operations of the product, say. With a partial product, the
 * product is a kernel that writes its result, and the relu one that reads it, behind an all-reduce.
 *
 * Kernels of layers that repeat are priced once.
 */
#ifndef DISTIR_AUTOSHARDING_KERNELS_H_
#define DISTIR_AUTOSHARDING_KERNELS_H_

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "autosharding/fusion.h"
#include "autosharding/moves.h"
#include "autosharding/ways.h"
#include "autosharding/work.h"
#include "propagation/graph.h"

namespace distir::autosharding {

class Kernels {
 public:
  struct Call {
    const NumberedWays* rule;
    const Work* work;
    bool is_needed;  // something that is returned depends on it
    bool is_folded;  // computed when the program is built, unless it is sharded
  };
  /*! \brief Prices of kernels that are alike, by what they are. */
  struct Prices {
    std::unordered_map<Words, int64_t, HashWords> kinds;
    std::unordered_map<Words, std::vector<double>, HashWords> calls, divisions;
  };

  /*!
   * \param is_outside By slot: it comes from, or goes to, a caller or another function.
   * \param prices Of graphs with the same moves and limits.
   */
  Kernels(const propagation::FunctionGraph& graph, std::vector<Call> calls,
          const std::vector<bool>& is_outside, const DeviceLimits& limits, const Moves& moves,
          Prices* prices);

  /*! \brief True if a tensor stays within a kernel, unless it is redistributed. */
  bool IsInner(int slot) const { return is_inner_[slot]; }
  /*! \brief Seconds that each way of a call adds to its kernels. */
  const std::vector<double>& SecondsOf(size_t call);
  /*! \brief Seconds of a call by itself, for bytes that it reads and writes. */
  double SecondsToAccess(size_t call, size_t way) const;

  /*! \brief Seconds that a redistribution of an inner tensor adds since it divides the kernel:
   * between the ways of the call that makes it and, row-major, those of its only reader. */
  const std::vector<double>& SecondsToDivide(int slot);
  /*! \brief Seconds as above, to shardings by their numbers, in front of all readers. */
  const std::vector<double>& SecondsToDivideBehind(int slot, const std::vector<int>& shardings);
  /*! \brief Seconds as above, from shardings to the ways of one reader. */
  const std::vector<double>& SecondsToDivideBefore(int slot, const std::vector<int>& shardings,
                                                   size_t reader, size_t operand);

 private:
  struct Use {
    size_t call;
    size_t index;
  };
  struct Piece {
    size_t call;
    size_t kernel;  // of the call
  };
  struct Group {
    std::vector<size_t> calls;
    std::vector<Piece> pieces;
    int64_t kind = -1;  // equal for groups that are alike
    bool shares_reads = false;
  };
  /*! \brief The way of each call of a group, or -1: not part of the kernel. */
  using Part = std::vector<int>;
  /*! \brief A tensor that is redistributed in front of one reader, or without one, of all. */
  struct Cut {
    int slot = -1;
    int64_t reader = -1;

    bool Divides(int other, size_t call) const {
      return slot == other && (reader < 0 || reader == static_cast<int64_t>(call));
    }
  };
  /*! \brief Calls with which a part begins: one with its way, or those that a tensor's sharding
   * gives one. */
  struct Start {
    std::vector<size_t> calls;
    int way = -1;
    int slot = -1;
    int number = -1;
  };
  struct Time {
    double seconds = 0;
    std::vector<double> shares;  // by call of the group
  };

  void MakeGroups();
  void Link();
  void NameKind(Group* group);
  /*! \brief The calls whose ways follow from a start, but for those of a part beside it. */
  Part Follow(const Group& group, const Start& start, Cut cut, const Part* beside);
  int Choose(size_t call, Cut cut) const;
  void Know(size_t call, int way);
  Time TimeOf(const Group& group, const Part& part) const;
  double BytesOf(const Group& group, const Part& part, const Piece& piece,
                 std::vector<std::pair<int, int>>* read) const;
  double ResultRatio(size_t call, int way) const;
  double Local(int slot, int number) const;
  const std::vector<double>& SharesIn(const Group& group, size_t position);
  double Excess(const Group& group, const Part& part);
  bool IsTangled(const Group& group, size_t from, size_t to, Cut cut) const;
  std::vector<double> Divisions(int slot, Cut cut, const std::vector<int>& before,
                                const std::vector<Start>& heads, const std::vector<int>& behind,
                                const std::vector<Start>& tails);
  static std::vector<Start> StartsOf(size_t call, size_t num_ways);
  size_t PositionOf(const Group& group, size_t call) const;
  int WayOf(const Group& group, const Part& part, size_t call) const;
  int OperandNumber(const Use& use, int way) const {
    return calls_[use.call].rule->operands[use.index][way];
  }
  int ResultNumber(const Use& use, int way) const {
    return calls_[use.call].rule->results[use.index][way];
  }

  const propagation::FunctionGraph& graph_;
  const std::vector<Call> calls_;
  const std::vector<bool>& is_outside_;
  const DeviceLimits& limits_;
  const Moves& moves_;
  Prices& prices_;
  std::vector<Use> maker_;                 // by slot; of inner ones there is one
  std::vector<std::vector<Use>> readers_;  // by slot, those that are needed
  std::vector<int> num_makers_;
  std::vector<bool> is_inner_;
  std::vector<std::vector<size_t>> groups_of_;  // by call, of each of its kernels
  std::vector<Group> groups_;
  // Follow notes for each slot the number of its sharding, and the run that found it.
  std::vector<int> number_;
  std::vector<int64_t> known_in_;
  int64_t run_ = 0;
};

}  // namespace distir::autosharding
#endif  // DISTIR_AUTOSHARDING_KERNELS_H_
