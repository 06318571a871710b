#include "lower/signature.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "abi/json_writer.h"
#include "dialect/mesh_table.h"
#include "ir/build.h"
#include "ir/symbolic.h"
#include "lower/mesh_index.h"
#include "padding/extents.h"

namespace distir {
namespace lower {

namespace ffi = tvm::ffi;

using abi::JsonArray;
using abi::JsonIntegers;
using abi::JsonObject;
using abi::JsonString;

namespace {

constexpr int kVersion = 2;

std::string DTypeName(const ir::TensorType& type) {
  if (!type.has_dtype()) return "";
  return static_cast<std::string>(ffi::DLDataTypeToString(type.dtype()));
}

std::string ShapeJson(const ir::TensorType& type, const ffi::Array<int64_t>& extents) {
  std::vector<std::string> dims;
  for (const ir::Expr& dim : ir::ShapeOf(type)) {
    int64_t size = ir::StaticDim(dim);
    if (!extents.empty() && extents[dims.size()] >= 0) size = extents[dims.size()];
    if (size >= 0) {
      dims.push_back(std::to_string(size));
    } else if (auto var = ir::Var::Cast(dim); var.defined()) {
      dims.push_back(JsonString(var.name()));
    } else {
      dims.push_back(JsonString(ir::Print(dim)));
    }
  }
  return JsonArray(dims);
}

std::string FunctionJson(const ir::Function& function, const std::vector<std::string>& params,
                         const std::string& result, const std::vector<std::string>& programs) {
  std::vector<std::pair<std::string, std::string>> members;
  if (auto num_input = ir::GetAttr(function.attrs(), "num_input").as<int64_t>()) {
    members.emplace_back("num_input", std::to_string(*num_input));
  }
  members.emplace_back("params", JsonArray(params));
  members.emplace_back("result", result);
  members.emplace_back("programs", JsonArray(programs));
  return JsonObject(members);
}

/*! \brief The type with all of every tensor on each device of the mesh. */
ir::Type Replicated(const ir::Type& type, const ir::DeviceMesh& mesh,
                    const ir::Placement& replica) {
  if (auto tuple = ir::TupleType::Cast(type); tuple.defined()) {
    ffi::Array<ir::Type> fields;
    for (const ir::Type& field : tuple.fields()) fields.push_back(Replicated(field, mesh, replica));
    return ir::MakeTupleType(fields);
  }
  auto tensor = ir::TensorType::Cast(type);
  return tensor.defined() ? ir::MakeDTensorType(tensor, mesh, replica) : type;
}

}  // namespace

/*! \brief The extents from before padding, one tensor after the other; see padding/extents.h. */
class SignatureWriter::TrueExtents {
 public:
  TrueExtents(const ir::Function& function, std::string name, dialect::MeshTable* meshes)
      : extents_(ir::GetAttr(function.attrs(), padding::kTrueExtentsAttr)
                     .as<ffi::Array<ffi::Array<int64_t>>>()),
        name_(std::move(name)),
        padded_(meshes) {
    CheckOrder(function);
  }

  /*! \brief Of the next tensor; none where nothing was padded. */
  ffi::Array<int64_t> Next(const ir::DTensorType& type) {
    if (!extents_.has_value()) return {};
    if (next_ == extents_->size() || !Fits((*extents_)[next_], type)) Fail();
    return (*extents_)[next_++];
  }
  void Finish() const {
    if (extents_.has_value() && next_ != extents_->size()) Fail();
  }

 private:
  /*! \brief Whether a tensor of these extents is padded to a type; null is that of a Tensor. */
  bool Fits(const ffi::Array<int64_t>& extents, const ir::DTensorType& type) {
    if (extents.empty()) return true;  // a Tensor, or a tensor of unknown rank
    if (!type.defined()) return false;
    const rules::Sizes sizes = rules::StaticSizes(type.tensor_ty());
    if (extents.size() != sizes.size()) return false;
    rules::Sizes before;
    for (int64_t extent : extents) before.push_back(extent);
    const rules::Sizes after = padded_.Extents(padding::WithExtents(type, before));
    return std::equal(sizes.begin(), sizes.end(), after.begin(), after.end());
  }

  /*! \brief Refuses the names that PadShards left in another order. Other names say nothing: passes
   * and printing may change them. */
  void CheckOrder(const ir::Function& function) const {
    const ffi::Any attribute = ir::GetAttr(function.attrs(), padding::kPaddedParamsAttr);
    if (attribute == nullptr) return;
    std::vector<std::string> before, now;
    for (const ffi::String& name : attribute.cast<ffi::Array<ffi::String>>())
      before.push_back(name);
    for (const ir::Var& param : function.params()) now.push_back(param.name());
    if (before != now && std::is_permutation(before.begin(), before.end(), now.begin(), now.end()))
      Fail();
  }

  [[noreturn]] void Fail() const {
    TVM_FFI_THROW(ValueError)
        << "`" << name_ << "` has other parameters or results than those that PadShards padded "
        << "(its attribute " << padding::kTrueExtentsAttr << "); a pass in between has changed "
        << "them: run it before PropagateSharding";
  }

  std::optional<ffi::Array<ffi::Array<int64_t>>> extents_;
  std::string name_;
  padding::PaddedTypes padded_;
  size_t next_ = 0;
};

int SignatureWriter::NumberOf(const ir::DeviceMesh& device_mesh) {
  const auto [found, is_new] =
      numbers_.emplace(device_mesh.get(), static_cast<int>(listed_.size()));
  if (is_new) listed_.push_back(device_mesh);
  return found->second;
}

std::string SignatureWriter::TypeJson(const ir::Type& type, TrueExtents* extents,
                                      dialect::MeshTable* meshes) {
  if (auto tuple = ir::TupleType::Cast(type); tuple.defined()) {
    std::vector<std::string> fields;
    for (const ir::Type& field : tuple.fields()) fields.push_back(TypeJson(field, extents, meshes));
    return JsonObject({{"kind", JsonString("tuple")}, {"fields", JsonArray(fields)}});
  }
  if (auto dtensor = ir::DTensorType::Cast(type); dtensor.defined()) {
    return JsonObject({
        {"kind", JsonString("tensor")},
        {"shape", ShapeJson(dtensor.tensor_ty(), extents->Next(dtensor))},
        {"dtype", JsonString(DTypeName(dtensor.tensor_ty()))},
        {"mesh", std::to_string(NumberOf(dtensor.device_mesh()))},
        {"placement", JsonIntegers(dialect::PlacementDims(dtensor.placement()))},
        {"sharding", JsonString(meshes->TextAmongMeshes(dtensor))},
    });
  }
  if (ir::TensorType::Is(type)) extents->Next(ir::DTensorType());
  return JsonObject({{"kind", JsonString(ir::ShapeType::Is(type) ? "shape" : "value")}});
}

std::string SignatureWriter::ParamJson(const ir::Var& param, const ir::Type& type,
                                       TrueExtents* extents, dialect::MeshTable* meshes) {
  return JsonObject(
      {{"name", JsonString(param.name())}, {"type", TypeJson(type, extents, meshes)}});
}

void SignatureWriter::Add(const std::string& name, const ir::Function& function,
                          const std::vector<WorkerVersion>& versions) {
  // The returned value knows its shape where the return type, which must not name variables that a
  // match_cast defines, does not.
  const ir::Type& result_ty = function.body().body().ty();
  TrueExtents extents(function, name, meshes_);
  std::vector<std::string> params;
  for (const ir::Var& param : function.params()) {
    params.push_back(ParamJson(param, param.ty(), &extents, meshes_));
  }
  std::vector<std::string> programs;
  for (const WorkerVersion& version : versions) {
    std::vector<std::string> sizes;
    for (const std::string& size : version.sizes) sizes.push_back(JsonString(size));
    programs.push_back(JsonObject({{"name", JsonString(version.name)},
                                   {"device_ids", JsonIntegers(version.device_ids)},
                                   {"params", JsonIntegers(version.params)},
                                   {"results", JsonIntegers(version.results)},
                                   {"sizes", JsonArray(sizes)},
                                   {"round", std::to_string(version.round)}}));
  }
  const std::string result = TypeJson(result_ty, &extents, meshes_);
  extents.Finish();
  functions_[name] = FunctionJson(function, params, result, programs);
}

void SignatureWriter::AddReplicated(const std::string& name, const ir::Function& function,
                                    const std::vector<int64_t>& device_ids) {
  if (!all_devices_.defined())
    all_devices_ = ir::MakeDeviceMesh({static_cast<int64_t>(device_ids.size())}, device_ids);
  const ir::Placement replica = ir::MakePlacement({-1});
  dialect::MeshTable
      meshes;  // whose only mesh is that of all devices, so that texts need not name it
  TrueExtents extents(function, name, &meshes);
  std::vector<std::string> params;
  std::vector<int> all_params, all_results;
  for (const ir::Var& param : function.params()) {
    all_params.push_back(static_cast<int>(params.size()));
    params.push_back(
        ParamJson(param, Replicated(param.ty(), all_devices_, replica), &extents, &meshes));
  }
  const ir::Type result = Replicated(function.body().body().ty(), all_devices_, replica);
  VisitLeaves(result, [&all_results](const ir::Type&) {
    all_results.push_back(static_cast<int>(all_results.size()));
  });
  std::string program = JsonObject({{"name", JsonString(name)},
                                    {"device_ids", JsonIntegers(device_ids)},
                                    {"params", JsonIntegers(all_params)},
                                    {"results", JsonIntegers(all_results)},
                                    {"sizes", "[]"},
                                    {"round", "0"}});
  functions_[name] = FunctionJson(function, params, TypeJson(result, &extents, &meshes), {program});
}

std::string SignatureWriter::Write(const std::vector<int64_t>& device_ids) const {
  std::vector<std::string> meshes;
  for (const ir::DeviceMesh& device_mesh : listed_) {
    const mesh::Mesh mesh = dialect::ToMesh(device_mesh);
    meshes.push_back(JsonObject(
        {{"shape", JsonIntegers(mesh.shape)}, {"device_ids", JsonIntegers(mesh.device_ids)}}));
  }
  return JsonObject({{"version", std::to_string(kVersion)},
                     {"device_ids", JsonIntegers(device_ids)},
                     {"meshes", JsonArray(meshes)},
                     {"functions", JsonObject({functions_.begin(), functions_.end()})}});
}

}  // namespace lower
}  // namespace distir
