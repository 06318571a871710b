// Recognises products of rows by the matrices of their experts.
#include "optimize/experts/product.h"

#include "ir/operator_attrs.h"
#include "ir/symbolic.h"
#include "optimize/experts/types.h"
#include "rules/factor/axes.h"

namespace distir::optimize {

namespace {

/*! \brief Matrices of experts that were looked up, maybe transposed. */
std::optional<Product> ReadMatrices(ir::Expr value, const EditableFunction& editable,
                                    dialect::MeshTable* meshes) {
  Product product;
  product.matrices = value;
  if (!TypeOf(value).defined() || TypeOf(value).tensor_ty().ndim() != 3) return std::nullopt;
  if (EditableBinding* permutation = DefinitionBy("relax.permute_dims", value, editable)) {
    auto call = ir::Call::Cast(permutation->value);
    auto axes = rules::ReadAxes(ir::attrs::kPermuteDimsAxes(call.attrs()), 3);
    if (!axes || (*axes)[0] != 0 || (*axes)[1] != 2) return std::nullopt;
    product.transposed = true;
    value = call.args()[0];
  }
  auto lookup = ReadLookup(value, editable, meshes);
  if (!lookup || lookup->axes.empty()) return std::nullopt;
  product.choice = {lookup->ids, lookup->axes, lookup->num_entries(), false};
  product.experts = lookup->table;
  product.sent_bytes = lookup->sent_bytes;
  return product;
}

}  // namespace

std::optional<Product> ReadProduct(const ir::Call& call, const EditableFunction& editable,
                                   dialect::MeshTable* meshes) {
  for (int matrix : {1, 0}) {
    auto product = ReadMatrices(call.args()[matrix], editable, meshes);
    if (!product) continue;
    // matrices (F, D) by a column are a row by matrices (D, F)
    if (matrix == 0) product->transposed = !product->transposed;
    product->x = call.args()[1 - matrix];
    product->row_dim = matrix == 1 ? 1 : 2;
    return product;
  }
  return std::nullopt;
}

const char* WhyNotThere(const ir::Call& call, Product* product) {
  const Product& p = *product;
  const ir::DTensorType experts = TypeOf(p.experts), ids = TypeOf(p.choice.ids);
  const ir::DTensorType x = TypeOf(p.x), y = TypeOf(call);
  const bool shapes_known = x.defined() && x.tensor_ty().ndim() == 3 &&
                            ir::HasKnownShape(x.tensor_ty()) && ir::HasKnownShape(y.tensor_ty());
  if (!ir::Var::Is(p.x) || !ir::Var::Is(p.choice.ids)) return "tokens or choices are constants";
  if (!shapes_known || p.choice.num_experts < 0) return "sizes are not known";
  if (!ir::SameDim(ShapeOf(x)[0], ShapeOf(ids)[0])) return "tokens are shared by choices";
  if (ir::StaticDim(ShapeOf(x)[p.row_dim]) != 1) return "several rows for one choice";
  for (const ir::DTensorType& type : {experts, x, y}) {
    if (!ir::StructurallyEqual(type.device_mesh(), ids.device_mesh()))
      return "experts and tokens name different meshes";
  }
  const std::vector<int> of_experts = DimsOf(experts), of_ids = DimsOf(ids);
  const std::vector<int> of_x = DimsOf(x), of_y = DimsOf(y);
  const int contracted = p.transposed ? 2 : 1, columns = 3 - contracted;
  const int width = 3 - p.row_dim;
  size_t num_copies = 0;
  for (int axis : p.choice.axes) num_copies += of_ids[axis] == 0 ? 0 : 1;
  if (num_copies != 0 && num_copies != p.choice.axes.size())
    return "tokens are sharded along some of the axes that experts are";
  product->choice.has_copies = num_copies != 0;
  for (size_t axis = 0; axis < of_ids.size(); ++axis) {
    const int of_expert = of_experts[axis];
    if ((of_x[axis] == 0) != (of_ids[axis] == 0) || (of_y[axis] == 0) != (of_ids[axis] == 0))
      return "tokens are not sharded where their choices are";
    if ((of_expert == contracted) != (of_x[axis] == width))
      return "experts and tokens are sharded differently along the contracted dimension";
    if ((of_expert == columns) != (of_y[axis] == width))
      return "columns of the experts are gathered, too";
  }
  for (const ir::DTensorType& type : {experts, x, y}) {
    if (!IsFloat(type.tensor_ty())) return "not floats";
  }
  const DLDataType id = ids.tensor_ty().dtype();
  if (id.code != kDLInt || (id.bits != 32 && id.bits != 64)) return "ids are not int32 or int64";
  return nullptr;
}

}  // namespace distir::optimize
