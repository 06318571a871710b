// Lists the operators that a copying statement may be: slice, flip, pad, take.
#include "unfuse/moved_elements.h"

#include <algorithm>
#include <optional>

#include "ir/make_operators.h"
#include "unfuse/copies.h"

namespace distir::unfuse {

namespace {

void AddSlice(const Copy& copy, Candidates* found) {
  ffi::Array<ir::Expr> axes, begins, ends, steps;
  for (size_t d = 0; d < copy.dims.size(); ++d) {
    const Along& along = copy.dims[d];
    if (along.IsAll()) continue;
    const int64_t last = along.first + along.step * (along.extent - 1);
    if (along.step == 0 || along.extent < 1 || std::min(along.first, last) < 0) return;
    // -1 would be the last element; so far in front of the first there is none.
    const int64_t end = along.step > 0 ? last + 1 : last > 0 ? last - 1 : -along.size - 1;
    axes.push_back(ir::MakeInt(static_cast<int64_t>(d)));
    begins.push_back(ir::MakeInt(along.first));
    ends.push_back(ir::MakeInt(end));
    steps.push_back(ir::MakeInt(along.step));
  }
  if (axes.empty()) return;
  found->push_back({{TensorTypeOf(copy.x)}, [=](const auto& x) {
                      return ir::make::kStridedSlice(
                          x[0], ir::MakeTuple(axes), ir::MakeTuple(begins), ir::MakeTuple(ends),
                          ir::MakeTuple(steps), /*assume_inbound=*/false);
                    }});
}

void AddFlip(const Copy& copy, Candidates* found) {
  std::vector<size_t> turned;
  for (size_t d = 0; d < copy.dims.size(); ++d) {
    if (!copy.dims[d].IsAll()) turned.push_back(d);
  }
  if (turned.size() != 1 || copy.dims[turned[0]].step != -1) return;
  found->push_back(
      {{TensorTypeOf(copy.x)}, [axis = static_cast<int64_t>(turned[0])](const auto& x) {
         return ir::make::kFlip(x[0], axis);
       }});
}

// Its condition is compared as a whole, with what TVM makes.
void AddPad(const Copy& copy, const ir::Expr& value, Candidates* found) {
  double number = 0;
  if (auto real = ir::FloatImm::Cast(value); real.defined()) {
    number = real.value();
  } else if (auto integer = ir::IntImm::Cast(value); integer.defined()) {
    number = static_cast<double>(integer.value());
  } else {
    return;
  }
  ffi::Array<int64_t> widths;
  for (const Along& along : copy.dims) {
    if (!along.IsPadded()) return;
    widths.push_back(along.Before());
    widths.push_back(along.Behind());
  }
  found->push_back({{TensorTypeOf(copy.x)}, [=](const auto& x) {
                      return ir::make::kNnPad(x[0], widths, ffi::String("constant"), number);
                    }});
}

/*! \brief The buffer that an index is read from; null where it is of iterators. */
ir::Var PositionsOf(const ir::Expr& index) {
  if (auto load = ir::TensorLoad::Cast(index); load.defined()) return ir::Var::Cast(load.source());
  ir::Var found;
  ir::VisitOperands(index, [&found](const ir::Expr& each) {
    if (!found.defined()) found = PositionsOf(each);
  });
  return found;
}

// Of a table that the kernel makes itself, only the rows that are looked up would be made where
// both are one kernel, so that stays.
void AddLookups(const ir::PrimFunc& kernel, const ir::SBlock& block, Candidates* found) {
  for (const ir::TensorRegion& table : block.reads()) {
    if (!Contains(kernel.params(), table.source())) continue;
    for (size_t d = 0; d < table.region().size(); ++d) {
      const ir::Var positions = PositionsOf(table.region()[d].min());
      if (!positions.defined()) continue;
      const std::vector<ir::TensorType> types{TensorTypeOf(table.source()),
                                              TensorTypeOf(positions)};
      const auto axis = static_cast<int64_t>(d);
      for (const char* mode : {"fast", "clip", "wrap"}) {
        found->push_back({types, [axis, mode = ffi::String(mode)](const auto& x) {
                            return ir::make::kTake(x[0], x[1], ffi::Optional<int64_t>(axis), mode);
                          }});
      }
      if (ShapeOf(positions).size() == table.region().size()) {
        found->push_back(
            {types, [axis](const auto& x) { return ir::make::kGatherElements(x[0], x[1], axis); }});
      }
    }
  }
}

}  // namespace

Candidates MovesOfElements(const ir::PrimFunc& kernel, const ir::Stmt& stmt) {
  Candidates found;
  const ir::SBlock block = BlockOf(stmt);
  if (!block.defined() || block.init().defined()) return found;
  if (auto store = ir::BufferStore::Cast(block.body()); store.defined()) {
    if (auto copy = ReadCopy(block, store)) {
      if (copy->otherwise.defined()) {
        AddPad(*copy, copy->otherwise, &found);
      } else {
        AddSlice(*copy, &found);
        AddFlip(*copy, &found);
      }
    }
  }
  AddLookups(kernel, block, &found);
  return found;
}

}  // namespace distir::unfuse
