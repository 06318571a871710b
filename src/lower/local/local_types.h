/*!
 * \file lower/local/local_types.h
 * \brief Converts global types to those of one worker.
 *
 * A dimension of size d in n shards becomes d / n. If d is a symbolic variable m of the
 * function's signature, which has to divide since it is not padded (padding/dividing_sizes.h), m
 * itself is replaced by m' * k throughout the function, k the largest number of shards of a
 * dimension that is just m, so that the worker's signature defines m' by a dimension again:
 *
 *     x: DTensor((m, 8), "S[0]") on 4 devices  ->  x: Tensor((m', 8)), every other m becomes m' * 4
 *
 * A match_cast defines variables too, in the same way. A variable that only parameters of another
 * mesh define is undefined here: the program then takes these sizes as a parameter.
 */
#ifndef DISTIR_LOWER_LOCAL_LOCAL_TYPES_H_
#define DISTIR_LOWER_LOCAL_LOCAL_TYPES_H_

#include <functional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "dialect/mesh_table.h"
#include "ir/node.h"
#include "support/words.h"

namespace distir::lower {

namespace ffi = tvm::ffi;

class LocalTypes {
 public:
  /*!
   * \brief Reads the symbolic variables off a function's parameters and match_casts.
   * \param is_present True if values of a type are on the worker; null: all are.
   * \throws ValueError naming a variable that no parameter's shard defines.
   */
  LocalTypes(const ir::Function& function, const std::string& function_name,
             dialect::MeshTable* meshes, std::function<bool(const ir::Type&)> is_present);

  /*! \brief The type on a worker; DTensors become local Tensors, tuples throughout. */
  ir::Type Local(const ir::Type& type);
  /*! \brief The local shape of a tensor with this sharding; static dimensions must divide. */
  ffi::Array<ir::Expr> LocalShape(const ir::TensorType& type, const mesh::Sharding& sharding);
  /*! \brief A dimension or other integer expression in terms of the worker's variables. */
  ir::Expr LocalValue(const ir::Expr& value);
  /*! \brief Variables that the types and values so far use and that nothing on the worker defines,
   * in order of first use. */
  const std::vector<ir::Var>& undefined() const { return undefined_; }

 private:
  ir::Type MakeLocal(const ir::Type& type);
  ir::TensorType LocalTensor(const ir::DTensorType& type);

  std::string function_name_;
  dialect::MeshTable& meshes_;
  std::unordered_map<const ffi::Object*, ir::Expr> replacements_;  // m -> m' * k
  std::unordered_map<ir::Type, ir::Type, ffi::ObjectPtrHash, ffi::ObjectPtrEqual> local_;
  /*! \brief Local tensors of static shape, one object for equal ones: by dtype and shape. */
  std::unordered_map<Words, ir::TensorType, HashWords> tensors_;
  Words key_;  // of the tensor asked for
  bool may_be_undefined_;
  std::unordered_set<const ffi::Object*> known_;  // defined, or in undefined_
  std::vector<ir::Var> undefined_;
};

}  // namespace distir::lower
#endif  // DISTIR_LOWER_LOCAL_LOCAL_TYPES_H_
