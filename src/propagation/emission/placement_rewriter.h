/*!
 * \file propagation/emission/placement_rewriter.h
 * \brief Rewriter that brings expressions to wanted placements.
 *
 * A value placed as wanted is used as it is; a constant is made where it is wanted; anything else
 * is redistributed, once per placement and scope. Tuples are taken apart where one of their tensors
 * has to move.
 *
 * Worked example: `lv` is R.DTensor((8, 16), ..., "R"); asked for it as "S[0]", Placed emits
 * `lv_1 = R.dist.redistribute(lv, mesh, "S[0]")` and gives lv_1, and lv_1 again when the next call
 * of the block asks for the same.
 */
#ifndef DISTIR_PROPAGATION_EMISSION_PLACEMENT_REWRITER_H_
#define DISTIR_PROPAGATION_EMISSION_PLACEMENT_REWRITER_H_

#include <unordered_map>
#include <utility>
#include <vector>

#include "dialect/mesh_table.h"
#include "ir/rewriter.h"
#include "propagation/emission/decided_calls.h"
#include "support/in_order.h"

namespace distir::propagation {

namespace ffi = tvm::ffi;

/*! \brief The sharding of a tensor that every device has all of. */
mesh::Sharding Replica(const ir::Expr& tensor);

class PlacementRewriter : public ir::FunctionRewriter {
 protected:
  explicit PlacementRewriter(dialect::MeshTable* meshes) : meshes_(*meshes) {}

  /*! \brief An original expression, rewritten and placed as `wanted`; `exact` asks for the same
   * mesh object too, otherwise another view that says the same will do. */
  ir::Expr Placed(const ir::Expr& expr, const ir::Type& wanted, bool exact);
  /*! \brief Places an expression that is already rewritten. */
  ir::Expr PlacedValue(const ir::Expr& value, const ir::Type& wanted, bool exact);
  using Decided = InOrder<std::vector<DecidedTensor>>;
  /*! \brief An original argument of a call with each of its tensors placed on `view` as decided:
   * `decided` has the tensors of all arguments. */
  ir::Expr PlacedOn(const ir::Expr& arg, const ir::DeviceMesh& view, int root, Decided* decided);
  ir::Expr PlacedConstant(const ir::Expr& constant, const ir::DeviceMesh& view);

  /*! \brief Lets `var` stand for a rewritten tensor placed as `wanted`, without a binding where it
   * is so. */
  void BindPlaced(const ir::Var& var, const ir::Expr& value, const ir::Type& wanted);
  /*! \brief Binds `var` to the redistribution of a value. */
  void BindRedistributed(const ir::Var& var, const ir::Expr& value, const ir::DTensorType& wanted);
  /*! \brief The call that brings a value to a type: a redistribution; or, of a value that is used
   * in a manual region without having entered it, its entry.
   * \throws ValueError for a value of a region that is used outside of it. */
  ir::Call Moved(const ir::Expr& value, const ir::DTensorType& target);

  /*! \brief Appends the types of an argument's tensors as emitted; null for constants and plain
   * tensors. */
  void CollectPlaced(const ir::Expr& arg, std::vector<ir::DTensorType>* out);

  dialect::MeshTable& meshes_;

 private:
  // Values that a dataflow block made for its own use are not visible behind it.
  void EnterScope() override { scopes_.push_back(log_.size()); }
  void LeaveScope() override;

  ir::Type TypeOn(const ir::Type& type, const ir::DeviceMesh& view, int root, Decided* decided);
  bool Fits(const ir::Type& have, const ir::DTensorType& wanted, bool exact);
  bool FitsAll(const ir::Type& have, const ir::TupleType& wanted, bool exact);
  /*! \brief A field of a tuple, bound: only variables may stand in tuples and calls. */
  ir::Expr Field(const ir::Expr& value, int index);

  ir::Expr Redistributed(const ir::Expr& value, const ir::DTensorType& target);
  ir::Var FindRedistributed(const ir::Expr& value, const ir::DTensorType& target) const;
  void KeepRedistributed(const ir::Expr& value, const ir::DTensorType& target, const ir::Var& var);

  std::unordered_map<const ffi::Object*, std::vector<std::pair<ir::DTensorType, ir::Var>>>
      redistributed_;
  std::vector<const ffi::Object*> log_;  // keys of redistributed_ in the order of entry
  std::vector<size_t> scopes_;           // length of the log where each scope begins
};

}  // namespace distir::propagation
#endif  // DISTIR_PROPAGATION_EMISSION_PLACEMENT_REWRITER_H_
