/*!
 * \file propagation/emission/emit.h
 * \brief Writes the solved program: its functions, each callee once per signature.
 *
 * Instances of one function whose parameters and results are solved alike share one copy.
 * Worked example: `main` calls `layer` twice on rows over tp and once on a replicated value; the
 * module gets two functions for it.
 */
#ifndef DISTIR_PROPAGATION_EMISSION_EMIT_H_
#define DISTIR_PROPAGATION_EMISSION_EMIT_H_

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "propagation/emission/instance_emitter.h"
#include "propagation/instances.h"

namespace distir::propagation {

struct EmittedFunction {
  ir::GlobalVar name;
  ir::Function function;
};

class Emitter {
 public:
  /*!
   * \param is_first True if no earlier run has given types to the module, so that those which are
   * there were stated.
   * \param unique_name A fresh function name made from a wanted one.
   */
  Emitter(dialect::MeshTable* meshes, planning::Planner* planner, bool is_first,
          std::function<std::string(const std::string&)> unique_name)
      : emission_{meshes, planner, is_first,
                  [this](const Program& program, int instance) {
                    return Specialize(program, instance, nullptr);
                  }},
        unique_name_(std::move(unique_name)) {}
  Emitter(const Emitter&) = delete;

  /*! \brief Writes instance 0 of the program under `name`, and the callees it reaches. */
  void EmitRoot(const Program& program, const std::string& name);

  /*! \brief Says that the module keeps a function as it is, so that copies must not share its
   * variables. */
  void Keep(const ir::Function& function) { copied_.insert(function.get()); }

  const std::vector<EmittedFunction>& functions() const { return functions_; }

 private:
  /*! \brief The emitted copy for an instance's signature, made on first request. */
  Specialization Specialize(const Program& program, int instance, const std::string* root_name);

  const Emission emission_;
  std::function<std::string(const std::string&)> unique_name_;
  std::map<std::vector<int64_t>, Specialization> specializations_;
  std::set<const ffi::Object*> copied_;  // functions of the module that it has a version of
  std::vector<EmittedFunction> functions_;
};

}  // namespace distir::propagation
#endif  // DISTIR_PROPAGATION_EMISSION_EMIT_H_
