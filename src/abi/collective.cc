// The records of collectives, and the functions that find them by name.
#include "abi/collective.h"

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/string.h>

#include "support/functions.h"

namespace distir::abi {

namespace ffi = tvm::ffi;

namespace {

constexpr std::string_view kDTensorPrefix = "relax.dist.";
constexpr std::string_view kManualPrefix = "relax.dist.manual_";
constexpr std::string_view kTensorPrefix = "relax.ccl.";
constexpr std::string_view kSharedPrefix = "shared_";
constexpr const char* kHostOnly = "cpu";  // needs tensors in the memory of the host
constexpr const char* kExperts = "dispatch_experts";
constexpr const char* kSlots = "dispatch_slots";
constexpr const char* kWeighted = "dispatch_weighted";

// ---- one function per family; what its collectives have in common

CollectiveRecord Redistribution(Collective collective, const char* name, Sends sends,
                                const char* text) {
  const bool is_plan = sends == Sends::kByPlan;
  const Members members = is_plan ? Members::kTransfer : Members::kGroups;
  return {collective,
          name,
          CollectiveFamily::kRedistribution,
          sends,
          members,
          collective,
          name,
          "",
          "",
          "x",
          true,
          true,
          true,
          true,
          false,
          RowCount::kShape,
          text,
          ""};
}

CollectiveRecord Side(Collective collective, const char* name, const char* arguments,
                      bool has_result, const char* text) {
  CollectiveRecord record = Redistribution(collective, name, Sends::kByPlan, text);
  record.family = CollectiveFamily::kSide;
  record.timed_as = Collective::kTransfer;
  record.arguments = arguments;
  record.is_on_dtensors = record.states_target = false;
  record.has_result = has_result;
  return record;
}

CollectiveRecord Rows(Collective collective, const char* name, const char* arguments, RowCount rows,
                      const char* optimization, const char* text) {
  CollectiveRecord record = Redistribution(collective, name, Sends::kPartsAtOnce, text);
  record.family = CollectiveFamily::kRows;
  record.timed_as = Collective::kAllToAll;  // where experts are chosen equally often
  record.only_backend = kHostOnly;
  record.optimization = optimization;
  record.arguments = arguments;
  record.states_target = false;
  record.rows = rows;
  return record;
}

CollectiveRecord Kernel(Collective collective, const char* name, const char* arguments,
                        const char* optimization, const char* text) {
  CollectiveRecord record = Rows(collective, name, arguments, RowCount::kShape, optimization, text);
  record.family = CollectiveFamily::kKernel;
  record.sends = Sends::kNothing;
  record.members = Members::kNone;
  record.timed_as = collective;
  record.is_on_tensors = false;  // a call of the builtin at once
  return record;
}

CollectiveRecord Manual(CollectiveRecord record, const char* text) {
  record.manual_text = text;
  return record;
}
CollectiveRecord Reduces(CollectiveRecord record) {
  record.reduces = true;
  return record;
}
/*! \brief A redistribution that the runtime or the cost model takes for another one. */
CollectiveRecord As(Collective timed_as, const char* builtin, CollectiveRecord record) {
  record.timed_as = timed_as;
  record.builtin = builtin;
  return record;
}

CollectiveRecord SegmentExchange() {
  CollectiveRecord record =
      As(Collective::kPermute, "segment_exchange",
         Redistribution(Collective::kSegmentExchange, "segment_exchange", Sends::kByPlan,
                        "Moves segments along one dimension; every device gets what it lacks."));
  record.family = CollectiveFamily::kSegments;
  record.members = Members::kSegments;
  return record;
}

CollectiveRecord AllReduceAddRmsNorm() {
  CollectiveRecord record = Reduces(Redistribution(
      Collective::kAllReduceAddRmsNorm, "all_reduce_add_rms_norm", Sends::kPartsAndBlock,
      "Sums over mesh axes, adds a residual, and norms the result."));
  record.family = CollectiveFamily::kFused;
  record.timed_as = Collective::kAllReduce;
  record.only_backend = kHostOnly;
  record.optimization = "fuse_all_reduce_norm";
  record.arguments = "x, residual, weight";
  return record;
}

/*! \brief Names the same shards anew; lowering removes it. */
CollectiveRecord View() {
  CollectiveRecord record = Redistribution(Collective::kView, "view", Sends::kNothing,
                                           "Names the same shards by another view of the mesh.");
  record.members = Members::kNone;
  record.builtin = "";
  record.is_on_tensors = false;
  return record;
}

std::vector<CollectiveRecord> MakeRecords() {
  using C = Collective;
  constexpr const char* kTransfer = "transfer";
  return {
      Manual(Redistribution(C::kAllGather, "all_gather", Sends::kBlock,
                            "Gathers shards of one dimension over mesh axes."),
             "Joins the values of the devices along manual axes."),
      Manual(Redistribution(C::kAllToAll, "all_to_all", Sends::kPartsAtOnce,
                            "Moves mesh axes from one dimension to another."),
             "Each device along manual axes gets a part of each value, joined."),
      Reduces(Manual(Redistribution(C::kReduceScatter, "reduce_scatter", Sends::kParts,
                                    "Reduces over mesh axes, each device keeps its shard."),
                     "Reduces values along manual axes, of which each device keeps its part.")),
      Reduces(Manual(Redistribution(C::kAllReduce, "all_reduce", Sends::kPartsAndBlock,
                                    "Reduces over mesh axes, every device keeps the whole."),
                     "Reduces the values of the devices along manual axes.")),
      Redistribution(C::kSlice, "slice", Sends::kNothing,
                     "Each device keeps its shard of a replicated dimension."),
      Manual(As(C::kPermute, kTransfer,
                Redistribution(C::kPermute, "permute", Sends::kByPlan,
                               "Moves whole blocks to other devices.")),
             "Sends whole values to devices along manual axes; who gets none has zeros."),
      As(C::kPermute, kTransfer,
         Redistribution(C::kExchange, "exchange", Sends::kByPlan,
                        "Brings every device the parts of its block that it lacks.")),
      Redistribution(C::kTransfer, kTransfer, Sends::kByPlan,
                     "Moves a tensor to another device set."),
      View(),
      Side(C::kSend, "send", "x", false,
           "Sends the pieces of a transfer; for devices that receive nothing."),
      Side(C::kRecv, "recv", "", true,
           "Receives the pieces of a transfer; for devices that send nothing."),
      SegmentExchange(),
      AllReduceAddRmsNorm(),
      Rows(C::kDispatchTokens, "dispatch_tokens", "x, ids", RowCount::kShape, kExperts,
           "Sends rows to the devices of their experts."),
      Rows(C::kCombineTokens, "combine_tokens", "y, ids, counts", RowCount::kShape, kExperts,
           "Brings rows back from the devices of their experts."),
      Rows(C::kDispatchSlots, "dispatch_slots", "x, mask", RowCount::kSlots, kSlots,
           "Sends rows of tokens to the slots that they are in."),
      Rows(C::kCombineSlots, "combine_slots", "y, mask", RowCount::kSlots, kSlots,
           "Brings the rows of slots back to the tokens in them."),
      Rows(C::kGatherRows, "gather_rows", "x, weights", RowCount::kPairs, kWeighted,
           "Gathers the rows of tokens that have an expert on the device."),
      Rows(C::kScatterRows, "scatter_rows", "x, weights", RowCount::kPairs, kWeighted,
           "Brings the rows of tokens that have an expert on the device back."),
      Kernel(C::kGroupedMatmul, "grouped_matmul", "rows, experts, counts", "",
             "Multiplies rows, ordered by expert, by the matrix of their expert."),
      Kernel(C::kSelectTokens, "select_tokens", "x, ids, first", kExperts,
             "Takes the rows of the experts that a device has."),
      Kernel(C::kPlaceTokens, "place_tokens", "y, ids, counts, first", kExperts,
             "Puts rows of a device's experts in their places."),
      Kernel(C::kSelectPairs, "select_pairs", "x, weights", kWeighted,
             "Takes the pairs of tokens and experts whose weight is not 0."),
      Kernel(C::kPlacePairs, "place_pairs", "rows, weights", kWeighted,
             "Adds rows of pairs up by token."),
  };
}

const CollectiveRecord* FindBehind(std::string_view prefix, std::string_view name) {
  if (name.substr(0, prefix.size()) != prefix) return nullptr;
  return FindCollective(name.substr(prefix.size()));
}

std::string Joined(std::string_view prefix, Collective collective) {
  return std::string(prefix) + NameOf(collective);
}

}  // namespace

const std::vector<CollectiveRecord>& CollectiveRecords() {
  // A function-local static: operators and builtins are registered while the library is loaded.
  static const std::vector<CollectiveRecord> records = MakeRecords();
  return records;
}

const CollectiveRecord& RecordOf(Collective collective) {
  return CollectiveRecords()[static_cast<size_t>(collective)];
}

const char* NameOf(Collective collective) { return RecordOf(collective).name; }

const CollectiveRecord* FindCollective(std::string_view name) {
  for (const CollectiveRecord& record : CollectiveRecords()) {
    if (record.name == name) return &record;
  }
  return nullptr;
}

std::string OnDTensors(Collective collective) { return Joined(kDTensorPrefix, collective); }
const std::string& InManualRegion(Collective collective) {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const CollectiveRecord& record : CollectiveRecords())
      all.push_back(Joined(kManualPrefix, record.collective));
    return all;
  }();
  return names[static_cast<size_t>(collective)];
}
std::string OnTensors(Collective collective) { return Joined(kTensorPrefix, collective); }
std::string Builtin(Collective collective) { return kRuntime + RecordOf(collective).builtin; }
std::string SharedBuiltin(Collective collective) {
  return kRuntime + Joined(kSharedPrefix, collective);
}

const CollectiveRecord* FindOnTensors(std::string_view name) {
  return FindBehind(kTensorPrefix, name);
}
const CollectiveRecord* FindOnDTensors(std::string_view name) {
  return FindBehind(kDTensorPrefix, name);
}
const CollectiveRecord* FindBuiltin(std::string_view name) {
  if (name.substr(0, kRuntime.size()) != kRuntime) return nullptr;
  name.remove_prefix(kRuntime.size());
  if (name.substr(0, kSharedPrefix.size()) == kSharedPrefix)
    name.remove_prefix(kSharedPrefix.size());
  return FindCollective(name);
}

std::vector<std::string> ArgumentsOf(const CollectiveRecord& record) {
  std::vector<std::string> names;
  for (const char* c = record.arguments; *c != '\0'; ++c) {
    if (names.empty() || *c == ',') names.emplace_back();
    if (*c != ',' && *c != ' ') names.back() += *c;
  }
  return names;
}

SentInGroup SentBy(Collective collective, int64_t members) {
  const int64_t others = members - 1;
  switch (RecordOf(collective).sends) {
    case Sends::kNothing:
      return {0, 1, 0};
    case Sends::kBlock:
      return {others, 1, others};
    case Sends::kParts:
    case Sends::kPartsAtOnce:
      return {others, members, others};
    case Sends::kPartsAndBlock:
      return {2 * others, members, 2 * others};
    case Sends::kByPlan:
      break;
  }
  TVM_FFI_THROW(ValueError) << "the bytes of " << NameOf(collective) << " depend on its plan";
  TVM_FFI_UNREACHABLE();
}

namespace {

const char* TextOf(CollectiveFamily family) {
  switch (family) {
    case CollectiveFamily::kRedistribution:
      return "redistribution";
    case CollectiveFamily::kSide:
      return "side";
    case CollectiveFamily::kSegments:
      return "segments";
    case CollectiveFamily::kFused:
      return "fused";
    case CollectiveFamily::kRows:
      return "rows";
    case CollectiveFamily::kKernel:
      return "kernel";
  }
  return "";
}

const char* TextOf(Sends sends) {
  switch (sends) {
    case Sends::kNothing:
      return "";
    case Sends::kBlock:
      return "(n-1) b";
    case Sends::kParts:
    case Sends::kPartsAtOnce:
      return "(n-1) b / n";
    case Sends::kPartsAndBlock:
      return "2 (n-1) b / n";
    case Sends::kByPlan:
      return "plan";
  }
  return "";
}

const char* TextOf(Members members) {
  switch (members) {
    case Members::kNone:
      return "";
    case Members::kGroups:
      return "groups";
    case Members::kTransfer:
      return "transfer";
    case Members::kSegments:
      return "segments";
  }
  return "";
}

const char* TextOf(RowCount rows) {
  switch (rows) {
    case RowCount::kShape:
      return "";
    case RowCount::kSlots:
      return "slots";
    case RowCount::kPairs:
      return "pairs";
  }
  return "";
}

/*! \brief A record as plain data, whose keys `native/collective_records.py` has as fields. */
ffi::Map<ffi::String, ffi::Any> ToData(const CollectiveRecord& record) {
  ffi::Array<ffi::String> arguments;
  for (const std::string& name : ArgumentsOf(record)) arguments.push_back(name);
  ffi::Map<ffi::String, ffi::Any> data;
  const auto set = [&data](const char* key, const ffi::Any& value) { data.Set(key, value); };
  set("name", ffi::String(record.name));
  set("family", ffi::String(TextOf(record.family)));
  set("sends", ffi::String(TextOf(record.sends)));
  set("members", ffi::String(TextOf(record.members)));
  set("timed_as", ffi::String(NameOf(record.timed_as)));
  set("builtin", ffi::String(record.builtin));
  set("only_backend", ffi::String(record.only_backend));
  set("optimization", ffi::String(record.optimization));
  set("arguments", arguments);
  set("is_on_dtensors", record.is_on_dtensors);
  set("states_target", record.states_target);
  set("is_on_tensors", record.is_on_tensors);
  set("has_result", record.has_result);
  set("reduces", record.reduces);
  set("rows", ffi::String(TextOf(record.rows)));
  set("text", ffi::String(record.text));
  set("manual_text", ffi::String(record.manual_text));
  return data;
}

TVM_FFI_STATIC_INIT_BLOCK() {
  support::Functions().def("distir.abi.CollectiveRecords", [] {
    ffi::Array<ffi::Any> records;
    for (const CollectiveRecord& record : CollectiveRecords()) records.push_back(ToData(record));
    return records;
  });
}

}  // namespace

}  // namespace distir::abi
