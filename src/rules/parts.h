/*!
 * \file rules/parts.h
 * \brief Traces parts of a tensor that are joined again, such as those of a roll.
 *
 * Worked example: a roll of x (8,) by one is written
 *
 *     lv = R.strided_slice(x, axes=[0], begin=[7], end=[8])  # segment (7, 0, 1, 1) of x
 *     lv1 = R.strided_slice(x, axes=[0], begin=[0], end=[7])  # segment (0, 0, 1, 7) of x
 *     lv2 = R.concat((lv, lv1), axis=0)
 *
 * Both operands of the concat are parts of x, so its elements can move from x straight to the
 * result: one from each shard to the next, if x is sharded.
 */
#ifndef DISTIR_RULES_PARTS_H_
#define DISTIR_RULES_PARTS_H_

#include <string>
#include <unordered_map>
#include <vector>

#include "ir/node.h"
#include "mesh/segments.h"
#include "rules/operator.h"

namespace distir::rules {

using Segments = std::vector<mesh::Segment>;

/*! \brief Elements of a tensor along one dimension, laid out anew. */
struct Part {
  ir::Expr of;
  Segments segments;
  std::string fill = {};  // of places that no segment has; empty where there are none
};

enum class Filled { kNo, kYes };

/*! \brief The segments of segments: `inner` moves elements of what `outer` makes. */
Segments Compose(const Segments& outer, const Segments& inner);

/*! \brief The variables of a function that are parts of others. */
class Parts {
 public:
  /*! \brief Notes a call that only moves elements; others are left out. */
  void Note(const ir::Var& var, const ir::Call& call, const ir::Type& result_ty);
  /*! \brief Notes that a variable has the elements of another value. */
  void NoteSame(const ir::Var& var, const ir::Expr& value);
  /*! \brief Notes that a variable has elements of another value, moved so. */
  void NoteMoved(const ir::Var& var, const ir::Expr& value, Movement movement);
  bool Has(const ir::Var& var) const { return steps_.count(var.get()) > 0; }
  /*! \brief The tensor, as far back as is noted, of which a value of that extent has parts along
   * dimension `dim` and all along others. */
  Part Of(const ir::Expr& value, int dim, int64_t extent) const {
    return Of({value, {{0, 0, 1, extent}}}, dim, Filled::kNo);
  }
  /*! \brief Finds the part of a part of a value; `filled` says if elements may be of no tensor. */
  Part Of(Part part, int dim, Filled filled) const;

 private:
  struct Step {
    ir::Expr of;
    Movement movement;  // no segments: the same elements
  };
  std::unordered_map<const ffi::Object*, Step> steps_;  // by variable
};

}  // namespace distir::rules
#endif  // DISTIR_RULES_PARTS_H_
