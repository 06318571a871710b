/*!
 * \file dialect/placement.h
 * \brief Reads and compares placements of types, and collects those of a type's tensors.
 */
#ifndef DISTIR_DIALECT_PLACEMENT_H_
#define DISTIR_DIALECT_PLACEMENT_H_

#include <string>
#include <vector>

#include "ir/node.h"

namespace distir::dialect {

/*! \brief The sharded tensor dimension per mesh axis, -1 for a replica. */
std::vector<int> PlacementDims(const ir::Placement& placement);
/*! \brief A placement as TVMScript writes it: "S[0], R". */
std::string PlacementText(const ir::Placement& placement);

/*! \brief True if two placements say the same of every axis. */
bool SamePlacement(const ir::Placement& a, const ir::Placement& b);
/*! \brief True if two types name the same placement on the same mesh object. */
bool SamePlacement(const ir::DTensorType& a, const ir::DTensorType& b);
/*! \brief True if two types, which may be tuples, place their tensors alike. */
bool SamePlacements(const ir::Type& a, const ir::Type& b);

/*! \brief True if a type has a DTensor. */
bool HasDTensor(const ir::Type& type);
/*! \brief True if an argument of a call has one. */
bool TakesDTensors(const ir::Call& call);
/*! \brief Appends the DTensor types among a type's tensors, in order; null for plain tensors. */
void CollectDTensorTypes(const ir::Type& type, std::vector<ir::DTensorType>* out);

}  // namespace distir::dialect
#endif  // DISTIR_DIALECT_PLACEMENT_H_
