// Numbers IR objects up to renaming of variables, by TVM's structural hash and equality.
#include "analysis/structural_index.h"

#include "ir/build.h"
#include "ir/tvm/functions.h"

namespace distir::analysis {

size_t StructuralIndex::Find(const ffi::ObjectRef& object) {
  // The elements of constants are compared only: to hash large ones takes long.
  std::vector<size_t>& like =
      by_hash_[ir::functions::kStructuralHash(object, false, true).cast<int64_t>()];
  for (size_t candidate : like) {
    if (ir::StructurallyEqual(objects_[candidate], object)) return candidate;
  }
  like.push_back(objects_.size());
  objects_.push_back(object);
  return like.back();
}

}  // namespace distir::analysis
