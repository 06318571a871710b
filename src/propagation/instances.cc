#include "propagation/instances.h"

#include <algorithm>

#include "rules/projection.h"

namespace distir {
namespace propagation {

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
    for (const SlotInfo& info : graph.slots) {
      std::vector<int64_t> sizes = rules::StaticSizes(info.type);
      int rank = static_cast<int>(sizes.size());
      program_.slots.push_back({&info, kNoRoot, false, mesh::Sharding::Replicated(rank),
                                std::move(sizes), rules::NumElements(info.type)});
    }
    for (const Source& source : graph.sources) {
      SlotState& slot = program_.slots[program_.instances[index].Slot(source.slot)];
      slot.root = source.root;
      slot.sharding = source.sharding;
      slot.is_stated = true;
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
      program_.links.push_back({node.rule.get(), Shifted(node.operands, offset),
                                Shifted(node.results, offset), &node.name, index});
    }
    open_.erase(&graph);
  }

  void VisitCall(int caller, const CallSite& site) {
    const FunctionGraph& graph = graph_of_(site.callee);
    bool is_new = false;
    int callee = CalleeInstance(graph, &is_new);
    program_.instances[caller].callee_of_call[site.call] = callee;
    int caller_offset = program_.instances[caller].slot_offset;
    int callee_offset = program_.instances[callee].slot_offset;
    Identify(Shifted(site.arguments, caller_offset), Shifted(graph.params, callee_offset), caller);
    if (is_new) Walk(callee);
    Identify(Shifted(graph.results, callee_offset), Shifted(site.results, caller_offset), caller);
  }

  int CalleeInstance(const FunctionGraph& graph, bool* is_new) {
    if (auto open = open_.find(&graph); open != open_.end()) {
      program_.instances[open->second].is_recursive = true;
      return open->second;
    }
    *is_new = true;
    if (program_.slots.size() < kMaxUnfoldedSlots) return Open(graph);
    auto [it, inserted] = shared_.try_emplace(&graph, kNoRoot);
    if (inserted) {
      it->second = Open(graph);
    } else {
      *is_new = false;
    }
    return it->second;
  }

  void Identify(const std::vector<int>& from, const std::vector<int>& to, int instance) {
    for (size_t i = 0; i < std::min(from.size(), to.size()); ++i) {
      if (program_.slots[from[i]].sizes.size() != program_.slots[to[i]].sizes.size()) continue;
      program_.identity_rules.push_back(std::make_shared<const rules::FactorRule>(
          rules::IdentityRule(program_.slots[from[i]].sizes)));
      program_.links.push_back(
          {program_.identity_rules.back().get(), {from[i]}, {to[i]}, &kCallName, instance});
    }
  }

  static std::vector<int> Shifted(const std::vector<int>& slots, int offset) {
    std::vector<int> shifted(slots);
    for (int& slot : shifted) slot += offset;
    return shifted;
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

}  // namespace propagation
}  // namespace distir
