/*!
 * \file abi/collective.h
 * \brief Records of the collectives and of the operators of experts: name, bytes sent, members,
 * runtime builtin, and TVMScript form.
 *
 * Compiler, runtime, cost model, explanations, the parser of TVMScript and Python ask the record,
 * so a collective's name stands in `collective.cc` only. A collective has up to four names:
 *
 *     R.dist.all_gather          on DTensors                   OnDTensors(kAllGather)
 *     R.dist.manual_all_gather   within a manual region        InManualRegion(kAllGather)
 *     R.ccl.all_gather           on local tensors              OnTensors(kAllGather)
 *     distir.runtime.all_gather  what compiled programs call   Builtin(kAllGather)
 *
 * Worked example, an all-reduce of b = 12 bytes on each of n = 3 devices, which sends
 * 2 (n-1) b / n: SentBy(kAllReduce, 3) is {4, 3, 4}, that is 4 b / 3 = 16 bytes in 4 messages.
 */
#ifndef DISTIR_ABI_COLLECTIVE_H_
#define DISTIR_ABI_COLLECTIVE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "abi/builtin.h"

namespace distir::abi {

enum class Collective : uint8_t {
  // Between two shardings of one tensor: mesh::CollectiveKind has these, in this order.
  kAllGather,
  kAllToAll,
  kReduceScatter,
  kAllReduce,
  kSlice,
  kPermute,
  kExchange,
  kTransfer,
  kView,
  kSend,
  kRecv,
  kSegmentExchange,
  kAllReduceAddRmsNorm,
  kDispatchTokens,
  kCombineTokens,
  kDispatchSlots,
  kCombineSlots,
  kGatherRows,
  kScatterRows,
  kGroupedMatmul,
  kSelectTokens,
  kPlaceTokens,
  kSelectPairs,
  kPlacePairs,
};

enum class CollectiveFamily : uint8_t {
  kRedistribution,  // leads from one sharding of a tensor to another
  kSide,            // one side of a transfer, on devices that only send or only receive
  kSegments,        // moves segments along one dimension
  kFused,           // a collective with what is computed of its result
  kRows,            // rows of tokens to their experts, or back
  kKernel,          // computes rows of experts on one device; sends nothing
};

/*! \brief Bytes that a device sends, for b bytes of its argument and n members of its group. */
enum class Sends : uint8_t {
  kNothing,
  kBlock,          // its block to each other member: (n-1) b
  kParts,          // a part to each other member: (n-1) b / n
  kPartsAtOnce,    // as kParts, to all members at the same time
  kPartsAndBlock,  // parts, then the part that it has reduced: 2 (n-1) b / n
  kByPlan,         // what a plan says
};

/*! \brief Form in which a call states the devices that take part. */
enum class Members : uint8_t {
  kNone,      // it does not communicate
  kGroups,    // lists of device ids
  kTransfer,  // a plan of pieces (abi/transfer_plan.h)
  kSegments,  // a plan of segments (abi/segment_plan.h)
};

/*! \brief Source of the number of rows that an exchange moves, if not the shape of its argument. */
enum class RowCount : uint8_t {
  kShape,
  kSlots,  // the slots that tokens may choose
  kPairs,  // the tokens that have a choice on the device
};

struct CollectiveRecord {
  Collective collective;
  const char* name;
  CollectiveFamily family;
  Sends sends;
  Members members;
  /*! \brief Whose measured times are its own, and by whose formula it takes time. */
  Collective timed_as;
  /*! \brief The builtin that a compiled program calls; empty where lowering removes it. */
  const char* builtin;
  /*! \brief The only communication backend that has the builtin; empty if all have it. */
  const char* only_backend;
  /*! \brief The optimisation that writes it; empty if programs state it or lowering writes it. */
  const char* optimization;
  /*! \brief Tensors that it takes, as TVMScript names them: "x, ids". */
  const char* arguments;
  bool is_on_dtensors;  // R.dist
  bool states_target;   // R.dist states a device mesh and a placement behind the arguments
  bool is_on_tensors;   // R.ccl
  bool has_result;
  bool reduces;
  RowCount rows;
  const char* text;
  /*! \brief Name as R.dist.manual_<name> in manual regions; empty if it is none there. */
  const char* manual_text;
};

/*! \brief All, in the order of Collective. */
const std::vector<CollectiveRecord>& CollectiveRecords();
const CollectiveRecord& RecordOf(Collective collective);
/*! \brief "all_gather", .. */
const char* NameOf(Collective collective);
/*! \brief Null for other names. */
const CollectiveRecord* FindCollective(std::string_view name);

std::string OnDTensors(Collective collective);
/*! \brief Never freed. */
const std::string& InManualRegion(Collective collective);
std::string OnTensors(Collective collective);
std::string Builtin(Collective collective);
/*! \brief The builtin that returns a result which the workers of a group may share. */
std::string SharedBuiltin(Collective collective);

/*! \brief The record by the name of an operator on local tensors, "relax.ccl.all_gather"; or null.
 */
const CollectiveRecord* FindOnTensors(std::string_view name);
/*! \brief The record by the name of an operator on DTensors, those of manual regions left out. */
const CollectiveRecord* FindOnDTensors(std::string_view name);
/*! \brief The record by the global function of a builtin, also of one with a shared result. Permute
 * and exchange are kTransfer here: they are one to the runtime. */
const CollectiveRecord* FindBuiltin(std::string_view name);

/*! \brief Names of arguments one by one. */
std::vector<std::string> ArgumentsOf(const CollectiveRecord& record);

/*! \brief Bytes that a member of a group sends, and receives: `times` b / `divisor`. */
struct SentInGroup {
  int64_t times;
  int64_t divisor;
  int64_t messages;

  double Bytes(double b) const {
    return static_cast<double>(times) * b / static_cast<double>(divisor);
  }
  /*! \brief Rounded up: of a size that does not divide, some members send one more byte. */
  int64_t WholeBytes(int64_t b) const { return (times * b + divisor - 1) / divisor; }
};
/*! \throws ValueError where a plan says how much is sent. */
SentInGroup SentBy(Collective collective, int64_t members);

}  // namespace distir::abi
#endif  // DISTIR_ABI_COLLECTIVE_H_
