/*!
 * \file padding/grains.h
 * \brief Padded extents of all values of a module, and the grain in which each dimension is cut.
 *
 * A reshape of (8 * 16) columns to 8 heads of 16 can keep a sharding in 3 only if the columns are
 * cut between heads: into 48, 48 and 32 columns, not 43, 43 and 42. So their *grain* is 16, and
 * they are padded to 9 heads. The operator that makes the columns must cut them so, too: the
 * product in front, and the columns of its weight, which is a parameter.
 *
 * Dimensions that are the same factor of some call belong together and have the same number of
 * *units*: the largest that divides all factors which may be uneven. Worked example, 8 query heads
 * of 16 that share 4 keys, in 3 shards:
 *
 *     wq: (64, 128)                  128 columns    4 units of 32 columns
 *     q = matmul(x, wq)              128            4 units
 *     q1 = reshape(q, (1, 8, 16))      8 heads      4 units of 2 heads
 *     q2 = reshape(q1, (1, 4, 2, 16))  4            4 units of 1
 *
 * 4 units in 3 shards are padded to 6, so that wq has 192 columns, 64 per device. The decisions of
 * propagation stay; grains only say where the cuts are. They follow from the program whenever it is
 * padded, so no other pass has to keep them.
 *
 * Units may be symbolic: n rows of 4, merged to n * 4, are n units in both. If a symbolic size
 * is cut into several numbers of shards, or is whole on every device, it is padded alike, to a
 * multiple of all of them, if what computes it does so element by element: n tokens in 8 shards
 * that are gathered stay (n + 7) // 8 * 8.
 *
 * A dimension that cannot be padded keeps its extent: a symbolic size that has to divide
 * (padding/dividing_sizes.h), a call that is sharded evenly along a factor that may
 * not be uneven, a function that is used as a value. If such a call meets grains, or two calls
 * have no units in common, the value is cut anew between them.
 */
#ifndef DISTIR_PADDING_GRAINS_H_
#define DISTIR_PADDING_GRAINS_H_

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "dialect/mesh_table.h"
#include "ir/node.h"
#include "padding/callee_sizes.h"
#include "padding/dividing_sizes.h"
#include "padding/extents.h"
#include "padding/size.h"
#include "rules/tir/rule.h"

namespace distir::padding {

class Grains {
 public:
  Grains(const ir::IRModule& mod, dialect::MeshTable* meshes, rules::KernelTable* kernels,
         const DividingSizes& dividing);

  /*! \brief Extents of an expression of one of the functions. */
  ValueExtents Of(const ir::Expr& value) const;
  /*! \brief Extents that a function of the module returns. */
  ValueExtents OfResult(const ir::GlobalVar& function) const;
  /*! \brief Extents of the arguments that the call bound to a variable takes; null for calls that
   * take any extents. */
  const ValueExtents* TakenBy(const ir::Var& var) const;
  /*! \brief True if a call takes an argument with other extents than it has. */
  bool IsRecutFor(const ir::Var& var, const ir::Call& call) const;
  /*! \brief True if anything in a function is padded, or cut anew. */
  bool Concern(const ir::GlobalVar& name, const ir::Function& function) const;

 private:
  /*! \brief A dimension, or a factor of a call; those of one tree have the same units. */
  struct Node {
    int parent;
    Size size;
    // Of roots only.
    int nodes;  // of the tree
    Size units;
    int64_t shards;
    bool is_fixed;   // its extents must not change any more
    bool is_stated;  // by a parameter or a result: its extents follow from its own shards
  };
  struct Tensor {
    Extents sizes;           // before they are padded
    std::vector<int> nodes;  // per dimension, -1 where it keeps its size
    // Of what a function takes or gives, whose nodes speak of its own symbolic sizes.
    std::shared_ptr<const CalleeSizes> callee;
  };
  using Tensors = std::vector<Tensor>;  // as in ValueExtents

  Tensors Add(const ir::Type& type, bool is_fixed = false);
  /*! \brief Adds the tensors of a parameter or a result. */
  Tensors AddStated(const ir::Type& type, bool is_fixed);
  /*! \brief Adds the tensors of a value that keeps the symbolic extents that are not cut. */
  Tensors AddKept(const ir::Type& type);
  int AddNode(const Size& size, int64_t shards, bool is_fixed = false);
  int Root(int node) const;
  /*! \brief Lets both have common units, if they can. */
  void Join(int a, int b);
  void JoinAll(const Tensors& a, const Tensors& b);

  void Visit(const ir::SeqExpr& seq, const Tensors& target);
  void VisitCall(const ir::Var& var, const ir::Call& call);
  void VisitOperator(const ir::Var& var, const ir::Call& call);
  void VisitRedistribute(const ir::Var& var, const ir::Call& call);
  void VisitFunctionCall(const ir::Var& var, const ir::Call& call);

  Tensors TensorsOf(const ir::Expr& value);
  ValueExtents PaddedOf(const Tensors& tensors) const;

  dialect::MeshTable& meshes_;
  rules::KernelTable& kernels_;
  const DividingSizes& dividing_;
  std::vector<Node> nodes_;
  std::unordered_map<const ffi::Object*, ir::Function> functions_;  // by global variable
  std::unordered_map<const ffi::Object*, Tensors> values_;          // by variable
  std::unordered_map<const ffi::Object*, Tensors> params_;   // by global variable, all of them
  std::unordered_map<const ffi::Object*, Tensors> results_;  // by global variable
  std::unordered_map<const ffi::Object*, Tensors> taken_;    // by the variable of a call
  std::unordered_map<const ffi::Object*, ValueExtents> taken_extents_;
};

}  // namespace distir::padding
#endif  // DISTIR_PADDING_GRAINS_H_
