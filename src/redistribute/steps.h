/*!
 * \file redistribute/steps.h
 * \brief Converts steps of plans to calls on DTensors, and calls to steps.
 */
#ifndef DISTIR_REDISTRIBUTE_STEPS_H_
#define DISTIR_REDISTRIBUTE_STEPS_H_

#include "dialect/mesh_table.h"
#include "ir/node.h"
#include "planning/planner.h"

namespace distir::redistribute {

/*!
 * \brief The call that does one step of a plan.
 * \param root Of the value and of the plan, in `meshes`.
 * \param wanted Names the mesh view that the result should be on, where that view can name the
 * step; null: any view.
 */
ir::Call MakeStep(const ir::Expr& value, const planning::PlanStep& step, mesh::Reduction reduction,
                  int root, const ir::TensorType& tensor_ty, const ir::DTensorType& wanted,
                  dialect::MeshTable* meshes);

/*! \brief The size that plans need of a tensor; a symbolic dimension counts as 1024 in its bytes.
 */
planning::TensorSize SizeOf(const ir::TensorType& type);

}  // namespace distir::redistribute
#endif  // DISTIR_REDISTRIBUTE_STEPS_H_
