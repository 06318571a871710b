/*!
 * \file decompose/joins.h
 * \brief Finds joins of parts of tensors, whose elements move from there straight to the result.
 *
 * Worked example: of lv2 = R.concat((lv, lv1)), where lv = x[7:8] and lv1 = x[0:7] are used nowhere
 * else, the call is decomposed as a join of two parts of x, and neither slice is written.
 */
#ifndef DISTIR_DECOMPOSE_JOINS_H_
#define DISTIR_DECOMPOSE_JOINS_H_

#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "dialect/mesh_table.h"
#include "rules/call/decision.h"
#include "rules/parts.h"

namespace distir::decompose {

/*! \brief The operands of a call that joins tensors, each a part of what it was traced to. */
struct Join {
  std::vector<ir::Expr> operands;
  std::vector<mesh::Sharding> shardings;
  std::vector<rules::Segments> parts;
};

class Joins {
 public:
  explicit Joins(dialect::MeshTable* meshes) : meshes_(*meshes) {}

  /*! \brief Notes a binding; to be called for all of a function, in order. */
  void Note(const ir::Var& var, const ir::Call& call);
  /*! \brief Adds a call that is decomposed so, on the mesh `root` of the table, if it joins
   * tensors.
   */
  void Add(const ir::Call& call, const rules::CallSharding& sharding, int root);
  /*! \brief Finds the variables that joins have been the only users of. */
  void Finish(const ir::Function& function);

  /*! \brief The operands of a call that joins tensors, else null. */
  const Join* Find(const ir::Call& call) const;
  /*! \brief True if nothing uses a variable any more. */
  bool IsUnused(const ir::Var& var) const { return unused_.count(var.get()) > 0; }

 private:
  dialect::MeshTable& meshes_;
  rules::Parts parts_;
  std::vector<std::pair<ir::Var, ir::Call>> noted_;          // in order
  std::unordered_map<const ffi::Object*, Join> found_;       // by call
  std::unordered_map<const ffi::Object*, int> passed_over_;  // uses that are no more, by variable
  std::unordered_set<const ffi::Object*> unused_;
};

}  // namespace distir::decompose
#endif  // DISTIR_DECOMPOSE_JOINS_H_
