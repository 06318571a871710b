/*!
 * \file propagation/emission/solved_types.h
 * \brief Makes the DTensor types of a function's values from their solved shardings.
 *
 * Worked example: a parameter x of type R.Tensor((8, 16)), whose slot was solved as [tp | -] on
 * mesh (dp, tp), has the type R.DTensor((8, 16), mesh, "R, S[0]").
 */
#ifndef DISTIR_PROPAGATION_EMISSION_SOLVED_TYPES_H_
#define DISTIR_PROPAGATION_EMISSION_SOLVED_TYPES_H_

#include "dialect/mesh_table.h"
#include "propagation/emission/placed_types.h"
#include "propagation/instances.h"
#include "support/in_order.h"

namespace distir::propagation {

class SolvedTypes {
 public:
  SolvedTypes(dialect::MeshTable* meshes, const Program& program, int instance)
      : meshes_(*meshes), program_(program), instance_(program.instances[instance]) {}

  /*! \brief Solved state of a slot of the function's graph. */
  const SlotState& StateOf(int slot) const { return program_.slots[instance_.Slot(slot)]; }
  /*! \brief The type whose tensors are placed as their slots are solved; non-tensors stay. */
  ir::Type Of(const ir::Type& type, const SlotList& slots);
  /*! \brief Type of a part of a value, whose slots are the next ones. */
  ir::Type Of(const ir::Type& type, InOrder<SlotList>* slots);
  ffi::Array<ir::Type> OfParams();
  ir::Type OfResult();
  /*! \brief The type of a tensor that lies so; one object for equal types. */
  ir::DTensorType Placed(const ir::TensorType& tensor, const ir::DeviceMesh& mesh,
                         const ir::Placement& placement) {
    return placed_.Of(tensor, mesh, placement);
  }

 private:
  dialect::MeshTable& meshes_;
  const Program& program_;
  const Instance& instance_;
  PlacedTypes placed_;
};

}  // namespace distir::propagation
#endif  // DISTIR_PROPAGATION_EMISSION_SOLVED_TYPES_H_
