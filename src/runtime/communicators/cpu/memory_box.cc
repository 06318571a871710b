// Finds the boxes of host tensors that a worker sends and receives in a transfer, and copies those
// that it sends to itself.
#include "runtime/communicators/cpu/memory_box.h"

#include <tvm/ffi/dtype.h>
#include <tvm/ffi/error.h>

#include <utility>

#include "runtime/kernels/format_list.h"
#include "runtime/kernels/strided_copy.h"

namespace distir::runtime::cpu {

using tvm::ffi::TensorView;

std::string MemoryBox::Describe() const {
  return std::string(tvm::ffi::DLDataTypeToString(dtype)) + " " + FormatList(extent);
}

namespace {

MemoryBox BoxOfPiece(int64_t call, const TransferPiece& piece, const std::vector<int64_t>& units,
                     const TensorView& tensor) {
  const std::vector<int64_t> shape = ShapeOf(tensor);
  ElementBox box = ScalePiece(piece, units, shape);
  MemoryBox result{call, tensor.dtype(), std::move(box.extent),
                   RowMajorStrides(shape, ElementBytes(tensor.dtype())), DataOf(tensor)};
  for (size_t i = 0; i < shape.size(); ++i) result.data += box.begin[i] * result.byte_strides[i];
  for (size_t i = 0; i < piece.steps.size(); ++i) result.byte_strides[i] *= piece.steps[i];
  return result;
}

void CopyBox(const MemoryBox& source, const MemoryBox& target) {
  if (!source.Matches(target)) {
    TVM_FFI_THROW(ValueError) << "a worker sends itself " << source.Describe() << " and expects "
                              << target.Describe();
  }
  BoxCopy(source.extent, source.byte_strides, target.byte_strides, ElementBytes(source.dtype))
      .Run(source.data, target.data);
}

}  // namespace

void MoveBoxes(const TransferPlan& plan, int64_t call, int rank, const TensorView* x,
               const TensorView* out, const PeerAndBox& send, const PeerAndBox& receive) {
  std::vector<MemoryBox> own;  // what this worker sends to itself, in the order of the plan
  for (const TransferPiece& piece : plan.sends) {
    MemoryBox box = BoxOfPiece(call, piece, plan.source_units, *x);
    if (piece.peer == rank) {
      own.push_back(std::move(box));
    } else {
      send(piece.peer, box);
    }
  }
  size_t num_own = 0;
  for (const TransferPiece& piece : plan.receives) {
    const MemoryBox box = BoxOfPiece(call, piece, plan.target_units, *out);
    if (piece.peer == rank) {
      CopyBox(own[num_own++], box);
    } else {
      receive(piece.peer, box);
    }
  }
}

BoxOfSlice SliceOf(const Group& group, const TensorView& x, int dim, const TensorView& out) {
  const int64_t element_bytes = ElementBytes(x.dtype());
  const std::vector<int64_t> extent = ShapeOf(out);
  const std::vector<int64_t> x_strides = RowMajorStrides(ShapeOf(x), element_bytes);
  return {BoxCopy(extent, x_strides, RowMajorStrides(extent, element_bytes), element_bytes),
          DataOf(x) + group.position * extent[dim] * x_strides[dim]};
}

void CopySlice(const Group& group, const TensorView& x, int dim, const TensorView& out) {
  const BoxOfSlice slice = SliceOf(group, x, dim, out);
  slice.copy.Run(slice.source, DataOf(out));
}

}  // namespace distir::runtime::cpu
