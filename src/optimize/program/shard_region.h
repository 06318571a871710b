/*!
 * \file optimize/program/shard_region.h
 * \brief Region between reductions and the uses that need replicated values, computed on shards.
 *
 * All-reduces over the same axes, the *seeds*, become reduce-scatters along one dimension, and
 * every operator that their values reach stays sharded over these axes as long as its factor rule
 * computes its shards alone. A value used outside of the region is gathered behind its definition.
 *
 * Worked example, axes x, along dimension 0 (the region is a, s and n; n is gathered):
 *
 *     a = all_reduce(p)                  a' = reduce_scatter(p)        # "S[0]"
 *     s = add(r, a)                      s' = add(slice(r), a')
 *     n = rms_norm(s, g, axes=[1])   ->  n' = rms_norm(s', g, axes=[1])
 *     q = matmul(n, w)  # w "S[1]"       n = all_gather(n')
 *                                        q = matmul(n, w)
 */
#ifndef DISTIR_OPTIMIZE_PROGRAM_SHARD_REGION_H_
#define DISTIR_OPTIMIZE_PROGRAM_SHARD_REGION_H_

#include <unordered_map>
#include <vector>

#include "optimize/optimization.h"

namespace distir::optimize {

/*! \brief A value of a region. */
struct RegionValue {
  EditableBinding* binding = nullptr;
  mesh::Sharding whole;    // what the binding's type states
  mesh::Sharding sharded;  // the same, further sharded over the region's axes
  ir::DTensorType form;    // the type of the sharded value
  /*! \brief Type that an operator needs of each argument; null: the argument as it is, or its form
   * in the region. */
  std::vector<ir::DTensorType> operands;
  std::vector<int> inputs;  // values of the region that are arguments, each as often as it is
  double gather_bytes = 0;  // what gathering the sharded value sends
  int outer_uses = 0;       // uses that need it as its type states
  bool is_seed = false;
  bool is_in = true;  // false once it is cheaper to leave it as it is
};

class ShardRegion {
 public:
  /*!
   * \param seeds All-reduces over `axes` of one block, of values of one shape and sharding.
   * \param order Positions of bindings in the program; bindings without one stay outside.
   * \param dim The dimension of the seeds to be sharded.
   */
  ShardRegion(EditableFunction* editable, Program* program,
              const std::vector<EditableBinding*>& seeds, const Resharding& step, int dim,
              const std::unordered_map<const EditableBinding*, int>& order);

  /*! \brief The region's values in program order, those left out included. */
  const std::vector<RegionValue>& values() const { return values_; }
  /*! \brief The region's value of a variable, also if it was left out; null where there is none. */
  const RegionValue* Find(const ir::Expr& var) const;
  int root() const { return root_; }

  /*! \brief Bytes that the seeds and the gathers send. */
  double bytes() const;
  int num_seeds() const;   // that are reduce-scattered
  int num_values() const;  // that are computed on shards
  /*! \brief True if the seeds can be scattered along the dimension at all. */
  bool is_possible() const { return is_possible_; }

 private:
  bool AddSeed(EditableBinding* binding, const Resharding& step, int dim);
  bool AddCall(EditableBinding* binding);
  void Append(RegionValue value);
  bool OnlySlices(const mesh::Sharding& from, const mesh::Sharding& to,
                  const ir::TensorType& type) const;
  bool IsFurtherSharded(const mesh::Sharding& whole, const mesh::Sharding& sharded,
                        const ir::TensorType& type) const;
  void LeaveOut(int index);
  void TakeBack(int index);
  bool Retreat(int index);
  void Prune();

  EditableFunction& editable_;
  dialect::MeshTable& meshes_;
  rules::KernelTable& kernels_;
  Costs& costs_;
  const int root_;
  const mesh::AxisList axes_;
  ir::DeviceMesh view_;                          // that all types of the region name
  double scatter_bytes_ = 0, reduce_bytes_ = 0;  // of one seed
  bool is_possible_ = false;
  std::vector<RegionValue> values_;
  std::unordered_map<const ffi::Object*, int> index_of_;
};

}  // namespace distir::optimize
#endif  // DISTIR_OPTIMIZE_PROGRAM_SHARD_REGION_H_
