// Unfolds a program along its calls: one instance of a function's graph for each call path.
#include "propagation/instances.h"

#include <algorithm>
namespace distir::propagation {

namespace {

// Enough for any model written out per layer; a guard against call graphs that unfold
// exponentially.
constexpr size_t kMaxUnfoldedSlots = 200000;

class Unfolder {
 public:
  Unfolder(Program* program, const GraphOf& graph_of) : program_(*program), graph_of_(graph_of) {}

  int Visit(const FunctionGraph& graph) {
    int index = Open(graph);
    Walk(index);
    return index;
  }

 private:
  // Makes the instance and its slots.
  int Open(const FunctionGraph& graph) {
    int index = static_cast<int>(program_.instances.size());
    Instance instance{&graph, static_cast<int>(program_.slots.size()), {}};
    program_.instances.push_back(std::move(instance));
    if (index == 0) {  // in most programs all there is
      program_.slots.reserve(graph.slots.size());
      program_.links.reserve(graph.nodes.size());
    }
    for (const SlotInfo& info : graph.slots) {
      int rank = static_cast<int>(info.sizes.size());
      program_.slots.push_back({&info, kNoRoot, nullptr, mesh::Sharding::Replicated(rank)});
    }
    for (const Source& source : graph.sources) {
      SlotState& slot = program_.slots[program_.instances[index].Slot(source.slot)];
      slot.root = source.root;
      slot.sharding = source.sharding;
      slot.stated = &source;
    }
    return index;
  }

  // Adds the links of its body.
  void Walk(int index) {
    const FunctionGraph& graph = *program_.instances[index].graph;
    int offset = program_.instances[index].slot_offset;
    open_[&graph] = index;
    size_t next_call = 0;
    for (size_t i = 0; i <= graph.nodes.size(); ++i) {
      for (; next_call < graph.calls.size() && graph.calls[next_call].position == i; ++next_call) {
        VisitCall(index, graph.calls[next_call]);
      }
      if (i == graph.nodes.size()) break;
      const Node& node = graph.nodes[i];
      AddLink(node.rule, &node.name, node.operands, offset, node.results, offset);
      program_.links.back().blocked = node.blocked;
      program_.links.back().crossing = node.crossing;
      program_.links.back().is_identity = node.is_identity;
    }
    open_.erase(&graph);
  }

  void VisitCall(int caller, const CallSite& site) {
    const FunctionGraph& graph = graph_of_(site.callee);
    const auto [callee, is_new] = CalleeInstance(graph);
    program_.instances[caller].callee_of_call[site.call] = callee;
    int caller_offset = program_.instances[caller].slot_offset;
    int callee_offset = program_.instances[callee].slot_offset;
    Identify(site.arguments, caller_offset, graph.params, callee_offset);
    if (is_new) Walk(callee);
    Identify(graph.results, callee_offset, site.results, caller_offset);
  }

  struct Callee {
    int instance;
    bool is_new;
  };

  Callee CalleeInstance(const FunctionGraph& graph) {
    if (auto open = open_.find(&graph); open != open_.end()) {
      program_.instances[open->second].is_recursive = true;
      return {open->second, false};
    }
    if (program_.slots.size() < kMaxUnfoldedSlots) return {Open(graph), true};
    auto [it, is_new] = shared_.try_emplace(&graph, kNoRoot);
    if (is_new) it->second = Open(graph);
    return {it->second, is_new};
  }

  void Identify(const SlotList& from, int from_offset, const SlotList& to, int to_offset) {
    for (size_t i = 0; i < std::min(from.size(), to.size()); ++i) {
      const SlotState& slot = program_.slots[from[i] + from_offset];
      const rules::Sizes& sizes = slot.info->sizes;
      if (sizes.size() != program_.slots[to[i] + to_offset].info->sizes.size()) continue;
      AddLink(program_.identity_rules.Add(rules::IdentityRule(sizes)), &kCallName, {from[i]},
              from_offset, {to[i]}, to_offset);
      program_.links.back().is_identity = true;
    }
  }

  void AddLink(const rules::FactorRule* rule, const ffi::String* name, const SlotList& operands,
               int operand_offset, const SlotList& results, int result_offset) {
    program_.links.push_back({rule, name, static_cast<int>(program_.link_slots.size()),
                              static_cast<int>(operands.size()), static_cast<int>(results.size())});
    for (int slot : operands) program_.link_slots.push_back(slot + operand_offset);
    for (int slot : results) program_.link_slots.push_back(slot + result_offset);
  }

  static const ffi::String kCallName;

  Program& program_;
  const GraphOf& graph_of_;
  std::unordered_map<const FunctionGraph*, int> open_;
  std::unordered_map<const FunctionGraph*, int> shared_;
};

const ffi::String Unfolder::kCallName = "call";

}  // namespace

Program Unfold(const FunctionGraph& root, const GraphOf& graph_of) {
  Program program;
  Unfolder(&program, graph_of).Visit(root);
  return program;
}

}  // namespace distir::propagation
