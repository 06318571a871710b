// Turns a segment plan into the copies, sends and fills of one worker.
#include "runtime/plan/segment_plan.h"

#include <tvm/ffi/dtype.h>
#include <tvm/ffi/error.h>

#include <array>
#include <cstdlib>
#include <cstring>

#include "abi/segment_plan.h"
#include "runtime/kernels/floats/stored_float.h"
#include "runtime/kernels/strided_copy.h"

namespace distir::runtime {

namespace {

using tvm::ffi::TensorView;

/*! \brief A box of all of every dimension but one, in the units of ScalePiece. */
TransferPiece AlongDim(int peer, size_t rank, int dim, int64_t begin, int64_t count) {
  TransferPiece piece{peer, std::vector<int64_t>(rank, 0), std::vector<int64_t>(rank, 1), {}};
  piece.begin[dim] = begin;
  piece.extent[dim] = count;
  return piece;
}

using Element = std::array<char, 8>;

template <typename T>
Element BytesOf(T value) {
  Element element{};
  std::memcpy(element.data(), &value, sizeof(T));
  return element;
}

Element StoredAs(double value, DLDataType dtype) {
  if (dtype.lanes == 1 && dtype.code == kDLFloat) {
    if (dtype.bits == 64) return BytesOf(value);
    if (dtype.bits == 32) return BytesOf(static_cast<float>(value));
    if (dtype.bits == 16) return BytesOf(FloatToHalf(static_cast<float>(value)));
  }
  if (dtype.lanes == 1 && dtype.code == kDLBfloat && dtype.bits == 16)
    return BytesOf(FloatToBFloat16(static_cast<float>(value)));
  if (dtype.lanes == 1 && dtype.code == kDLFloat8_e4m3fn)
    return BytesOf(FloatToFloat8E4M3FN(static_cast<float>(value)));
  if (dtype.lanes == 1 && dtype.code == kDLFloat8_e5m2)
    return BytesOf(FloatToFloat8E5M2(static_cast<float>(value)));
  if (dtype.lanes == 1 && dtype.code == kDLBool) return BytesOf(static_cast<uint8_t>(value != 0));
  // The low bytes of an integer are the same in every width. The largest ones are no doubles, so
  // they are stated as the next one.
  constexpr double kTwoTo63 = 9223372036854775808.0;
  const bool is_integer = value >= -kTwoTo63 && value <= 2 * kTwoTo63;  // not a NaN
  if (dtype.lanes == 1 && dtype.code == kDLInt && is_integer)
    return BytesOf(value < kTwoTo63 ? static_cast<int64_t>(value) : INT64_MAX);
  if (dtype.lanes == 1 && dtype.code == kDLUInt && is_integer) {
    if (value < 0) return BytesOf(static_cast<int64_t>(value));
    return BytesOf(value < 2 * kTwoTo63 ? static_cast<uint64_t>(value) : UINT64_MAX);
  }
  TVM_FFI_THROW(TypeError) << "no value to fill a tensor of " << tvm::ffi::DLDataTypeToString(dtype)
                           << " with";
  TVM_FFI_UNREACHABLE();
}

}  // namespace

SegmentPlan ParseSegmentPlan(const std::string& json, int device_id,
                             const std::function<int(int64_t)>& rank_of) {
  const abi::SegmentPlan stated = abi::ReadSegmentPlan(json);
  const abi::SegmentPlanner planner(stated);
  if (planner.source().PositionOf(device_id) < 0 || planner.target().PositionOf(device_id) < 0) {
    TVM_FFI_THROW(ValueError) << "the segment plan of channel " << stated.channel
                              << " does not have device " << device_id << " on both sides";
  }
  const abi::SegmentPart part = planner.PartOf(device_id);
  const size_t rank = stated.source.dims.size();
  SegmentPlan plan;
  plan.dim = static_cast<int>(stated.dim);
  plan.source_size = planner.source_extent();
  plan.target_size = planner.target_extent();
  plan.fill = std::strtod(stated.fill.c_str(), nullptr);
  TransferPlan& transfer = plan.transfer;
  transfer.channel = stated.channel;
  transfer.rank = rank_of(device_id);
  transfer.is_source = transfer.is_target = true;
  transfer.source_units.assign(rank, 1);
  transfer.target_units.assign(rank, 1);
  transfer.source_units[plan.dim] = plan.source_size;
  transfer.target_units[plan.dim] = plan.target_size;
  for (const auto& [peer, segment] : part.sends) {
    transfer.sends.push_back(
        AlongDim(rank_of(peer), rank, plan.dim, segment.source, segment.count));
    transfer.sends.back().steps.assign(rank, 1);
    transfer.sends.back().steps[plan.dim] = segment.step;
  }
  int64_t done = 0;
  for (const auto& [peer, segment] : part.receives) {
    transfer.receives.push_back(
        AlongDim(rank_of(peer), rank, plan.dim, segment.target, segment.count));
    if (segment.target > done) plan.gaps.emplace_back(done, segment.target);
    done = segment.target + segment.count;
  }
  if (done < plan.target_size) plan.gaps.emplace_back(done, plan.target_size);
  return plan;
}

std::array<char, 8> StoredFill(const SegmentPlan& plan, DLDataType dtype) {
  return StoredAs(plan.fill, dtype);
}

void FillGaps(const SegmentPlan& plan, const TensorView& out) {
  if (plan.gaps.empty()) return;
  const int64_t element_bytes = ElementBytes(out.dtype());
  const Element element = StoredFill(plan, out.dtype());
  std::vector<int64_t> extents = ShapeOf(out);
  const std::vector<int64_t> strides = RowMajorStrides(extents, element_bytes);
  const std::vector<int64_t> repeat(extents.size(), 0);
  for (const auto& [begin, end] : plan.gaps) {
    extents[plan.dim] = end - begin;
    BoxCopy(extents, repeat, strides, element_bytes)
        .Run(element.data(), DataOf(out) + begin * strides[plan.dim]);
  }
}

}  // namespace distir::runtime
