/*!
 * \file decompose/creation.h
 * \brief Finds values that every device makes in full although each uses a shard only.
 *
 * If only results have a factor, no operand says how it is sharded: type inference gives a result
 * that is replicated along it, and a redistribution cuts it. If an algorithm can make the
 * shards, DecomposeSharded writes that instead, so that no device makes all of the value. Worked
 * example, on one axis of 4:
 *
 *     lv = R.zeros((4096, 64), "float32")        # a Tensor
 *     lv1 = R.dist.redistribute(lv, mesh, "S[0]")
 *
 * becomes a DTensor (4, 1, 1), "S[0]", broadcast to (4, 1024, 64) and reshaped.
 *
 * So is a join of tensors that have too few elements to be sharded themselves, such as a block of
 * zeros and all but the last of as many blocks as there are shards (decompose/joins.h).
 */
#ifndef DISTIR_DECOMPOSE_CREATION_H_
#define DISTIR_DECOMPOSE_CREATION_H_

#include <unordered_map>
#include <unordered_set>

#include "decompose/algorithm.h"
#include "dialect/mesh_table.h"

namespace distir::decompose {

/*! \brief A call, and which shards of its result are made. */
struct Creation {
  ir::Call call;
  rules::Decomposition decomposition;
  rules::FactorRule rule;
  rules::CallSharding sharding;
  ir::DeviceMesh view;     // of the redistribution
  const ffi::Object* var;  // that the call is bound to
};

/*! \brief The redistributions of a function that have such a call before them. */
class Creations {
 public:
  Creations(const ir::Function& function, dialect::MeshTable* meshes);

  /*! \brief Value to make instead of a redistribution, or null. */
  const Creation* Find(const ir::Call& redistribution) const;
  /*! \brief True if nothing else uses the whole value of a variable. */
  bool IsOnlyInPieces(const ir::Var& var) const { return only_in_pieces_.count(var.get()) > 0; }
  bool empty() const { return found_.empty(); }

 private:
  std::unordered_map<const ffi::Object*, Creation> found_;  // by the redistribution
  std::unordered_set<const ffi::Object*> only_in_pieces_;
};

}  // namespace distir::decompose
#endif  // DISTIR_DECOMPOSE_CREATION_H_
