/*!
 * \file lower/signature.h
 * \brief What the runtime must know of a compiled program: global types of parameters and results,
 * who runs what. A padded dimension has its size from before it was padded.
 */
#ifndef DISTIR_LOWER_SIGNATURE_H_
#define DISTIR_LOWER_SIGNATURE_H_

#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "dialect/mesh_table.h"
#include "ir/node.h"

namespace distir {
namespace lower {

/*! \brief The module attribute with the groups that communicate, for who opens them before it runs;
 * LowerCCL writes it. */
constexpr const char* kPartitionsAttr = "distir.partitions";
/*! \brief The module attribute that LowerDistIR leaves the signature in, as JSON. */
constexpr const char* kSignatureAttr = "distir.signature";

/*! \brief What the devices of a class run of an entry function, in one round. */
struct WorkerVersion {
  std::string name;
  std::vector<int64_t> device_ids;
  int round;
  std::vector<int> params;         // positions
  std::vector<int> results;        // positions of leaves; none but of the last round
  std::vector<std::string> sizes;  // as in WorkerFunction
};

/*! \brief Writes the JSON of a module: each mesh once, which types name by number. */
class SignatureWriter {
 public:
  explicit SignatureWriter(dialect::MeshTable* meshes) : meshes_(meshes) {}

  /*! \throws ValueError where parameters or results are not those that were padded. */
  void Add(const std::string& name, const ir::Function& function,
           const std::vector<WorkerVersion>& versions);
  /*! \brief A function without DTensors, which each of these devices runs on all of its arguments.
   */
  void AddReplicated(const std::string& name, const ir::Function& function,
                     const std::vector<int64_t>& device_ids);
  std::string Write(const std::vector<int64_t>& device_ids) const;

 private:
  class TrueExtents;
  /*! \param meshes Whose names of axes the type's sharding is said in. */
  std::string TypeJson(const ir::Type& type, TrueExtents* extents, dialect::MeshTable* meshes);
  std::string ParamJson(const ir::Var& param, const ir::Type& type, TrueExtents* extents,
                        dialect::MeshTable* meshes);
  int NumberOf(const ir::DeviceMesh& device_mesh);

  dialect::MeshTable* meshes_;
  std::map<std::string, std::string> functions_;
  std::vector<ir::DeviceMesh> listed_;
  ir::DeviceMesh all_devices_;
  std::unordered_map<const tvm::ffi::Object*, int> numbers_;  // in listed_
};

}  // namespace lower
}  // namespace distir
#endif  // DISTIR_LOWER_SIGNATURE_H_
