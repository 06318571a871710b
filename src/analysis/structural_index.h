/*!
 * \file analysis/structural_index.h
 * \brief Numbers structurally different IR objects; names of variables do not count.
 *
 * Worked example: of `f(x): return x + 1`, `g(x): return x * 2` and `h(y): return y + 1`, Find
 * gives 0, 1 and 0.
 */
#ifndef DISTIR_ANALYSIS_STRUCTURAL_INDEX_H_
#define DISTIR_ANALYSIS_STRUCTURAL_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "ir/node.h"

namespace distir::analysis {

namespace ffi = tvm::ffi;

class StructuralIndex {
 public:
  /*! \brief The number of the first object that is equal to this one, in order from 0. A global
   * variable is equal to itself only. */
  size_t Find(const ffi::ObjectRef& object);
  /*! \brief Number of different objects. */
  size_t size() const { return objects_.size(); }

 private:
  std::vector<ffi::ObjectRef> objects_;
  std::unordered_map<int64_t, std::vector<size_t>> by_hash_;
};

}  // namespace distir::analysis
#endif  // DISTIR_ANALYSIS_STRUCTURAL_INDEX_H_
