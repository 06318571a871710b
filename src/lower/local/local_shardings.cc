// Writes and reads the attribute that keeps the shardings of a worker's variables.
#include "lower/local/local_shardings.h"

#include <tvm/ffi/function.h>

#include <algorithm>
#include <optional>
#include <sstream>

#include "ir/build.h"
#include "ir/leaves.h"
#include "ir/module/names.h"
#include "ir/module/numbered.h"
#include "ir/notes.h"
#include "ir/rewriter.h"
#include "lower/stages/mesh_index.h"
#include "support/functions.h"

namespace distir::lower {

namespace {

const std::string kEverywhere = "R";

std::string MeshText(const std::string& key, size_t index) {
  return key + "[" + std::to_string(index) + "]";
}

/*! \brief Calls `visit` with the text and the object of every mesh of a module. */
template <typename Visit>
void VisitMeshes(const ir::GlobalInfoMap& global_infos, const Visit& visit) {
  for (const auto& [key, infos] : global_infos) {
    for (size_t i = 0; i < infos.size(); ++i) {
      if (auto mesh = ir::DeviceMesh::Cast(infos[i]); mesh.defined()) visit(MeshText(key, i), mesh);
    }
  }
}

/*! \brief Calls `visit` with the name and the type of every tensor of a variable. */
template <typename Visit>
void VisitTensors(const std::string& name, const ir::Type& type, const Visit& visit) {
  const bool is_tuple = ir::TupleType::Is(type);
  int index = 0;
  ir::ForEachLeaf(type, [&](const ir::Type& leaf) {
    if (!ir::DTensorType::Is(leaf) && !ir::TensorType::Is(leaf)) return;
    visit(is_tuple ? name + "." + std::to_string(index++) : name, leaf);
  });
}

/*! \brief The tensor dimension per mesh axis of "S[0], R"; nullopt where it is malformed. */
std::optional<std::vector<int>> ParsePlacement(const std::string& text) {
  std::vector<int> dims;
  std::istringstream entries(text);
  for (std::string entry; std::getline(entries, entry, ',');) {
    entry.erase(0, entry.find_first_not_of(' '));
    if (entry == "R") {
      dims.push_back(-1);
      continue;
    }
    const bool is_shard =
        entry.size() > 3 && entry.size() < 8 && entry.rfind("S[", 0) == 0 && entry.back() == ']' &&
        std::all_of(
            entry.begin() + 2, entry.end() - 1, [](char c) { return c >= '0' && c <= '9'; });
    if (!is_shard) return std::nullopt;
    dims.push_back(std::stoi(entry.substr(2)));
  }
  return dims;
}

}  // namespace

LocalShardings::LocalShardings(dialect::MeshTable* meshes) : meshes_(*meshes) {
  VisitMeshes(meshes->GlobalInfos(), [this](const std::string& text, const ir::DeviceMesh& mesh) {
    texts_.emplace(mesh.get(), text);
  });
}

void LocalShardings::Add(const ir::Var& local, const ir::Type& type) {
  if (!noted_.insert(local.get()).second) return;
  if (!ir::TupleType::Is(type)) return AddTensor(local.name(), type);
  VisitTensors(local.name(), type, [this](const std::string& name, const ir::Type& tensor) {
    AddTensor(name, tensor);
  });
}

void LocalShardings::AddTensor(const ffi::String& name, const ir::Type& type) {
  if (auto dtensor = ir::DTensorType::Cast(type); dtensor.defined()) {
    auto [found, is_new] =
        group_of_.try_emplace({dtensor.device_mesh().get(), dtensor.placement().get()}, nullptr);
    if (is_new) {
      placements_.push_back(dtensor.placement());
      found->second = GroupOf(dtensor);
    }
    if (found->second != nullptr) found->second->push_back(name);
  } else if (ir::TensorType::Is(type)) {
    groups_[kEverywhere].push_back(name);
  }
}

LocalShardings::Group* LocalShardings::GroupOf(const ir::DTensorType& type) {
  // A type may have a mesh of its own that equals one of the module.
  auto text = texts_.find(meshes_.Intern(dialect::ToMesh(type.device_mesh())).get());
  if (text == texts_.end()) return nullptr;
  return &groups_[text->second + " " + dialect::PlacementText(type.placement())];
}

ShardingsAttr LocalShardings::Attr() const {
  ShardingsAttr attr;
  for (const auto& [text, group] : groups_) attr.Set(text, ir::FoldNames(group));
  return attr;
}

std::vector<std::string> NamesOfTensors(const ir::Var& var) {
  std::vector<std::string> names;
  VisitTensors(var.name(), var.ty(),
               [&names](const std::string& name, const ir::Type&) { names.push_back(name); });
  return names;
}

ir::Node WithShardingsOf(const ir::Node& attrs, const ir::NodeArray<ir::Var>& params,
                         const ir::SeqExpr& body) {
  auto attr = ir::GetAttr(attrs, ir::kShardingsAttr).try_cast<ShardingsAttr>();
  if (!attr.has_value()) return attrs;
  std::unordered_set<std::string> present;
  auto add = [&present](const ir::Var& var) {
    for (const std::string& name : NamesOfTensors(var))
      present.insert({name, ir::PrintedName(name)});
  };
  for (const ir::Var& param : params) add(param);
  ir::VisitBindings(body, [&add](const ir::Binding& binding) { add(binding.var()); });
  ShardingsAttr kept;
  for (const auto& [placement, names] : *attr) {
    std::vector<std::string> group;
    for (std::string& name : ir::UnfoldNames(names)) {
      if (present.count(name) > 0 || present.count(ir::PrintedName(name)) > 0)
        group.push_back(std::move(name));
    }
    if (!group.empty()) kept.Set(placement, ir::FoldNames(group));
  }
  return ir::WithAttr(attrs, ir::kShardingsAttr, kept);
}

KnownShardings ReadLocalShardings(const ir::Function& function,
                                  const ir::GlobalInfoMap& global_infos,
                                  dialect::MeshTable* meshes) {
  KnownShardings shardings;
  auto attr = ir::GetAttr(function.attrs(), ir::kShardingsAttr).try_cast<ShardingsAttr>();
  if (!attr.has_value()) return shardings;
  std::vector<std::pair<std::string, RootSharding>> listed;
  std::map<std::string, ir::DeviceMesh> known;
  VisitMeshes(global_infos, [&known](const std::string& text, const ir::DeviceMesh& mesh) {
    known.emplace(text, mesh);
  });
  for (const auto& [key, names] : *attr) {
    const std::string text = key;
    if (text == kEverywhere) {
      for (const std::string& name : ir::UnfoldNames(names))
        listed.push_back({name, RootSharding()});
      continue;
    }
    const size_t space = text.find(' ');
    auto mesh = known.find(text.substr(0, space));
    if (space == std::string::npos || mesh == known.end()) continue;
    auto dims = ParsePlacement(text.substr(space + 1));
    if (!dims || dims->size() != mesh->second.shape().size()) continue;
    const int rank = 1 + *std::max_element(dims->begin(), dims->end());
    const int root = meshes->RootOf(mesh->second);
    const mesh::Sharding& sharding =
        meshes->ShardingOf(mesh->second, ir::MakePlacement(*dims), rank);
    for (const std::string& name : ir::UnfoldNames(names))
      listed.push_back({name, {root, sharding, text.substr(space + 1)}});
  }
  shardings.num_listed = listed.size();
  for (const auto& [name, sharding] : listed) shardings.by_name.emplace(name, sharding);
  for (const auto& [name, sharding] : listed)
    shardings.by_name.emplace(ir::PrintedName(name), sharding);
  return shardings;
}

namespace {

/*! \brief Text in a printed module for each tensor of a worker's program, by name. */
ffi::Map<ffi::String, ffi::String> Texts(const ir::IRModule& mod, const ir::Function& function) {
  dialect::MeshTable meshes(mod);
  const KnownShardings known = ReadLocalShardings(function, mod.global_infos(), &meshes);
  ffi::Map<ffi::String, ffi::String> texts;
  auto add = [&](const ir::Var& var) {
    VisitTensors(var.name(), var.ty(), [&](const std::string& name, const ir::Type& type) {
      auto found = known.by_name.find(name);
      auto tensor = ir::TensorType::Cast(type);
      if (found == known.by_name.end() || found->second.root < 0 || !tensor.defined()) return;
      const auto& [root, sharding, placement] = found->second;
      if (tensor.ndim() >= 0 && static_cast<size_t>(tensor.ndim()) < sharding.dims.size()) return;
      mesh::Sharding whole = sharding;
      if (tensor.ndim() >= 0) whole.dims.resize(tensor.ndim());
      texts.Set(name, meshes.TextAmongMeshes(root, whole) + ", placement \"" + placement + "\"");
    });
  };
  for (const ir::Var& param : function.params()) add(param);
  ir::VisitBindings(function.body(), [&](const ir::Binding& binding) { add(binding.var()); });
  return texts;
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() { support::Functions().def("distir.lower.WorkerShardings", Texts); }

}  // namespace distir::lower
