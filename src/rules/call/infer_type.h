/*!
 * \file rules/call/infer_type.h
 * \brief Infers the DTensor types of a call's results from its arguments' types and its factor
 * rule.
 *
 * This is the one place that says what an operator on DTensors gives: PropagateSharding builds its
 * calls with it, and it is registered as `dist.FInferType`, so a printed program parses back to the
 * same types.
 */
#ifndef DISTIR_RULES_CALL_INFER_TYPE_H_
#define DISTIR_RULES_CALL_INFER_TYPE_H_

#include <vector>

#include "dialect/mesh_table.h"
#include "ir/node.h"
#include "rules/call/call_sharding.h"

namespace distir::rules {

/*! \brief Replaces DTensor by its tensor type throughout; shapes that are variables are written out
 * where they are known. */
ir::Type StripDistribution(const ir::Type& type);

/*! \brief Types, shardings and sizes of several tensors; null, null and 0 for a plain tensor. */
struct PlacedTensors {
  PlacedTensors(std::vector<ir::DTensorType> all, dialect::MeshTable* table);

  std::vector<ir::DTensorType> types;
  std::vector<const mesh::Sharding*> shardings;  // of the table given
  std::vector<double> elements;
};
/*! \brief The tensors among a call's arguments, tuples flattened. */
PlacedTensors PlacedArguments(const ir::Call& call, dialect::MeshTable* table);
/*! \brief The tensors of a call's value. */
PlacedTensors PlacedResults(const ir::Call& call, dialect::MeshTable* table);

/*! \brief Inferred way of a call on DTensors, on the mesh of its first DTensor argument. */
struct InferredCall {
  ir::DeviceMesh device_mesh;
  int root = -1;  // in the table given
  CallSharding sharding;
  ir::Type type;  // of the result
};

/*!
 * \param call A call whose arguments are typed; at least one is a DTensor.
 * \param global_ty The result type of the same call on undistributed tensors.
 * \throws ValueError when the arguments lie on different device sets.
 */
InferredCall InferCall(const ir::Call& call, const ir::Type& global_ty, const FactorRule& rule,
                       dialect::MeshTable* table);

/*! \brief The result type of the call on undistributed tensors, by the operator's own inference. */
ir::Type InferGlobalType(const ir::Call& call);

/*! \brief The type of a call with DTensor arguments, by its factor rule or as it states it. */
ir::Type InferDTensorType(const ir::Call& call);

/*! \brief True if the result type of calls of this callee is stated in ty_args (call_tir,
 * call_dps_packed, ..). */
bool StatesResultType(const ir::Expr& callee);

}  // namespace distir::rules
#endif  // DISTIR_RULES_CALL_INFER_TYPE_H_
