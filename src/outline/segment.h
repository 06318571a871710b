/*!
 * \file outline/segment.h
 * \brief Compares runs of bindings in one block that compute the same function of other values.
 *
 * Worked example, two segments of two bindings each:
 *
 *     a = matmul(x, w0)
 *     b = relu(a)
 *     c = matmul(b, w1)
 *     d = relu(c)
 *
 * The leaves of the first are x, w0 and a, those of the second b, w1 and c. What a segment takes
 * from outside is x, w0 and b, w1; what it gives is b and d.
 */
#ifndef DISTIR_OUTLINE_SEGMENT_H_
#define DISTIR_OUTLINE_SEGMENT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "ir/node.h"
#include "support/in_order.h"

namespace distir::outline {

namespace ffi = tvm::ffi;

/*!
 * \brief A number that bindings have in common if they do the same, variables and constants apart,
 * which count by their types. A binding that must stay where it is (a branch, a match_cast, an
 * operator with effects, what has a shape that is a variable) has a number of its own, from
 * `unique`.
 */
uint64_t NumberOf(const ir::Binding& binding, bool is_dataflow, uint64_t* unique);

/*! \brief The variables and constants in a value, in order. */
std::vector<ir::Expr> LeavesOf(const ir::Expr& value);

/*! \brief The value with other variables and constants, taken from the front of a list. */
ir::Expr WithLeaves(const ir::Expr& value, InOrder<std::vector<ir::Expr>>* leaves);

/*! \brief Segments of equal length that follow each other. */
struct Segments {
  std::vector<ir::Binding> bindings;
  size_t length = 0;

  size_t count() const { return bindings.size() / length; }
  const ir::Binding& At(size_t segment, size_t place) const {
    return bindings[segment * length + place];
  }
};

/*! \brief Source of a leaf, alike in all segments. */
struct Leaf {
  enum class Kind { kOwn, kInput, kConstant } kind;
  size_t index = 0;  // of an own variable, the place that binds it; of an input, which one
};

/*! \brief Inputs, carried values and outputs of a chain of segments. */
struct Interface {
  std::vector<Leaf> leaves;  // of one segment, in the order of LeavesOf
  /*! \brief Value of each input in each segment. */
  std::vector<std::vector<ir::Expr>> inputs;
  /*! \brief Places in a segment whose variables are used outside of it, in some segment. */
  std::vector<size_t> outputs;
};

/*!
 * \brief The interface of segments whose bindings have the same numbers; nothing if they turn out
 * to be different, as where a value comes from the same segment in one and from outside in another.
 * \param num_uses Number of uses of each variable in the function.
 */
std::optional<Interface> FindInterface(const Segments& segments,
                                       const std::unordered_map<const ffi::Object*, int>& num_uses);

}  // namespace distir::outline
#endif  // DISTIR_OUTLINE_SEGMENT_H_
