/*!
 * \file padding/extents.h
 * \brief The padded extent of a dimension: the least multiple of its number of shards.
 *
 * It follows from the type alone, so callers and callees, branches and tuples agree on it without
 * looking at each other. Worked example: R.DTensor((7, 10), "S[0], R") on (2, 2) is padded to
 * (8, 10); with "S[0], S[0]" to (8, 10) too; with "R, S[1]" not at all.
 */
#ifndef DISTIR_PADDING_EXTENTS_H_
#define DISTIR_PADDING_EXTENTS_H_

#include <unordered_map>
#include <utility>
#include <vector>

#include "dialect/mesh_table.h"
#include "ir/node.h"
#include "rules/factor/factor_rule.h"

namespace distir {
namespace padding {

namespace ffi = tvm::ffi;

/*! \brief The function attribute that keeps the shapes of parameters and results from before they
 * were padded, tuples flattened; -1 for a dimension that is not padded. */
constexpr const char* kTrueExtentsAttr = "distir.true_extents";

/*! \brief The function attribute with the names of the parameters in order, where only names tell
 * two of them apart: they are padded to the same type from different extents. */
constexpr const char* kPaddedParamsAttr = "distir.padded_params";

class PaddedTypes {
 public:
  explicit PaddedTypes(dialect::MeshTable* meshes) : meshes_(*meshes) {}

  /*! \brief Dimensions that do not divide; none where the type is null or no shape is known. */
  std::vector<int> UnevenDims(const ir::DTensorType& type);
  /*! \brief The sizes of all dimensions, padded; -1 where symbolic. */
  rules::Sizes Extents(const ir::DTensorType& type);
  /*! \brief The type with every tensor padded; the same object where there is nothing to pad. */
  ir::Type Padded(const ir::Type& type);

 private:
  dialect::MeshTable& meshes_;
  /*! \brief From a type, which the second keeps alive, to the padded one. */
  std::unordered_map<const ffi::Object*, std::pair<ir::Type, ir::Type>> padded_;
};

/*! \brief The type with other sizes where `extents` has some (not -1), placed the same. */
ir::DTensorType WithExtents(const ir::DTensorType& type, const rules::Sizes& extents);

}  // namespace padding
}  // namespace distir
#endif  // DISTIR_PADDING_EXTENTS_H_
