/*!
 * \file padding/extents.h
 * \brief The padded extent of a dimension: the least multiple of its number of shards, or, where
 * it is cut in whole grains (padding/grains.h), the least multiple of that many grains.
 *
 * Worked example: R.DTensor((7, 10), "S[0], R") on (2, 2) is padded to (8, 10); with "S[0], S[0]"
 * to (8, 10) too; with "R, S[1]" not at all, but in grains of 5, of which 2 are enough; in grains
 * of 10 to (7, 20). A symbolic n in 2 shards is padded to (n + 1) // 2 * 2.
 */
#ifndef DISTIR_PADDING_EXTENTS_H_
#define DISTIR_PADDING_EXTENTS_H_

#include <vector>

#include "dialect/mesh_table.h"
#include "ir/node.h"
#include "rules/factor/factor_rule.h"

namespace distir::padding {

namespace ffi = tvm::ffi;

/*! \brief The function attribute that keeps the shapes of parameters and results from before they
 * were padded, tuples flattened; -1 for a dimension that is not padded, text for a symbolic one. */
constexpr const char* kTrueExtentsAttr = "distir.true_extents";

/*! \brief The function attribute that keeps the padded extents of those dimensions that are cut in
 * whole grains and so are not the least, one tensor after the other; 0 for a symbolic one, -1 for
 * other dimensions. Only where there are some. Parameters of another order would fit extents that
 * are not stated. */
constexpr const char* kGrainedExtentsAttr = "distir.grained_extents";

/*! \brief The function attribute with the names of the parameters in order, where only names tell
 * two of them apart: they are padded to the same type from different extents. */
constexpr const char* kPaddedParamsAttr = "distir.padded_params";

/*! \brief The function attribute of one that has symbolic dimensions which are padded: its last
 * parameter is a shape, what they are before. */
constexpr const char* kTakesSizesAttr = "distir.takes_sizes";

/*! \brief The function attribute that says, by name of a symbolic dimension that is not padded
 * although it is sharded, why. */
constexpr const char* kDividingAttr = "distir.dividing_sizes";

/*! \brief The sizes of a tensor's dimensions; empty where its shape is not known. */
struct Extents : std::vector<ir::Expr> {
  using std::vector<ir::Expr>::vector;
  bool operator==(const Extents& other) const;
  bool operator!=(const Extents& other) const { return !(*this == other); }
};
/*! \brief Extents of a value: those of every tensor, tuples flattened; empty of a Tensor. */
using ValueExtents = std::vector<Extents>;

/*! \brief The sizes that a type states. */
Extents ExtentsOf(const ir::TensorType& type);
/*! \brief The sizes that the type of a DTensor states. */
Extents ExtentsOf(const ir::Expr& value);

/*! \brief The least extents that types may be padded to. */
class PaddedTypes {
 public:
  explicit PaddedTypes(dialect::MeshTable* meshes) : meshes_(*meshes) {}

  /*! \brief Dimensions that do not divide; none where the type is null or no shape is known. */
  std::vector<int> UnevenDims(const ir::DTensorType& type);
  /*! \brief The sizes of all dimensions, padded. */
  Extents Of(const ir::DTensorType& type);
  ValueExtents ExtentsOfAll(const ir::Type& type);

 private:
  dialect::MeshTable& meshes_;
};

/*! \brief Dimensions of other extents than the type says; none where the type is null. */
std::vector<int> PaddedDims(const ir::DTensorType& type, const Extents& extents);
/*! \brief True if a tensor of the type has such dimensions. */
bool IsPadded(const ir::Type& type, const ValueExtents& extents);

/*! \brief True if two tensors have other extents; no where the shape of one is not known. */
bool Differ(const Extents& a, const Extents& b);
/*! \brief True if two of the tensors, one of each value, have. */
bool Differ(const ValueExtents& a, const ValueExtents& b);

/*!
 * \brief Extents with which a value is redistributed.
 *
 * Where a dimension is sharded on one side alone, they are those of that side: the other is padded
 * or cut on each device. Where it is sharded on both, both numbers of shards divide them. Example:
 * rows of (7, 8) in 4 shards become columns in 4 shards as (8, 8), then a row is cut off.
 */
Extents CommonExtents(const Extents& have, const mesh::Sharding& before, const Extents& want,
                      const mesh::Sharding& after);

/*! \brief The type with these sizes, placed the same; of a type without a known shape, the type. */
ir::DTensorType WithExtents(const ir::DTensorType& type, const Extents& extents);
/*! \brief Changes the extents of every tensor; returns `type` itself if there is nothing to pad. */
ir::Type WithExtents(const ir::Type& type, const ValueExtents& extents);

}  // namespace distir::padding
#endif  // DISTIR_PADDING_EXTENTS_H_
