// Recognises non-maximum suppressions, whose number of boxes depends on data.
#include "ir/data_extents.h"

#include "ir/symbolic.h"

namespace distir::ir {

namespace {

const GlobalFunction kTensorTypeOfRank("relax.TensorType");
// Boxes are given in the format "onnx" as many as there are, in "tensorflow" as many as there may
// be.
const AttrField kBoxesFormat("relax.attrs.AllClassNonMaximumSuppressionAttrs", "output_format");

}  // namespace

bool HasDataExtent(const Call& call) {
  if (!call.defined() || !IsOp(call.op(), "relax.vision.all_class_non_max_suppression") ||
      kBoxesFormat.Text(call.attrs()) != "onnx")
    return false;
  auto tuple = TupleType::Cast(call.ty());
  auto boxes = tuple.defined() ? TensorType::Cast(tuple.fields()[0]) : TensorType();
  return boxes.defined() && HasKnownShape(boxes);
}

TensorType WithoutShape(const TensorType& type) {
  ffi::Optional<DLDataType> dtype;
  if (type.has_dtype()) dtype = type.dtype();
  return kTensorTypeOfRank(nullptr, dtype, type.ndim(), nullptr, nullptr).cast<TensorType>();
}

}  // namespace distir::ir
