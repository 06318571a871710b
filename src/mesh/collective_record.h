/*!
 * \file mesh/collective_record.h
 * \brief Maps kinds of collectives between shardings to their records, and back.
 */
#ifndef DISTIR_MESH_COLLECTIVE_RECORD_H_
#define DISTIR_MESH_COLLECTIVE_RECORD_H_

#include <optional>

#include "abi/collective.h"
#include "mesh/collective.h"

namespace distir::mesh {

// Kinds are the first records.
static_assert(static_cast<int>(CollectiveKind::kAllGather) ==
              static_cast<int>(abi::Collective::kAllGather));
static_assert(static_cast<int>(CollectiveKind::kAllReduce) ==
              static_cast<int>(abi::Collective::kAllReduce));
static_assert(static_cast<int>(CollectiveKind::kView) == static_cast<int>(abi::Collective::kView));

constexpr abi::Collective RecordedAs(CollectiveKind kind) {
  return static_cast<abi::Collective>(kind);
}

/*! \brief Nothing for those that are not between two shardings. */
constexpr std::optional<CollectiveKind> KindOf(abi::Collective collective) {
  if (collective > abi::Collective::kView) return std::nullopt;
  return static_cast<CollectiveKind>(collective);
}

}  // namespace distir::mesh
#endif  // DISTIR_MESH_COLLECTIVE_RECORD_H_
