#include "runtime/transfer_plan.h"

#include <tvm/ffi/error.h>

#include "runtime/json_reader.h"

namespace distir::runtime {

namespace {

struct UnitBox {
  std::vector<int64_t> begin;
  std::vector<int64_t> end;
};

UnitBox ReadBox(const JsonReader& begin, const JsonReader& end, const std::vector<int64_t>& grid) {
  UnitBox box{begin.Integers(), end.Integers()};
  bool valid = box.begin.size() == grid.size() && box.end.size() == grid.size();
  for (size_t i = 0; valid && i < grid.size(); ++i) {
    valid = 0 <= box.begin[i] && box.begin[i] <= box.end[i] && box.end[i] <= grid[i];
  }
  if (!valid) begin.Fail("is not the begin of a box inside the grid");
  return box;
}

std::vector<int64_t> ExtentOf(const UnitBox& box) {
  std::vector<int64_t> extent(box.begin.size());
  for (size_t i = 0; i < extent.size(); ++i) extent[i] = box.end[i] - box.begin[i];
  return extent;
}

int64_t Volume(const std::vector<int64_t>& extent) {
  int64_t volume = 1;
  for (int64_t e : extent) volume *= e;
  return volume;
}

TransferPiece RelativePiece(const JsonReader& where, int peer, const UnitBox& piece,
                            const UnitBox& local) {
  TransferPiece result{peer, piece.begin, ExtentOf(piece), {}};
  for (size_t i = 0; i < piece.begin.size(); ++i) {
    if (piece.begin[i] < local.begin[i] || piece.end[i] > local.end[i]) {
      where.Fail("lies outside the box of its device");
    }
    result.begin[i] -= local.begin[i];
  }
  return result;
}

}  // namespace

TransferPlan ParseTransferPlan(const std::string& json, int device_id,
                               const std::function<int(int64_t)>& rank_of) {
  JsonReader root = JsonReader::Parse("transfer plan", json);
  const std::vector<int64_t> grid = root.Key("grid").Integers();
  TransferPlan plan;
  plan.channel = root.Key("channel").Integer();
  plan.rank = rank_of(device_id);

  const std::string me = std::to_string(device_id);
  UnitBox source_box, target_box;
  JsonReader source_boxes = root.Key("source_boxes");
  JsonReader target_boxes = root.Key("target_boxes");
  if (source_boxes.Has(me)) {
    plan.is_source = true;
    JsonReader box = source_boxes.Key(me);
    source_box = ReadBox(box.At(0), box.At(1), grid);
    plan.source_units = ExtentOf(source_box);
  }
  if (target_boxes.Has(me)) {
    plan.is_target = true;
    JsonReader box = target_boxes.Key(me);
    target_box = ReadBox(box.At(0), box.At(1), grid);
    plan.target_units = ExtentOf(target_box);
  }

  int64_t received = 0;
  JsonReader pieces = root.Key("pieces");
  for (int64_t i = 0; i < pieces.Size(); ++i) {
    JsonReader piece = pieces.At(i);
    const int64_t source = piece.At(0).Integer();
    const int64_t target = piece.At(1).Integer();
    const UnitBox box = ReadBox(piece.At(2), piece.At(3), grid);
    if (source == device_id) {
      if (!plan.is_source) piece.Fail("has a source without a source box");
      plan.sends.push_back(RelativePiece(piece, rank_of(target), box, source_box));
    }
    if (target == device_id) {
      if (!plan.is_target) piece.Fail("has a target without a target box");
      plan.receives.push_back(RelativePiece(piece, rank_of(source), box, target_box));
      received += Volume(plan.receives.back().extent);
    }
  }
  if (plan.is_target && received != Volume(plan.target_units)) {
    root.Fail("gives device " + me + " pieces of " + std::to_string(received) +
              " units for a box of " + std::to_string(Volume(plan.target_units)));
  }
  return plan;
}

ElementBox ScalePiece(const TransferPiece& piece, const std::vector<int64_t>& units,
                      const std::vector<int64_t>& local_shape) {
  if (local_shape.size() != units.size()) {
    TVM_FFI_THROW(ValueError) << "the plan is for tensors of " << units.size()
                              << " dimensions, the tensor has " << local_shape.size();
  }
  ElementBox box{piece.begin, piece.extent};
  for (size_t i = 0; i < units.size(); ++i) {
    if (units[i] == 0 || local_shape[i] % units[i] != 0) {
      TVM_FFI_THROW(ValueError) << "dimension " << i << " of size " << local_shape[i]
                                << " does not divide into the plan's " << units[i] << " units";
    }
    const int64_t unit = local_shape[i] / units[i];
    box.begin[i] *= unit;
    box.extent[i] *= unit;
  }
  return box;
}

}  // namespace distir::runtime
