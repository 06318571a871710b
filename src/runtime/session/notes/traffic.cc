// Counts the bytes that a worker sends and receives, by collective.
#include "runtime/session/notes/traffic.h"

#include <tvm/ffi/error.h>

#include <set>
#include <utility>

#include "abi/collective.h"
#include "runtime/kernels/strided_copy.h"
#include "runtime/session/worker_context.h"
#include "support/functions.h"

namespace distir::runtime {

namespace ffi = tvm::ffi;

void Traffic::FunctionBegins(const std::string& name) {
  auto [known, is_new] = functions_.emplace(name, static_cast<int>(names_.size()));
  if (is_new) names_.push_back(name);
  function_ = known->second;
}

std::pair<int, bool> Traffic::Find(const Key& key, const ffi::String& descriptor) {
  auto [known, is_new] = index_.emplace(key, static_cast<int>(flows_.size()));
  if (is_new) {
    Flow flow;
    if (key.function >= 0) flow.function = names_[key.function];
    flow.kind = key.kind;
    flow.descriptor = descriptor;
    flows_.push_back(std::move(flow));
    pieces_.emplace_back();
  }
  return {known->second, is_new};
}

void Traffic::Add(int flow, int64_t sent, int64_t received, int64_t messages) {
  Flow& counted = flows_[flow];
  ++counted.calls;
  counted.bytes_sent += sent;
  counted.bytes_received += received;
  counted.messages += messages;
  last_ = flow;
}

void Traffic::CountInGroup(abi::Collective kind, const ffi::String& groups, const Group& group,
                           int64_t bytes) {
  const auto [flow, is_new] = Find({&group, function_, kind}, groups);
  if (is_new) flows_[flow].waits_for = group.ranks;
  const abi::SentInGroup by = abi::SentBy(kind, group.size());
  const int64_t sent = by.WholeBytes(bytes);
  Add(flow, sent, sent, by.messages);  // each member receives as much
}

void Traffic::CountRows(abi::Collective kind, const ffi::String& groups, const Group& group,
                        int64_t sent, int64_t received, int64_t messages) {
  const auto [flow, is_new] = Find({&group, function_, kind}, groups);
  if (is_new) flows_[flow].waits_for = group.ranks;
  Add(flow, sent, received, messages);
}

Traffic::Pieces Traffic::PiecesOf(const TransferPlan& plan, Flow* flow) {
  Pieces pieces;
  for (int64_t units : plan.source_units) pieces.source *= units;
  for (int64_t units : plan.target_units) pieces.target *= units;
  std::set<int> targets, sources;
  for (const TransferPiece& piece : plan.sends) {
    if (piece.peer == plan.rank) continue;
    pieces.sent += NumElements(piece.extent);
    targets.insert(piece.peer);
  }
  for (const TransferPiece& piece : plan.receives) {
    if (piece.peer == plan.rank) continue;
    pieces.received += NumElements(piece.extent);
    sources.insert(piece.peer);
  }
  pieces.messages = static_cast<int64_t>(targets.size());
  flow->waits_for.assign(sources.begin(), sources.end());
  return pieces;
}

void Traffic::CountPieces(abi::Collective kind, const ffi::String& text, const TransferPlan& plan,
                          const ffi::TensorView* x, const ffi::TensorView* out) {
  const auto [flow, is_new] = Find({&plan, function_, kind}, text);
  if (is_new) pieces_[flow] = PiecesOf(plan, &flows_[flow]);
  const Pieces& pieces = pieces_[flow];
  // Every dimension is a multiple of its units, so a unit is the same number of elements anywhere.
  auto bytes = [](const ffi::TensorView* tensor, int64_t units, int64_t all) -> int64_t {
    if (tensor == nullptr || all == 0) return 0;
    return tensor->numel() / all * units * ElementBytes(tensor->dtype());
  };
  Add(flow, bytes(x, pieces.sent, pieces.source), bytes(out, pieces.received, pieces.target),
      pieces.messages);
}

int Traffic::TakeLast() { return std::exchange(last_, -1); }

void Traffic::Reset() {
  flows_.clear();
  pieces_.clear();
  index_.clear();
  last_ = -1;
}

namespace {

// A row per flow: function, kind, descriptor, ranks that are waited for, calls, bytes that were
// sent, bytes that were received, messages.
ffi::Array<ffi::Any> Rows(const Traffic& traffic) {
  ffi::Array<ffi::Any> rows;
  for (const Flow& flow : traffic.flows()) {
    rows.push_back(ffi::Array<ffi::Any>{
        ffi::String(flow.function), ffi::String(abi::NameOf(flow.kind)), flow.descriptor,
        ffi::Shape(flow.waits_for.begin(), flow.waits_for.end()), flow.calls, flow.bytes_sent,
        flow.bytes_received, flow.messages});
  }
  return rows;
}

TVM_FFI_STATIC_INIT_BLOCK() {
  support::Functions()
      .def("distir.runtime.traffic", []() { return Rows(WorkerContext::Current().traffic()); })
      .def("distir.runtime.reset_traffic", []() { WorkerContext::Current().traffic().Reset(); });
}

}  // namespace

}  // namespace distir::runtime
