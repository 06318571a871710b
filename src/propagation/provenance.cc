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
  std::vector<std::pair<std::string, int>> variables;
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
  return "`" + record.slots[slot].variable + "` in `" + record.slots[slot].function + "`";
}

/*! \brief The last step that gave the slot axes overlapping `axes`, or null. */
const Step* FindStep(const ProgramRecord& record, int slot, const mesh::AxisList& axes) {
  for (auto step = record.steps.rbegin(); step != record.steps.rend(); ++step) {
    if (step->slot == slot && mesh::Overlaps(step->axes, axes)) return &*step;
  }
  return nullptr;
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
                     record.links[step->link]);
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
  for (const auto& [name, slot] : entry.variables) {
    if (name != static_cast<std::string>(variable)) continue;
    std::map<int, const Step*> last;  // by dimension
    for (const Step& step : entry.record->steps) {
      if (step.slot == slot) last[step.dim] = &step;
    }
    for (const auto& [dim, step] : last) ExplainChain(*entry.record, *step, &lines);
    if (last.empty())
      lines.push_back(Place(*entry.record, slot) + ": replicated, nothing shards it");
  }
  for (const Disagreement& disagreement : entry.disagreements) {
    if (disagreement.variable == static_cast<std::string>(variable))
      lines.push_back(disagreement.text);
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
  for (const auto& [name, slot] : found->second.variables) names.push_back(name);
  return names;
}

}  // namespace

std::shared_ptr<const ProgramRecord> MakeRecord(const Program& program, std::vector<Step> steps,
                                                const op::MeshTable& meshes) {
  auto record = std::make_shared<ProgramRecord>();
  std::vector<const std::string*> functions(program.slots.size());
  for (const Instance& instance : program.instances) {
    for (size_t i = 0; i < instance.graph->slots.size(); ++i) {
      functions[instance.slot_offset + i] = &instance.graph->name;
    }
  }
  record->slots.reserve(program.slots.size());
  for (size_t s = 0; s < program.slots.size(); ++s) {
    record->slots.push_back({*functions[s], program.slots[s].info->name, program.slots[s].root});
  }
  record->links.reserve(program.links.size());
  for (const Link& link : program.links) record->links.push_back(*link.name);
  record->steps = std::move(steps);
  for (int root = 0; root < meshes.num_roots(); ++root) record->roots.push_back(meshes.Root(root));
  return record;
}

void Remember(const ir::Function& function, std::shared_ptr<const ProgramRecord> record,
              std::vector<std::pair<std::string, int>> variables,
              std::vector<Disagreement> disagreements) {
  Store& store = GetStore();
  std::lock_guard<std::mutex> lock(store.mutex);
  if (store.entries.size() >= store.sweep_at) {
    for (auto it = store.entries.begin(); it != store.entries.end();) {
      it = it->second.function.lock() == nullptr ? store.entries.erase(it) : std::next(it);
    }
    store.sweep_at = 2 * store.entries.size() + 64;
  }
  auto pointer = ffi::detail::ObjectUnsafe::ObjectPtrFromObjectRef<ffi::Object>(function);
  store.entries[function.get()] = {ffi::WeakObjectPtr<ffi::Object>(pointer), std::move(record),
                                   std::move(variables), std::move(disagreements)};
}

TVM_FFI_STATIC_INIT_BLOCK() {
  ffi::reflection::GlobalDef()
      .def("distir.propagation.Explain", Explain)
      .def("distir.propagation.Variables", Variables);
}

}  // namespace propagation
}  // namespace distir
