#include "lower/signature.h"

#include <optional>
#include <utility>

#include "ir/build.h"
#include "ir/symbolic.h"
#include "lower/json_writer.h"
#include "lower/worker_program.h"
#include "op/mesh_table.h"
#include "padding/extents.h"

namespace distir {
namespace lower {

namespace {

constexpr int kVersion = 1;

std::string DTypeName(const ir::TensorType& type) {
  if (!type.dtype().defined()) return "";
  return static_cast<std::string>(ffi::DLDataTypeToString(type.dtype().dtype()));
}

/*! \brief The extents from before padding, one tensor after the other; see padding/extents.h. */
class TrueExtents {
 public:
  explicit TrueExtents(const ir::Function& function)
      : extents_(ir::GetAttr(function.attrs(), padding::kTrueExtentsAttr)
                     .as<ffi::Array<ffi::Array<int64_t>>>()) {}

  /*! \brief Of the next tensor; none where nothing was padded. */
  ffi::Array<int64_t> Next() {
    return extents_.has_value() ? (*extents_)[next_++] : ffi::Array<int64_t>();
  }

 private:
  std::optional<ffi::Array<ffi::Array<int64_t>>> extents_;
  size_t next_ = 0;
};

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

std::string TypeJson(const ir::Type& type, TrueExtents* extents) {
  if (auto tuple = ir::TupleType::Cast(type); tuple.defined()) {
    std::vector<std::string> fields;
    for (const ir::Type& field : tuple.fields()) fields.push_back(TypeJson(field, extents));
    return JsonObject({{"kind", JsonString("tuple")}, {"fields", JsonArray(fields)}});
  }
  if (auto dtensor = ir::DTensorType::Cast(type); dtensor.defined()) {
    mesh::Mesh mesh = op::ToMesh(dtensor.device_mesh());
    return JsonObject({
        {"kind", JsonString("tensor")},
        {"shape", ShapeJson(dtensor.tensor_ty(), extents->Next())},
        {"dtype", JsonString(DTypeName(dtensor.tensor_ty()))},
        {"mesh", JsonObject({{"shape", JsonIntegers(mesh.shape)},
                             {"device_ids", JsonIntegers(mesh.device_ids)}})},
        {"placement", JsonIntegers(op::PlacementDims(dtensor.placement()))},
    });
  }
  if (ir::TensorType::Is(type)) extents->Next();
  return JsonObject({{"kind", JsonString(ir::ShapeType::Is(type) ? "shape" : "value")}});
}

/*! \brief Indices of the result's leaves that a class returns. */
void PresentLeaves(const ir::Type& type, const WorkerContext& context, int* next,
                   std::vector<int>* out) {
  if (auto tuple = ir::TupleType::Cast(type); tuple.defined()) {
    for (const ir::Type& field : tuple.fields()) PresentLeaves(field, context, next, out);
    return;
  }
  if (IsPresent(type, context)) out->push_back(*next);
  ++*next;
}

}  // namespace

std::string FunctionSignature(const ir::Function& function,
                              const std::vector<WorkerVersion>& versions, op::MeshTable* meshes) {
  // The returned value knows its shape where the return type, which must not name variables that a
  // match_cast defines, does not.
  const ir::Type& result_ty = function.body().body().ty();
  TrueExtents extents(function);
  std::vector<std::string> params;
  for (const ir::Var& param : function.params()) {
    params.push_back(
        JsonObject({{"name", JsonString(param.name())}, {"type", TypeJson(param.ty(), &extents)}}));
  }
  std::vector<std::string> programs;
  for (const WorkerVersion& version : versions) {
    WorkerContext context{meshes, nullptr, &version.devices.roots, nullptr};
    std::vector<int> present_params, present_results;
    for (size_t i = 0; i < function.params().size(); ++i) {
      if (IsPresent(function.params()[i].ty(), context))
        present_params.push_back(static_cast<int>(i));
    }
    int next = 0;
    if (version.is_last) PresentLeaves(result_ty, context, &next, &present_results);
    std::vector<int> taken;
    for (int position : version.params) taken.push_back(present_params[position]);
    std::vector<std::string> sizes;
    for (const std::string& size : version.sizes) sizes.push_back(JsonString(size));
    programs.push_back(JsonObject({{"name", JsonString(version.name)},
                                   {"device_ids", JsonIntegers(version.devices.device_ids)},
                                   {"params", JsonIntegers(taken)},
                                   {"results", JsonIntegers(present_results)},
                                   {"sizes", JsonArray(sizes)},
                                   {"round", std::to_string(version.round)}}));
  }
  std::vector<std::pair<std::string, std::string>> members;
  if (auto num_input = ir::GetAttr(function.attrs(), "num_input").as<int64_t>()) {
    members.emplace_back("num_input", std::to_string(*num_input));
  }
  members.emplace_back("params", JsonArray(params));
  members.emplace_back("result", TypeJson(result_ty, &extents));
  members.emplace_back("programs", JsonArray(programs));
  return JsonObject(members);
}

std::string ModuleSignature(const std::vector<int64_t>& device_ids,
                            const std::map<std::string, std::string>& function_signatures) {
  std::vector<std::pair<std::string, std::string>> functions(function_signatures.begin(),
                                                             function_signatures.end());
  return JsonObject({{"version", std::to_string(kVersion)},
                     {"device_ids", JsonIntegers(device_ids)},
                     {"functions", JsonObject(functions)}});
}

}  // namespace lower
}  // namespace distir
