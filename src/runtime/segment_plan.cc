#include "runtime/segment_plan.h"

#include <tvm/ffi/dtype.h>
#include <tvm/ffi/error.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

#include "runtime/json_reader.h"
#include "runtime/stored_float.h"
#include "runtime/strided_copy.h"

namespace distir::runtime {

namespace {

using tvm::ffi::TensorView;

double ReadFill(const JsonReader& fill) {
  const std::string text = fill.Text();
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0') fill.Fail("is not a number");
  return value;
}

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
  if (dtype.lanes == 1 && dtype.code == kDLBool) return BytesOf(static_cast<uint8_t>(value != 0));
  // The low bytes of an integer are the same in every width.
  if (dtype.lanes == 1 && (dtype.code == kDLInt || dtype.code == kDLUInt))
    return BytesOf(static_cast<int64_t>(value));
  TVM_FFI_THROW(TypeError) << "no value to fill a tensor of " << tvm::ffi::DLDataTypeToString(dtype)
                           << " with";
  TVM_FFI_UNREACHABLE();
}

}  // namespace

SegmentPlan ParseSegmentPlan(const std::string& json, int device_id,
                             const std::function<int(int64_t)>& rank_of) {
  const JsonReader root = JsonReader::Parse("segment plan", json);
  SegmentPlan plan;
  const int64_t rank = root.Key("rank").Integer(), dim = root.Key("dim").Integer();
  if (dim < 0 || dim >= rank) root.Key("dim").Fail("is no dimension");
  plan.dim = static_cast<int>(dim);
  plan.source_size = root.Key("source_size").Integer();
  plan.target_size = root.Key("target_size").Integer();
  plan.fill = ReadFill(root.Key("fill"));
  TransferPlan& transfer = plan.transfer;
  transfer.channel = root.Key("channel").Integer();
  transfer.rank = rank_of(device_id);
  transfer.is_source = transfer.is_target = true;
  transfer.source_units.assign(rank, 1);
  transfer.target_units.assign(rank, 1);
  transfer.source_units[dim] = plan.source_size;
  transfer.target_units[dim] = plan.target_size;

  std::vector<std::pair<int64_t, int64_t>> given;
  const JsonReader pieces = root.Key("pieces");
  for (int64_t i = 0, n = pieces.Size(); i < n; ++i) {
    const std::vector<int64_t> row = pieces.At(i).Integers();
    if (row.size() != 6) pieces.At(i).Fail("has not six integers");
    const int64_t from = row[0], to = row[1], source = row[2], target = row[3], step = row[4],
                  count = row[5];
    const int64_t last = source + (count - 1) * step;
    if (count <= 0 || std::min(source, last) < 0 || std::max(source, last) >= plan.source_size ||
        target < 0 || target + count > plan.target_size)
      pieces.At(i).Fail("lies outside of its tensors");
    if (from == device_id) {
      TransferPiece piece = AlongDim(rank_of(to), rank, plan.dim, source, count);
      piece.steps.assign(rank, 1);
      piece.steps[dim] = step;
      transfer.sends.push_back(std::move(piece));
    }
    if (to == device_id) {
      transfer.receives.push_back(AlongDim(rank_of(from), rank, plan.dim, target, count));
      given.emplace_back(target, target + count);
    }
  }
  std::sort(given.begin(), given.end());
  int64_t done = 0;
  for (const auto& [begin, end] : given) {
    if (begin < done) root.Fail("gives a place twice");
    if (begin > done) plan.gaps.emplace_back(done, begin);
    done = end;
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
