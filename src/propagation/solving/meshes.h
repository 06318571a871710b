/*!
 * \file propagation/solving/meshes.h
 * \brief Assigns a mesh to each slot: the first step of solving.
 */
#ifndef DISTIR_PROPAGATION_SOLVING_MESHES_H_
#define DISTIR_PROPAGATION_SOLVING_MESHES_H_

#include "propagation/solving/links_of_slots.h"

namespace distir::propagation {

/*! \brief Gives every slot a root, as step 1 of Solve says (instances.h). */
void SolveMeshes(Program* program, const LinksOfSlots& users, const dialect::MeshTable& meshes);

}  // namespace distir::propagation
#endif  // DISTIR_PROPAGATION_SOLVING_MESHES_H_
