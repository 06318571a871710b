/*!
 * \file propagation/emit.h
 * \brief Writes the solved program: DTensor types, redistributions, specialised callees.
 *
 * Every call is made consistent: its arguments are redistributed to what the call needs, its result
 * type is what type inference gives for them, and a result that was solved differently is
 * redistributed. Callees with equal signatures share one copy. The result of a
 * call without tensor arguments (R.zeros) stays a Tensor, and R.dist.redistribute places it for
 * each use. A condition is brought to the mesh of its branches.
 */
#ifndef DISTIR_PROPAGATION_EMIT_H_
#define DISTIR_PROPAGATION_EMIT_H_

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "propagation/instances.h"

namespace distir {
namespace propagation {

/*!
 * \brief The function attribute that names the variables whose shardings were stated, by an
 * annotation or a type: ["x", "up"]. What else is sharded follows from these, which `explain`
 * finds out when it is asked.
 */
constexpr const char* kStatedAttr = "distir.stated";

struct EmittedFunction {
  ir::GlobalVar name;
  ir::Function function;
};

class Emitter {
 public:
  /*!
   * \param is_first Whether no earlier run has given types to the module, so that those which are
   * there were stated.
   * \param unique_name A fresh function name made from a wanted one.
   */
  Emitter(dialect::MeshTable* meshes, const cost::Cluster* cluster, bool is_first,
          std::function<std::string(const std::string&)> unique_name)
      : meshes_(*meshes),
        cluster_(*cluster),
        is_first_(is_first),
        unique_name_(std::move(unique_name)) {}

  /*! \brief Writes instance 0 of the program under `name`, and the callees it reaches. */
  void EmitRoot(const Program& program, const std::string& name);

  /*! \brief Says that the module keeps a function as it is, so that copies must not share its
   * variables. */
  void Keep(const ir::Function& function) { copied_.insert(function.get()); }

  const std::vector<EmittedFunction>& functions() const { return functions_; }

 private:
  friend class InstanceEmitter;
  struct Specialization {
    ir::GlobalVar name;
    ir::Type ret_ty;
  };
  /*! \brief The emitted copy for an instance's signature, made on first request. */
  Specialization Specialize(const Program& program, int instance, const std::string* root_name);

  dialect::MeshTable& meshes_;
  const cost::Cluster& cluster_;
  const bool is_first_;
  std::function<std::string(const std::string&)> unique_name_;
  std::map<std::vector<int64_t>, Specialization> specializations_;
  std::set<const ffi::Object*> copied_;  // functions of the module that it has a version of
  std::vector<EmittedFunction> functions_;
};

}  // namespace propagation
}  // namespace distir
#endif  // DISTIR_PROPAGATION_EMIT_H_
