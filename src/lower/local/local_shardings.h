/*!
 * \file lower/local/local_shardings.h
 * \brief Shardings of the variables of a worker's program, which their types no longer state.
 *
 * A function attribute lists them by placement, in the words of TVMScript:
 *
 *     {"mesh[0] S[0], R": ["x", "hidden"], "mesh[0] R, R": ["bias"], "R": ["positions"]}
 *
 * "R" lists what was no DTensor, and which every device has all of. Of a tuple, the tensors are
 * named "pair.0", "pair.1". Functions that take no part in the distribution stay as they are; an
 * attribute of the module lists these. A function without the attribute that is not among them was
 * made later, by other passes. Read by `explain`, after printing and parsing too.
 */
#ifndef DISTIR_LOWER_LOCAL_LOCAL_SHARDINGS_H_
#define DISTIR_LOWER_LOCAL_LOCAL_SHARDINGS_H_

#include <map>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "dialect/mesh_table.h"

namespace distir::lower {

namespace ffi = tvm::ffi;

/*! \brief The module attribute that names the functions which take no part. */
constexpr const char* kApartAttr = "distir.apart";

/*! \brief Names by placement, those of layers folded (ir/module/numbered.h). */
using ShardingsAttr = ffi::Map<ffi::String, ffi::Array<ffi::Any>>;

/*! \brief Writes the attribute. */
class LocalShardings {
 public:
  explicit LocalShardings(dialect::MeshTable* meshes);
  /*! \brief Notes the tensors of a worker's variable, once, from the type before lowering. */
  void Add(const ir::Var& local, const ir::Type& type);
  ShardingsAttr Attr() const;

 private:
  using Group = std::vector<std::string>;

  void AddTensor(const ffi::String& name, const ir::Type& type);
  /*! \brief The group of a type; null if the module does not list its mesh. */
  Group* GroupOf(const ir::DTensorType& type);

  dialect::MeshTable& meshes_;
  std::unordered_set<const ffi::Object*> noted_;

  std::unordered_map<const ffi::Object*, std::string> texts_;  // of meshes: "mesh[0]"
  std::map<std::string, Group> groups_;
  /*! \brief The group of a mesh and a placement. */
  std::map<std::pair<const ffi::Object*, const ffi::Object*>, Group*> group_of_;
  std::vector<ir::Placement> placements_;  // keeps the keys alive
};

/*! \brief The names by which the attribute lists the tensors of a variable. */
std::vector<std::string> NamesOfTensors(const ir::Var& var);

/*! \brief Attributes of a function for a part of it, which has some of its variables. */
ir::Node WithShardingsOf(const ir::Node& attrs, const ir::NodeArray<ir::Var>& params,
                         const ir::SeqExpr& body);

/*! \brief A sharding on its root; root -1: no DTensor, every device has all of it. */
struct RootSharding {
  int root = -1;
  mesh::Sharding sharding;
  std::string placement;  // the same as TVMScript says it: "S[0], R"
};

struct KnownShardings {
  std::unordered_map<std::string, RootSharding> by_name;  // and by the name that it is printed by
  size_t num_listed = 0;
};

/*! \brief The shardings that a function's attribute lists, by the variable's name; of a tuple's
 * tensors by "name.index". An entry that is malformed, or on a mesh that the module lacks, is left
 * out. */
KnownShardings ReadLocalShardings(const ir::Function& function,
                                  const ir::GlobalInfoMap& global_infos,
                                  dialect::MeshTable* meshes);

}  // namespace distir::lower
#endif  // DISTIR_LOWER_LOCAL_LOCAL_SHARDINGS_H_
