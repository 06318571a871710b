// Assigns the bindings of a function to virtual stages.
#include "lower/stages/virtual_stages.h"

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/error.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "dialect/operators/collective.h"
#include "ir/rewriter.h"
#include "support/error.h"

namespace distir::lower {

namespace {

constexpr int kUnknown = -1;

/*! \brief A binding of the body. */
struct Item {
  ir::Var var;
  std::vector<ir::Var> uses;
  bool is_free;                                                // it depends on weights only
  int source_position = kUnknown, target_position = kUnknown;  // of a transfer
  int virtual_stage = kUnknown;

  bool IsTransfer() const { return source_position != kUnknown; }
};

int64_t SmallestDevice(const ir::Type& type, dialect::MeshTable* meshes) {
  auto dtensor = ir::DTensorType::Cast(type);
  const auto& devices =
      meshes->Root(meshes->DevicesOf(meshes->RootOf(dtensor.device_mesh()))).device_ids;
  return *std::min_element(devices.begin(), devices.end());
}

/*! \brief True if a binding brings a value to another mesh. */
bool IsTransfer(const ir::Call& call, dialect::MeshTable* meshes) {
  auto kind = call.defined() ? dialect::DTensorCollective(call.op()) : std::nullopt;
  if (!kind.has_value() || !mesh::HasPieces(*kind)) return false;
  auto source = ir::DTensorType::Cast(call.args()[0].ty());
  auto target = ir::DTensorType::Cast(call.ty());
  return meshes->RootOf(source.device_mesh()) != meshes->RootOf(target.device_mesh());
}

class VirtualStageFinder {
 public:
  VirtualStageFinder(const ir::Function& function, dialect::MeshTable* meshes,
                     const std::function<int(const ir::Type&)>& position_of) {
    const auto num_input = ir::GetAttr(function.attrs(), "num_input").as<int64_t>();
    std::unordered_set<const ffi::Object*> weights;
    for (size_t i = 0; num_input.has_value() && i < function.params().size(); ++i) {
      if (static_cast<int64_t>(i) >= *num_input) weights.insert(function.params()[i].get());
    }
    for (const ir::BindingBlock& block : function.body().blocks()) {
      for (const ir::Binding& binding : block.bindings()) {
        auto cast = ir::MatchCast::Cast(binding);
        Item item;
        item.var = binding.var();
        ir::VisitUses(cast.defined() ? cast.value() : ir::VarBinding::Cast(binding).value(),
                      [&](const ir::Var& used) { item.uses.push_back(used); });
        item.is_free = std::all_of(item.uses.begin(), item.uses.end(), [&](const ir::Var& used) {
          const Item* its = Find(used);
          return its == nullptr ? weights.count(used.get()) > 0 : its->is_free;
        });
        if (ir::Call call = ir::BoundCall(binding); IsTransfer(call, meshes)) {
          item.source_position = position_of(call.args()[0].ty());
          item.target_position = position_of(call.ty());
        }
        index_[item.var.get()] = items_.size();
        items_.push_back(std::move(item));
      }
    }
    for (Item& item : items_) {
      if (!item.is_free) item.virtual_stage = EarliestVirtualStage(item);
    }
    for (auto item = items_.rbegin(); item != items_.rend(); ++item) PlaceFreeOf(*item);
  }

  const std::vector<Item>& items() const { return items_; }

  /*! \brief The virtual stage of what a transfer sends; that of a free one, its own. */
  int VirtualStageOfSend(const Item& transfer) const {
    if (transfer.is_free) return transfer.virtual_stage;
    const Item* source = Find(transfer.uses[0]);
    return source == nullptr ? 0 : source->virtual_stage;
  }

 private:
  const Item* Find(const ir::Var& var) const {
    auto found = index_.find(var.get());
    return found == index_.end() ? nullptr : &items_[found->second];
  }

  int EarliestVirtualStage(const Item& item) const {
    int virtual_stage = 0;
    for (const ir::Var& used : item.uses) {
      const Item* its = Find(used);
      if (its != nullptr && !its->is_free)
        virtual_stage = std::max(virtual_stage, its->virtual_stage);
    }
    return virtual_stage +
           (item.IsTransfer() && item.target_position <= item.source_position ? 1 : 0);
  }

  /*! \brief Gives the free ones that an item uses its virtual stage, if it is their first so far.
   */
  void PlaceFreeOf(Item& item) {
    if (item.virtual_stage == kUnknown) item.virtual_stage = 0;  // nothing uses it but the result
    for (const ir::Var& used : item.uses) {
      auto found = index_.find(used.get());
      if (found == index_.end() || !items_[found->second].is_free) continue;
      int& virtual_stage = items_[found->second].virtual_stage;
      virtual_stage = virtual_stage == kUnknown ? item.virtual_stage
                                                : std::min(virtual_stage, item.virtual_stage);
    }
  }

  std::vector<Item> items_;
  std::unordered_map<const ffi::Object*, size_t> index_;  // in items_, by variable
};

}  // namespace

VirtualStages::VirtualStages(const ir::Function& function, const std::string& name,
                             dialect::MeshTable* meshes) {
  const ffi::Any attribute = ir::GetAttr(function.attrs(), kInterleavedAttr);
  if (attribute == nullptr) return;
  const auto order = attribute.as<ffi::Array<int64_t>>();
  DISTIR_REQUIRE(order.has_value(), ValueError)
      << "in `" << name << "`: the attribute " << kInterleavedAttr
      << " is a list with the smallest device id of each mesh";
  for (int64_t device : *order) positions_.emplace(device, static_cast<int>(positions_.size()));
  auto position_of = [&](const ir::Type& type) {
    const int64_t device = SmallestDevice(type, meshes);
    auto found = positions_.find(device);
    DISTIR_REQUIRE(found != positions_.end(), ValueError)
        << "in `" << name << "`: the attribute " << kInterleavedAttr
        << " has no mesh whose smallest "
        << "device is " << device;
    return found->second;
  };
  const VirtualStageFinder finder(function, meshes, position_of);
  for (const Item& item : finder.items()) {
    of_[item.var.get()] = item.virtual_stage;
    if (item.IsTransfer()) of_send_[item.var.get()] = finder.VirtualStageOfSend(item);
  }
}

std::optional<int> VirtualStages::Of(const ir::Var& var) const {
  auto found = of_.find(var.get());
  if (found == of_.end()) return std::nullopt;
  return found->second;
}

int VirtualStages::PositionOf(int64_t smallest_device) const {
  auto found = positions_.find(smallest_device);
  return found == positions_.end() ? static_cast<int>(positions_.size()) : found->second;
}

}  // namespace distir::lower
