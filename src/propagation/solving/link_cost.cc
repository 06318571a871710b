// Prices calls and moves of a solved program.
#include "propagation/solving/link_cost.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace distir::propagation {

namespace {

/*! \brief True if a rule tells the dimensions of all tensors of a link; those of values that only
 * pass through an operator have none. */
bool HasDims(const Program& program, const Link& link) {
  auto have = [&](IntRange slots, const std::vector<rules::TensorFactors>& tensors) {
    for (size_t i = 0; i < slots.size(); ++i) {
      if (tensors[i].size() != program.slots[slots[i]].info->sizes.size()) return false;
    }
    return true;
  };
  return have(program.Operands(link), link.rule->operands) &&
         have(program.Results(link), link.rule->results);
}

/*! \brief The mesh of a link: that of its results; none where its calls cannot be priced. */
int RootOf(const Program& program, const Link& link) {
  if (!link.is_identity && !HasDims(program, link)) return kNoRoot;
  int root = kNoRoot;
  for (int slot : program.Results(link)) root = std::max(root, program.slots[slot].root);
  return root;
}

std::vector<const mesh::Sharding*> ResultsOf(const Program& program, const Link& link) {
  std::vector<const mesh::Sharding*> results;
  for (int slot : program.Results(link)) results.push_back(&program.slots[slot].sharding);
  return results;
}

/*! \brief True if a dimension is one factor that may be sharded and is no part of a dimension. */
bool IsApart(const rules::FactorRule& rule, const rules::FactorList& dim) {
  if (dim.size() != 1 || rule.NeedsReplication(dim)) return false;
  auto has_part = [&dim](const rules::FactorList& other) {
    return other.size() > 1 && std::find(other.begin(), other.end(), dim[0]) != other.end();
  };
  for (const auto* tensors : {&rule.operands, &rule.results}) {
    for (const rules::TensorFactors& tensor : *tensors) {
      if (std::any_of(tensor.begin(), tensor.end(), has_part)) return false;
    }
  }
  return true;
}

bool Uses(const mesh::Sharding& sharding, const mesh::AxisRef& axis) {
  for (const mesh::AxisList& axes : sharding.dims) {
    for (const mesh::AxisRef& each : axes) {
      if (mesh::Overlaps(each, axis)) return true;
    }
  }
  return false;
}

}  // namespace

const mesh::Sharding* LinkCost::Placed(int operand, int root) const {
  const SlotState& slot = program_.slots[operand];
  return !slot.info->is_constant && slot.root == root ? &slot.sharding : nullptr;
}

rules::CallCost LinkCost::CostOf(const Link& link, int root,
                                 const std::vector<const mesh::Sharding*>& results) const {
  rules::PricedTensors priced[2];
  auto add = [this](int slot, const mesh::Sharding* sharding, rules::PricedTensors* to) {
    const SlotInfo& info = *program_.slots[slot].info;
    to->Add(sharding, info.sizes, info.bytes());
  };
  for (int operand : program_.Operands(link)) add(operand, Placed(operand, root), &priced[0]);
  for (size_t r = 0; r < results.size(); ++r)
    add(program_.Results(link)[r], results[r], &priced[1]);
  return rules::CallCost(&planner_, meshes_.Root(root), *link.rule, std::move(priced[0]),
                         std::move(priced[1]));
}

LinkCost::Priced LinkCost::Price(const Link& link, int root,
                                 const std::vector<const mesh::Sharding*>& results) const {
  std::vector<const mesh::Sharding*> operands;
  std::vector<double> elements;
  for (int operand : program_.Operands(link)) {
    operands.push_back(Placed(operand, root));
    elements.push_back(program_.slots[operand].info->elements);
  }
  const rules::CallCost cost = CostOf(link, root, results);
  Priced found{rules::DecideCall(*link.rule, operands, results, elements, cost), 0};
  found.seconds = cost.Seconds(found.sharding.factors);
  return found;
}

double LinkCost::SecondsToMove(int root, const SlotState& slot,
                               const mesh::Sharding& target) const {
  if (slot.sharding == target) return 0;
  planning::TensorSize size;
  for (int64_t dim : slot.info->sizes) size.dims.push_back(std::max<int64_t>(dim, 0));
  size.bytes = slot.info->bytes();
  return planner_
      .Find(meshes_.Root(root), slot.sharding, target,
            planning::PaddedFor(size, slot.sharding, target))
      .seconds;
}

bool LinkCost::HasUnusedAxes(const Link& link) const {
  if (link.is_identity || link.crossing != nullptr) return false;
  const IntRange operands = program_.Operands(link), results = program_.Results(link);
  auto has_result = [&](const mesh::AxisRef& axis) {
    return std::any_of(results.begin(), results.end(),
                       [&](int result) { return Uses(program_.slots[result].sharding, axis); });
  };
  bool found = false;
  for (size_t i = 0; i < operands.size() && !found; ++i) {
    const mesh::Sharding& sharding = program_.slots[operands[i]].sharding;
    for (size_t d = 0; d < sharding.dims.size() && !found; ++d) {
      const mesh::AxisList& axes = sharding.dims[d];
      found = !std::all_of(axes.begin(), axes.end(), has_result) &&
              !IsApart(*link.rule, link.rule->operands[i][d]);
    }
  }
  return found && RootOf(program_, link) != kNoRoot &&
         std::all_of(results.begin(), results.end(),
                     [&](int result) { return program_.slots[result].stated == nullptr; });
}

std::vector<rules::FactorShardings> LinkCost::Rehomed(const Link& link) const {
  const int root = RootOf(program_, link);
  const std::vector<const mesh::Sharding*> anywhere(link.num_results, nullptr);
  return CostOf(link, root, anywhere)
      .Rehomed(Price(link, root, ResultsOf(program_, link)).sharding.factors);
}

double LinkCost::Seconds(const Link& link) const {
  const int root = RootOf(program_, link);
  if (root == kNoRoot || link.crossing != nullptr) return 0;
  const std::vector<const mesh::Sharding*> results = ResultsOf(program_, link);
  if (!link.is_identity) return Price(link, root, results).seconds;
  const SlotState& operand = program_.slots[program_.Operands(link)[0]];
  return operand.root == root ? SecondsToMove(root, operand, *results[0]) : 0;
}

void LinkCost::PriceAsRead(int made, int read) const {
  SlotState& slot = program_.slots[made];
  const SlotState& stated = program_.slots[read];
  if (stated.stated == nullptr || slot.stated != nullptr || stated.root != slot.root ||
      slot.root == kNoRoot || users_[made].size() != 2 || stated.sharding == slot.sharding)
    return;
  const Link& maker = program_.links[users_[made][0]];
  const IntRange results = program_.Results(maker);
  if (maker.is_identity || maker.crossing != nullptr || results.size() != 1 || results[0] != made ||
      program_.Operands(maker).size() == 0 || RootOf(program_, maker) == kNoRoot)
    return;
  const Priced as_is = Price(maker, slot.root, {&slot.sharding});
  Priced as_read = Price(maker, slot.root, {&stated.sharding});
  const double moved = SecondsToMove(slot.root, slot, stated.sharding);
  // Of ways that take equally long, the one in which what was stated moves.
  if (as_read.seconds >= (as_is.seconds + moved) * (1 - 1e-9)) return;
  slot.read_as = read;
  slot.sharding = std::move(as_read.sharding.results[0]);
}

}  // namespace distir::propagation
