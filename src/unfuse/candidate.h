/*!
 * \file unfuse/candidate.h
 * \brief Operator that statements of a kernel may compute. TVM makes its kernel, which must be
 * equal to the statements (unfuse/operator_kernels.h).
 */
#ifndef DISTIR_UNFUSE_CANDIDATE_H_
#define DISTIR_UNFUSE_CANDIDATE_H_

#include <functional>
#include <vector>

#include "ir/build.h"
#include "ir/tir_node.h"
#include "unfuse/statements.h"

namespace distir::unfuse {

namespace ffi = tvm::ffi;

/*! \brief Makes a call of an operator of these operands, its type not inferred. */
using MakeOperator = std::function<ffi::Any(const ffi::Array<ir::Expr>& operands)>;

/*! \brief An operator with its attributes, and the types of its operands. */
struct Candidate {
  std::vector<ir::TensorType> operands;
  MakeOperator make;
};
using Candidates = std::vector<Candidate>;

/*! \brief The block of a statement that is one block within loops; null for any other. */
inline ir::SBlock BlockOf(const ir::Stmt& stmt) {
  if (auto loop = ir::For::Cast(stmt); loop.defined()) return BlockOf(loop.body());
  auto realize = ir::SBlockRealize::Cast(stmt);
  return realize.defined() ? realize.block() : ir::SBlock();
}

inline ir::TensorType TensorTypeOf(const ir::Var& buffer) {
  return ir::MakeTensorType(ShapeOf(buffer), ir::BufferType::Cast(buffer.ty()).element_type());
}

}  // namespace distir::unfuse
#endif  // DISTIR_UNFUSE_CANDIDATE_H_
