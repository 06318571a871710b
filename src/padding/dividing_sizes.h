/*!
 * \file padding/dividing_sizes.h
 * \brief Finds symbolic sizes that shards must divide, since an operator, a match_cast or a
 * function used as a value cannot be padded along them. All other symbolic sizes are padded, as
 * static ones are.
 *
 * Worked example, x of (n, 8) in rows: `R.nn.relu(x)` can be padded, a kernel that states no rule
 * for n elements cannot; with it in the program n has to divide, and the session says because of
 * which.
 */
#ifndef DISTIR_PADDING_DIVIDING_SIZES_H_
#define DISTIR_PADDING_DIVIDING_SIZES_H_

#include <string>
#include <unordered_map>

#include "dialect/mesh_table.h"
#include "ir/module/call_graph.h"
#include "ir/node.h"
#include "rules/tir/rule.h"

namespace distir::padding {

namespace ffi = tvm::ffi;

/*! \brief True if a factor of a call, all or the major part of a dimension in so many shards, may
 * be padded along it. */
bool MayPad(const rules::FactorRule& rule, const rules::FactorList& dim, int64_t shards);

class DividingSizes {
 public:
  DividingSizes(const ir::IRModule& mod, dialect::MeshTable* meshes, rules::KernelTable* kernels);

  /*! \brief True if an extent is of such a size. */
  bool Has(const ir::Expr& dim) const;
  /*! \brief The function with an attribute (kDividingAttr) that says it of the sizes that its
   * parameters state; the same function where there are none. */
  ir::Function Noted(const ir::Function& function) const;

 private:
  /*! \brief Operator or function that cannot be padded along a size; null if there is none. */
  const std::string* Reason(const ir::Var& size) const;
  /*! \brief Reason for an extent. */
  const std::string* ReasonOf(const ir::Expr& dim) const;
  void Visit(const ir::Function& function);
  void VisitCall(const ir::Var& var, const ir::Call& call);
  void VisitOperator(const ir::Var& var, const ir::Call& call);
  void VisitFunctionCall(const ir::Call& call, const ir::Function& callee);
  void VisitMatchCast(const ir::MatchCast& cast);
  void VisitResult(const ir::Function& function);

  /*! \brief Adds the sizes of a dimension that is sharded, and does not divide in any case. */
  void Add(const ir::Expr& dim, int64_t shards, const std::string& reason);
  /*! \brief Adds those of all dimensions of a type. */
  void AddAll(const ir::Type& type, const std::string& reason);

  const ir::FunctionMap functions_;
  dialect::MeshTable& meshes_;
  rules::KernelTable& kernels_;
  std::unordered_map<const ffi::Object*, std::string> reasons_;  // by variable
};

}  // namespace distir::padding
#endif  // DISTIR_PADDING_DIVIDING_SIZES_H_
