#include "propagation/provenance.h"

#include <tvm/ffi/error.h>
#include <tvm/ffi/reflection/registry.h>

#include <map>
#include <mutex>
#include <unordered_map>

namespace distir {
namespace propagation {

namespace {

// A chain longer than this is cut: nobody reads it, and it cannot be a loop without end.
constexpr int kMaxChain = 64;

struct Entry {
  ffi::WeakObjectPtr<ffi::Object> function;
  std::shared_ptr<const ProgramRecord> record;
  int first_slot;  // its tensors are num_slots slots of the record
  int num_slots;
  std::vector<Disagreement> disagreements;
};

/*! \brief All entries by function; guarded, since passes may run on several threads. */
struct Store {
  std::mutex mutex;
  std::unordered_map<const ffi::Object*, Entry> entries;
  size_t sweep_at = 64;  // when as many entries are there, those of dead functions are dropped
};

Store& GetStore() {
  static Store store;
  return store;
}

std::string Axes(const ProgramRecord& record, int slot, const mesh::AxisList& axes) {
  return mesh::ToString(axes, record.roots[record.slots[slot].root]);
}

std::string Place(const ProgramRecord& record, int slot) {
  return "`" + static_cast<std::string>(record.slots[slot].variable) + "` in `" +
         record.functions[record.slots[slot].function] + "`";
}

/*! \brief The last step that gave the slot axes overlapping `axes`, or null. */
const Step* FindStep(const ProgramRecord& record, int slot, const mesh::AxisList& axes) {
  for (auto step = record.steps.rbegin(); step != record.steps.rend(); ++step) {
    if (step->slot == slot && mesh::Overlaps(step->axes, axes)) return &*step;
  }
  return nullptr;
}

std::string PlacementText(const ir::Type& type) {
  auto dtensor = ir::DTensorType::Cast(type);
  if (!dtensor.defined()) return "a copy on every device";
  std::string text;
  for (int dim : op::PlacementDims(dtensor.placement())) {
    text += text.empty() ? "\"" : ", ";
    text += dim < 0 ? "R" : "S[" + std::to_string(dim) + "]";
  }
  return text + "\" on " + mesh::ToString(op::ToMesh(dtensor.device_mesh()));
}

ffi::String Text(const Disagreement& disagreement) {
  return "`" + disagreement.variable + "` is redistributed from " +
         PlacementText(disagreement.have) + " to " + PlacementText(disagreement.wanted) + " for `" +
         disagreement.reader + "`";
}

/*! \brief The slots of a function's variables, in program order. */
std::vector<int> VariableSlots(const Entry& entry) {
  std::vector<int> slots;
  for (int slot = entry.first_slot; slot < entry.first_slot + entry.num_slots; ++slot) {
    if (!entry.record->slots[slot].is_constant) slots.push_back(slot);
  }
  return slots;
}

void ExplainChain(const ProgramRecord& record, const Step& first, ffi::Array<ffi::String>* lines) {
  lines->push_back(Place(record, first.slot) + ": dimension " + std::to_string(first.dim) +
                   " is sharded over mesh axes " + Axes(record, first.slot, first.axes));
  const Step* step = &first;
  for (int length = 0; step != nullptr && length < kMaxChain; ++length) {
    if (step->link < 0) {
      lines->push_back("  stated by an annotation or a type of " + Place(record, step->slot));
      return;
    }
    if (step->from_slot < 0) return;
    const Step* source = FindStep(record, step->from_slot, step->axes);
    std::string dim = source == nullptr ? "" : " dimension " + std::to_string(source->dim);
    lines->push_back("  from " + Place(record, step->from_slot) + dim + " through " +
                     static_cast<std::string>(record.links[step->link]));
    step = source;
  }
}

/*!
 * \brief Lines that explain a variable: for each sharded dimension the chain back to an annotation,
 * then redistributions. Empty when the function has no such variable; None when the function was
 * not made by PropagateSharding.
 */
ffi::Any Explain(ir::Function function, ffi::String variable) {
  Store& store = GetStore();
  std::lock_guard<std::mutex> lock(store.mutex);
  auto found = store.entries.find(function.get());
  if (found == store.entries.end() || found->second.function.lock() == nullptr) return ffi::Any();
  const Entry& entry = found->second;
  ffi::Array<ffi::String> lines;
  for (int slot : VariableSlots(entry)) {
    if (entry.record->slots[slot].variable != variable) continue;
    std::map<int, const Step*> last;  // by dimension
    for (const Step& step : entry.record->steps) {
      if (step.slot == slot) last[step.dim] = &step;
    }
    for (const auto& [dim, step] : last) ExplainChain(*entry.record, *step, &lines);
    if (last.empty())
      lines.push_back(Place(*entry.record, slot) + ": replicated, nothing shards it");
  }
  for (const Disagreement& disagreement : entry.disagreements) {
    if (disagreement.variable == variable) lines.push_back(Text(disagreement));
  }
  return lines;
}

/*! \brief Names of the variables that Explain knows, in program order; None as for Explain. */
ffi::Any Variables(ir::Function function) {
  Store& store = GetStore();
  std::lock_guard<std::mutex> lock(store.mutex);
  auto found = store.entries.find(function.get());
  if (found == store.entries.end() || found->second.function.lock() == nullptr) return ffi::Any();
  ffi::Array<ffi::String> names;
  const Entry& entry = found->second;
  for (int slot : VariableSlots(entry)) names.push_back(entry.record->slots[slot].variable);
  return names;
}

}  // namespace

std::shared_ptr<const ProgramRecord> MakeRecord(const Program& program, std::vector<Step> steps,
                                                const op::MeshTable& meshes) {
  auto record = std::make_shared<ProgramRecord>();
  record->slots.resize(program.slots.size());
  for (const Instance& instance : program.instances) {
    int function = static_cast<int>(record->functions.size());
    record->functions.push_back(instance.graph->name);
    for (size_t i = 0; i < instance.graph->slots.size(); ++i) {
      const SlotInfo& info = instance.graph->slots[i];
      int slot = instance.Slot(static_cast<int>(i));
      record->slots[slot] = {function, program.slots[slot].root, info.name, info.is_constant};
    }
  }
  record->links.reserve(program.links.size());
  for (const Link& link : program.links) record->links.push_back(*link.name);
  record->steps = std::move(steps);
  for (int root = 0; root < meshes.num_roots(); ++root) record->roots.push_back(meshes.Root(root));
  return record;
}

void Remember(const ir::Function& function, std::shared_ptr<const ProgramRecord> record,
              const Instance& instance, std::vector<Disagreement> disagreements) {
  Store& store = GetStore();
  std::lock_guard<std::mutex> lock(store.mutex);
  if (store.entries.size() >= store.sweep_at) {
    for (auto it = store.entries.begin(); it != store.entries.end();) {
      it = it->second.function.lock() == nullptr ? store.entries.erase(it) : std::next(it);
    }
    store.sweep_at = 2 * store.entries.size() + 64;
  }
  auto pointer = ffi::details::ObjectUnsafe::ObjectPtrFromObjectRef<ffi::Object>(function);
  store.entries[function.get()] = {
      ffi::WeakObjectPtr<ffi::Object>(pointer), std::move(record), instance.slot_offset,
      static_cast<int>(instance.graph->slots.size()), std::move(disagreements)};
}

TVM_FFI_STATIC_INIT_BLOCK() {
  ffi::reflection::GlobalDef()
      .def("distir.propagation.Explain", Explain)
      .def("distir.propagation.Variables", Variables);
}

}  // namespace propagation
}  // namespace distir
