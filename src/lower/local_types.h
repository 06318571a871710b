/*!
 * \file lower/local_types.h
 * \brief From global types to the types of one worker.
 *
 * A dimension of size d in n shards becomes d / n. Where d is a symbolic variable m of the
 * function's signature, m itself is replaced by m' * k throughout the function, k the largest
 * number of shards of a dimension that is just m, so that the worker's signature defines m' by a
 * dimension again:
 *
 *     x: DTensor((m, 8), "S[0]") on 4 devices  ->  x: Tensor((m', 8)), every other m becomes m' * 4
 */
#ifndef DISTIR_LOWER_LOCAL_TYPES_H_
#define DISTIR_LOWER_LOCAL_TYPES_H_

#include <string>
#include <unordered_map>

#include "ir/node.h"
#include "op/mesh_table.h"

namespace distir {
namespace lower {

namespace ffi = tvm::ffi;

class LocalTypes {
 public:
  /*!
   * \brief Reads the symbolic variables off a function's parameters.
   * \throws ValueError naming a variable that no parameter's shard defines.
   */
  LocalTypes(const ir::Function& function, const std::string& function_name, op::MeshTable* meshes);

  /*! \brief The type on a worker; DTensors become local Tensors, tuples throughout. */
  ir::Type Local(const ir::Type& type);
  /*! \brief The local shape of a tensor with this sharding; static dimensions must divide. */
  ffi::Array<ir::Expr> LocalShape(const ir::TensorType& type, const mesh::Sharding& sharding);
  /*! \brief A dimension or other integer expression in terms of the worker's variables. */
  ir::Expr LocalValue(const ir::Expr& value) const;

 private:
  std::string function_name_;
  op::MeshTable& meshes_;
  std::unordered_map<const ffi::Object*, ir::Expr> replacements_;  // m -> m' * k
};

}  // namespace lower
}  // namespace distir
#endif  // DISTIR_LOWER_LOCAL_TYPES_H_
