/*!
 * \file decompose/joins.h
 * \brief Finds joins and parts of parts of tensors, whose elements move from there straight to the
 * result.
 *
 * Worked example: of lv2 = R.concat((lv, lv1)), where lv = x[7:8] and lv1 = x[0:7] are used nowhere
 * else, the call is decomposed as a join of two parts of x, and neither slice is written. Of
 * lv = R.nn.pad(x, (3, 5)), lv1 = lv[2:10] the second is a part of x and of zeros.
 */
#ifndef DISTIR_DECOMPOSE_JOINS_H_
#define DISTIR_DECOMPOSE_JOINS_H_

#include <optional>
#include <string>
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

/*! \brief A call whose elements are those of another tensor than its operand, and a fill. */
struct Moved {
  ir::Expr of;
  mesh::Sharding sharding;
  int dim;
  int64_t size;  // of the result
  rules::Segments segments;
  std::string fill;
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
  /*! \brief Adds a call so if it moves elements of one tensor. */
  void AddMoved(const ir::Call& call, const rules::CallSharding& sharding, int root);
  /*! \brief Finds the variables that joins have been the only users of. */
  void Finish(const ir::Function& function);

  /*! \brief The operands of a call that joins tensors, else null. */
  const Join* Find(const ir::Call& call) const;
  /*! \brief Finds the origin of what a call moves; null for other calls. */
  const Moved* FindMoved(const ir::Call& call) const;
  /*! \brief True if nothing uses a variable any more. */
  bool IsUnused(const ir::Var& var) const { return unused_.count(var.get()) > 0; }

 private:
  /*! \brief A join of parts of one tensor, which moves its elements. */
  struct JoinOfOne {
    ir::Expr of;
    int dim;
    rules::Segments segments;
  };
  std::optional<JoinOfOne> MovementOfJoin(const ir::Call& call) const;
  /*! \brief A call uses `of` in place of an operand. */
  void PassOver(const ir::Expr& operand, const ir::Expr& of) {
    ++passed_over_[operand.get()];
    --passed_over_[of.get()];
  }
  /*! \brief True if a tensor is sharded as it would be moved. */
  bool IsShardedSo(const ir::Expr& tensor, const mesh::Sharding& sharding, int root);

  dialect::MeshTable& meshes_;
  rules::Parts parts_;
  std::vector<std::pair<ir::Var, ir::Call>> noted_;          // in order
  std::unordered_map<const ffi::Object*, Join> found_;       // by call
  std::unordered_map<const ffi::Object*, Moved> moved_;      // by call
  std::unordered_map<const ffi::Object*, int> passed_over_;  // uses that are no more, by variable
  std::unordered_set<const ffi::Object*> unused_;
};

}  // namespace distir::decompose
#endif  // DISTIR_DECOMPOSE_JOINS_H_
