// Caches the decision how a call is computed, by rule, mesh and shardings.
#include "propagation/emission/decided_calls.h"

#include <tvm/ffi/error.h>

#include <utility>

#include "mesh/common_view.h"
#include "rules/call/call_cost.h"

namespace distir::propagation {

// The rule says how many operands and results there are, and of how many dimensions.
void DecidedCalls::MakeKey(const rules::FactorRule& rule, const CallTensors& tensors) {
  key_ = {Address(&rule), tensors.root};
  for (size_t i = 0; i < tensors.operands.size(); ++i) {
    const SlotInfo& info = *tensors.operand_infos[i];
    for (int64_t part : {Address(tensors.operands[i]), Bits(info.elements), Bits(info.bytes())})
      key_.push_back(part);
  }
  for (size_t i = 0; i < tensors.results.size(); ++i) {
    key_.push_back(Bits(tensors.result_infos[i]->bytes()));
    for (const mesh::AxisList& dim : tensors.results[i]->dims) {
      key_.push_back(static_cast<int64_t>(dim.size()));
      for (const mesh::AxisRef& ref : dim) {
        for (int64_t part : {static_cast<int64_t>(ref.axis), ref.pre_size, ref.size})
          key_.push_back(part);
      }
    }
  }
}

DecidedCall* DecidedCalls::Find(const rules::FactorRule& rule, const CallTensors& tensors) {
  MakeKey(rule, tensors);
  auto found = decided_.find(key_);
  if (found == decided_.end()) found = decided_.emplace(key_, Decide(rule, tensors)).first;
  return &found->second;
}

DecidedCall DecidedCalls::Decide(const rules::FactorRule& rule, const CallTensors& tensors) {
  rules::PricedTensors operands, results;
  std::vector<double> elements;
  for (size_t i = 0; i < tensors.operands.size(); ++i) {
    const SlotInfo& info = *tensors.operand_infos[i];
    operands.Add(tensors.operands[i], info.sizes, info.bytes());
    elements.push_back(info.elements);
  }
  for (size_t i = 0; i < tensors.results.size(); ++i) {
    const SlotInfo& info = *tensors.result_infos[i];
    results.Add(tensors.results[i], info.sizes, info.bytes());
  }
  const rules::CallCost cost(&planner_, meshes_.Root(tensors.root), rule, std::move(operands),
                             std::move(results));
  DecidedCall decided;
  decided.sharding = rules::DecideCall(rule, tensors.operands, tensors.results, elements, cost);
  decided.view = ViewFor(tensors.root, decided.sharding);
  for (const mesh::Sharding& operand : decided.sharding.operands)
    decided.operands.push_back({operand, meshes_.PlacementOn(decided.view, tensors.root, operand)});
  return decided;
}

/*! \brief A mesh on which all shardings of a call can be named: the root if possible. */
ir::DeviceMesh DecidedCalls::ViewFor(int root, const rules::CallSharding& sharding) {
  ir::DeviceMesh root_mesh = meshes_.RootMesh(root);
  bool root_serves = true;
  for (const auto* shardings : {&sharding.operands, &sharding.results}) {
    for (const mesh::Sharding& each : *shardings)
      root_serves = root_serves && meshes_.PlacementOn(root_mesh, root, each).defined();
  }
  if (root_serves) return root_mesh;
  // The lists come from one factor rule, so they agree on the order of what they share.
  std::vector<mesh::AxisList> lists;
  for (const auto* shardings : {&sharding.operands, &sharding.results}) {
    for (const mesh::Sharding& each : *shardings)
      lists.insert(lists.end(), each.dims.begin(), each.dims.end());
  }
  std::optional<mesh::Mesh> view = mesh::CommonView(meshes_.Root(root), lists);
  TVM_FFI_ICHECK(view.has_value()) << "the shardings of a call have no common mesh";
  return meshes_.Intern(*view);
}

}  // namespace distir::propagation
