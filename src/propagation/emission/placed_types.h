/*!
 * \file propagation/emission/placed_types.h
 * \brief Interns types of DTensors.
 *
 * The layers of a model have values of equal shapes and placements. If these share a type, it is
 * made once, and passes that keep what they know of a type by its address find that.
 *
 * Worked example: the hidden states of 80 layers are R.DTensor((1, 2048, 8192), "float16",
 * mesh[0], "R"): the first asks TVM for it, the others get the same object. A type with a symbolic
 * dimension is made anew each time.
 */
#ifndef DISTIR_PROPAGATION_EMISSION_PLACED_TYPES_H_
#define DISTIR_PROPAGATION_EMISSION_PLACED_TYPES_H_

#include <unordered_map>

#include "ir/node.h"
#include "support/words.h"

namespace distir::propagation {

/*! \brief Serves one function. */
class PlacedTypes {
 public:
  ir::DTensorType Of(const ir::TensorType& tensor, const ir::DeviceMesh& mesh,
                     const ir::Placement& placement);

 private:
  /*! \brief Types by mesh and placement, which the type keeps alive, dtype and sizes. */
  std::unordered_map<Words, ir::DTensorType, HashWords> known_;
  Words key_;  // of the type asked for
};

}  // namespace distir::propagation
#endif  // DISTIR_PROPAGATION_EMISSION_PLACED_TYPES_H_
