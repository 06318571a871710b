// Writes the signature of a compiled program: types, shardings and parameters of each function.
#include "lower/signature.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <unordered_set>
#include <utility>

#include "dialect/mesh_table.h"
#include "ir/build.h"
#include "ir/leaves.h"
#include "ir/module/numbered.h"
#include "ir/size_arithmetic.h"
#include "ir/size_text.h"
#include "ir/symbolic.h"
#include "lower/param_names.h"
#include "lower/stages/mesh_index.h"
#include "padding/extents.h"
#include "support/error.h"
#include "support/functions.h"

namespace distir::lower {

namespace ffi = tvm::ffi;

namespace {

/*! \brief Version of the format, in modules and in executables. */
constexpr int kVersion = 9;

std::string DTypeName(const ir::TensorType& type) {
  if (!type.has_dtype()) return "";
  return static_cast<std::string>(ffi::DLDataTypeToString(type.dtype()));
}

std::string Joined(const std::vector<std::string>& items, const char* separator) {
  std::string text;
  for (const std::string& item : items) text += (text.empty() ? "" : separator) + item;
  return text;
}

/*! \brief Integers, runs of them shortened: "0..3, 7". */
template <typename Integers>
std::string Ranges(const Integers& values) {
  std::vector<std::string> items;
  for (auto from = values.begin(); from != values.end();) {
    auto last = from;
    while (std::next(last) != values.end() && *std::next(last) == *last + 1) ++last;
    items.push_back(std::to_string(*from));
    if (last != from) items.back() += ".." + std::to_string(*last);
    from = std::next(last);
  }
  return Joined(items, ", ");
}

/*! \brief Extents of a tensor before padding, as PadShards noted them: an integer or text per
 * dimension; -1 if it is not padded. */
using TensorExtents = ffi::Array<ffi::Any>;

bool IsPadded(const ffi::Any& extent) { return extent.as<int64_t>().value_or(0) >= 0; }

/*! \brief Sizes, those from before they were padded, and what of a size each device has where that
 * is stated: "[8, n, 1024:352]". */
std::string ShapeText(const ir::TensorType& type, const TensorExtents& extents,
                      const std::vector<ir::Expr>& shards) {
  std::vector<std::string> dims;
  for (const ir::Expr& dim : ir::ShapeOf(type)) {
    const size_t d = dims.size();
    const bool is_padded = !extents.empty() && IsPadded(extents[d]);
    const auto text = is_padded ? extents[d].as<ffi::String>() : ffi::Optional<ffi::String>();
    if (text.has_value()) {
      dims.push_back(*text);
    } else {
      dims.push_back(ir::SizeText(is_padded ? ir::MakeInt(extents[d].cast<int64_t>()) : dim));
    }
    if (shards[d].defined()) dims.back() += ":" + ir::SizeText(shards[d]);
  }
  return "[" + Joined(dims, ", ") + "]";
}

std::string PlacementText(const std::vector<int>& dims) {
  std::vector<std::string> entries;
  for (int dim : dims) entries.push_back(dim < 0 ? "R" : "S[" + std::to_string(dim) + "]");
  return Joined(entries, ", ");
}

/*! \brief The type with all of every tensor on each device of the mesh. */
ir::Type Replicated(const ir::Type& type, const ir::DeviceMesh& mesh,
                    const ir::Placement& replica) {
  return ir::MapLeaves(type, [&](const ir::Type& leaf) -> ir::Type {
    auto tensor = ir::TensorType::Cast(leaf);
    return tensor.defined() ? ir::MakeDTensorType(tensor, mesh, replica) : leaf;
  });
}

using Fused = ffi::Map<ffi::String, ffi::Array<ffi::Any>>;

/*! \brief Weights of a function that are several parameters, with the current names of these. */
Fused FusedParams(const std::string& name, const ir::Function& function) {
  const ffi::Any attribute = ir::GetAttr(function.attrs(), kFusedParamsAttr);
  if (attribute == nullptr) return {};
  const ParamNames params(function);
  const auto stated = attribute.try_cast<Fused>();
  bool fits = stated.has_value();
  Fused found;
  for (const auto& [weight, entry] : fits ? *stated : Fused()) {
    fits = fits && entry.size() > 1 && entry[0].as<int64_t>().value_or(-1) >= 0;
    if (!fits) break;
    ffi::Array<ffi::Any> now{entry[0]};
    for (size_t i = 1; i < entry.size(); ++i) {
      const std::string block = params.NameNow(entry[i]);
      fits = fits && !block.empty();
      now.push_back(ffi::String(block));
    }
    found.Set(weight, now);
  }
  DISTIR_REQUIRE(fits, ValueError)
      << "the attribute " << kFusedParamsAttr << " of `" << name << "` names what is no parameter "
      << "of it; a pass after `annotate` has changed its parameters: run it before";
  return found;
}

/*! \brief Positions of the inputs of a function that are donated. */
std::vector<int64_t> Donated(const std::string& name, const ir::Function& function) {
  const ParamNames names(function);
  const auto num_input = ir::GetAttr(function.attrs(), "num_input").as<int64_t>();
  std::vector<int64_t> found;
  for (const ffi::Any& stated : DonatedNames(function)) {
    const std::string now = names.NameNow(stated);
    DISTIR_REQUIRE(!now.empty(), ValueError)
        << "the attribute " << kDonatedAttr << " of `" << name << "` names `"
        << stated.as<ffi::String>().value_or("?") << "`, which is no parameter of it";
    const int64_t at = names.PositionOf(now);
    DISTIR_REQUIRE(at < num_input.value_or(at + 1), ValueError)
        << "`" << now << "` of `" << name << "` is donated, but it is a weight, which stays with "
        << "the workers; only inputs are donated";
    found.push_back(at);
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

/*! \brief The extents from before padding, one tensor after the other; see padding/extents.h. */
class SignatureWriter::TrueExtents {
 public:
  TrueExtents(const ir::Function& function, std::string name, dialect::MeshTable* meshes)
      : extents_(Attribute<ffi::Any>(function, padding::kTrueExtentsAttr)),
        grained_(Attribute<int64_t>(function, padding::kGrainedExtentsAttr)),
        reasons_(ir::GetAttr(function.attrs(), padding::kDividingAttr)
                     .as<ffi::Map<ffi::String, ffi::String>>()
                     .value_or(ffi::Map<ffi::String, ffi::String>())),
        name_(std::move(name)),
        meshes_(*meshes) {
    CheckOrder(function);
  }

  /*! \brief Extents of the next tensor; empty if nothing was padded. */
  TensorExtents Next(const ir::DTensorType& type) {
    if (!extents_.has_value()) return {};
    if (next_ == extents_->size() || (grained_.has_value() && next_ == grained_->size())) Fail();
    const ffi::Array<int64_t> grained =
        grained_.has_value() ? (*grained_)[next_] : ffi::Array<int64_t>();
    if (!Fits((*extents_)[next_], grained, type)) Fail();
    return (*extents_)[next_++];
  }
  /*! \brief Per dimension of that tensor the size of every shard, null where it is the least
   * possible. */
  std::vector<ir::Expr> Shards(const ir::DTensorType& type) {
    const padding::Extents sizes = padding::ExtentsOf(type.tensor_ty());
    std::vector<ir::Expr> shards(sizes.size());
    if (!grained_.has_value()) return shards;
    const ffi::Array<int64_t>& grained = (*grained_)[next_ - 1];
    const mesh::Sharding& sharding = meshes_.ShardingOf(type);
    for (size_t d = 0; d < grained.size(); ++d) {
      if (grained[d] >= 0) shards[d] = ir::FloorDivide(sizes[d], mesh::NumShards(sharding.dims[d]));
    }
    return shards;
  }
  /*! \brief Notes the symbolic sizes of the tensor that have to divide. */
  void AddDividing(const TensorExtents& extents, const ir::DTensorType& type) {
    const padding::Extents sizes = padding::ExtentsOf(type.tensor_ty());
    const mesh::Sharding& sharding = meshes_.ShardingOf(type);
    for (size_t d = 0; d < sizes.size(); ++d) {
      const bool is_padded = !extents.empty() && IsPadded(extents[d]);
      if (is_padded || ir::AlwaysDivides(sizes[d], mesh::NumShards(sharding.dims[d]))) continue;
      ffi::String reason;
      ir::VisitVars(sizes[d], [&](const ir::Var& size) {
        if (reason.empty()) reason = reasons_.Get(size.name()).value_or(reason);
      });
      dividing_.Set(ir::SizeText(sizes[d]), reason);
    }
  }
  /*! \brief Symbolic sizes that shards must divide, and what cannot be padded along them; empty
   * where nothing was to be padded. */
  const ffi::Map<ffi::String, ffi::String>& dividing() const { return dividing_; }

  void Finish() const {
    if (extents_.has_value() && next_ != extents_->size()) Fail();
  }

 private:
  template <typename Extent>
  using AllExtents = std::optional<ffi::Array<ffi::Array<Extent>>>;

  template <typename Extent>
  static AllExtents<Extent> Attribute(const ir::Function& function, const char* name) {
    return ir::GetAttr(function.attrs(), name).as<ffi::Array<ffi::Array<Extent>>>();
  }

  /*!
   * \brief True if a tensor of these extents is padded to a type.
   * \param grained Per dimension what it is padded to, -1 for the least; empty where all are least.
   * \param type Null is that of a Tensor.
   */
  bool Fits(const TensorExtents& extents, const ffi::Array<int64_t>& grained,
            const ir::DTensorType& type) {
    if (extents.empty()) return true;  // a Tensor, or a tensor of unknown rank
    if (!type.defined()) return false;
    const rules::Sizes sizes = rules::StaticSizes(type.tensor_ty());
    if (extents.size() != sizes.size()) return false;
    if (!grained.empty() && grained.size() != sizes.size()) return false;
    const mesh::Sharding& sharding = meshes_.ShardingOf(type);
    for (size_t d = 0; d < sizes.size(); ++d) {
      const int64_t shards = mesh::NumShards(sharding.dims[d]);
      const auto before = extents[d].as<int64_t>();
      const bool is_grained = !grained.empty() && grained[d] >= 0;
      // Text is of a symbolic extent. An extent that was not padded divides, or is symbolic.
      const int64_t wanted = !before.has_value() ? -1
                             : is_grained        ? grained[d]
                             : *before >= 0      ? mesh::EvenExtent(*before, shards)
                                                 : sizes[d];
      if (sizes[d] != wanted || (sizes[d] >= 0 && sizes[d] % shards != 0)) return false;
    }
    return true;
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
    if (ir::GetAttr(function.attrs(), padding::kTakesSizesAttr) != nullptr) now.pop_back();
    if (before != now && std::is_permutation(before.begin(), before.end(), now.begin(), now.end()))
      Fail();
  }

  [[noreturn]] void Fail() const {
    TVM_FFI_THROW(ValueError)
        << "`" << name_ << "` has other parameters or results than those that PadShards padded "
        << "(its attribute " << padding::kTrueExtentsAttr << "); a pass in between has changed "
        << "them: run it before PropagateSharding";
  }

  AllExtents<ffi::Any> extents_;
  AllExtents<int64_t> grained_;
  ffi::Map<ffi::String, ffi::String> reasons_, dividing_;
  std::string name_;
  dialect::MeshTable& meshes_;
  size_t next_ = 0;
};

int SignatureWriter::NumberOf(const ir::DeviceMesh& device_mesh) {
  const auto [found, is_new] =
      numbers_.emplace(device_mesh.get(), static_cast<int>(listed_.size()));
  if (is_new) listed_.push_back(device_mesh);
  return found->second;
}

std::string SignatureWriter::TypeText(const ir::Type& type, TrueExtents* extents) {
  if (auto tuple = ir::TupleType::Cast(type); tuple.defined()) {
    std::vector<std::string> fields;
    for (const ir::Type& field : tuple.fields()) fields.push_back(TypeText(field, extents));
    return "(" + Joined(fields, "; ") + ")";
  }
  if (auto dtensor = ir::DTensorType::Cast(type); dtensor.defined()) {
    const int mesh = NumberOf(dtensor.device_mesh());
    const TensorExtents before = extents->Next(dtensor);
    extents->AddDividing(before, dtensor);
    return DTypeName(dtensor.tensor_ty()) +
           ShapeText(dtensor.tensor_ty(), before, extents->Shards(dtensor)) +
           (mesh == 0 ? " " : " mesh[" + std::to_string(mesh) + "] ") +
           PlacementText(dialect::PlacementDims(dtensor.placement()));
  }
  if (ir::TensorType::Is(type)) extents->Next(ir::DTensorType());
  if (auto shape = ir::ShapeType::Cast(type); shape.defined()) return ir::ShapeText(shape);
  if (auto number = ir::PrimType::Cast(type); number.defined())
    return static_cast<std::string>(ffi::DLDataTypeToString(number.dtype()));
  return "value";
}

void SignatureWriter::Write(const std::string& name, const ir::Function& function,
                            const std::vector<ir::Type>& params, const ir::Type& result,
                            TrueExtents* extents, const std::vector<EntryProgram>& versions) {
  ffi::Map<ffi::String, ffi::Any> written;
  std::vector<std::string> entries;
  for (size_t i = 0; i < params.size(); ++i)
    entries.push_back(function.params()[i].name() + ": " + TypeText(params[i], extents));
  written.Set("params", ir::FoldNumbered(entries));
  written.Set("result", ffi::String(TypeText(result, extents)));
  extents->Finish();
  if (auto num_input = ir::GetAttr(function.attrs(), "num_input").as<int64_t>())
    written.Set("num_input", *num_input);
  if (!extents->dividing().empty()) written.Set("dividing", extents->dividing());
  const Fused fused = FusedParams(name, function);
  if (!fused.empty()) written.Set("fused", fused);
  const std::vector<int64_t> donated = Donated(name, function);
  if (!donated.empty()) written.Set("donated", ffi::String(Ranges(donated)));
  ffi::Array<ffi::Any> programs;
  for (const EntryProgram& version : versions) {
    ffi::Array<ffi::String> sizes;
    for (const std::string& size : version.sizes) sizes.push_back(size);
    ffi::Map<ffi::String, ffi::Any> program{{"name", ffi::String(version.name)},
                                            {"devices", ffi::String(Ranges(version.device_ids))},
                                            {"params", ffi::String(Ranges(version.params))},
                                            {"results", ffi::String(Ranges(version.results))}};
    if (!sizes.empty()) program.Set("sizes", sizes);
    if (version.virtual_stage != 0) program.Set("virtual_stage", int64_t{version.virtual_stage});
    programs.push_back(program);
  }
  written.Set("programs", programs);
  functions_.Set(name, written);
}

void SignatureWriter::Add(const std::string& name, const ir::Function& function,
                          const std::vector<EntryProgram>& versions) {
  TrueExtents extents(function, name, meshes_);
  std::vector<ir::Type> params;
  for (const ir::Var& param : function.params()) params.push_back(param.ty());
  // The sizes of symbolic dimensions, which the session knows.
  if (ir::GetAttr(function.attrs(), padding::kTakesSizesAttr) != nullptr) params.pop_back();
  // The returned value knows its shape where the return type, which must not name variables that a
  // match_cast defines, does not.
  Write(name, function, params, function.body().body().ty(), &extents, versions);
}

void SignatureWriter::AddReplicated(const std::string& name, const ir::Function& function,
                                    const std::vector<int64_t>& device_ids) {
  if (!all_devices_.defined())
    all_devices_ = ir::MakeDeviceMesh({static_cast<int64_t>(device_ids.size())}, device_ids);
  const ir::Placement replica = ir::MakePlacement({-1});
  TrueExtents extents(function, name, meshes_);
  EntryProgram version{name, device_ids, 0, {}, {}, {}};
  std::vector<ir::Type> params;
  for (const ir::Var& param : function.params()) {
    version.params.push_back(static_cast<int>(params.size()));
    params.push_back(Replicated(param.ty(), all_devices_, replica));
  }
  const ir::Type result = Replicated(function.body().body().ty(), all_devices_, replica);
  ir::ForEachLeaf(result, [&version](const ir::Type&) {
    version.results.push_back(static_cast<int>(version.results.size()));
  });
  Write(name, function, params, result, &extents, {version});
}

ffi::Map<ffi::String, ffi::Any> SignatureWriter::Finish() const {
  ffi::Array<ffi::Any> meshes;
  for (const ir::DeviceMesh& device_mesh : listed_) {
    const mesh::Mesh mesh = dialect::ToMesh(device_mesh);
    ffi::Array<int64_t> shape(mesh.shape.begin(), mesh.shape.end());
    meshes.push_back(ffi::Array<ffi::Any>{shape, ffi::String(Ranges(mesh.device_ids))});
  }
  return {{"version", int64_t{kVersion}}, {"meshes", meshes}, {"functions", functions_}};
}

namespace {

TVM_FFI_STATIC_INIT_BLOCK() {
  // For the reader, which is in Python.
  support::Functions().def("distir.lower.SignatureVersion", [] { return kVersion; });
}

}  // namespace

}  // namespace distir::lower
