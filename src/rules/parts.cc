// Composes the segments of slices and flips.
#include "rules/parts.h"

#include <algorithm>
#include <utility>

#include "ir/symbolic.h"

namespace distir::rules {

namespace {

using mesh::Segment;

/*! \brief The places of `inner`, from one to before another, that read what `outer` gives. */
std::pair<int64_t, int64_t> PlacesWithin(const Segment& inner, const Segment& outer) {
  const int64_t begin = outer.target - inner.source;  // of source + place * step, in steps of 1
  const int64_t end = begin + outer.count;
  if (inner.step == 0) return {0, begin <= 0 && 0 < end ? inner.count : 0};
  auto ceil_divide = [](int64_t a, int64_t b) {
    return a / b + (a % b != 0 && (a > 0) == (b > 0));
  };
  const int64_t step = inner.step;
  int64_t from = step > 0 ? ceil_divide(begin, step) : ceil_divide(end - 1, step);
  int64_t to = step > 0 ? ceil_divide(end, step) : ceil_divide(begin - 1, step);
  from = std::max<int64_t>(from, 0);
  to = std::min(to, inner.count);
  return {from, std::max(from, to)};
}

}  // namespace

Segments Compose(const Segments& outer, const Segments& inner) {
  Segments composed;
  for (const Segment& segment : inner) {
    for (const Segment& through : outer) {
      const auto [from, to] = PlacesWithin(segment, through);
      if (from == to) continue;
      const int64_t place = segment.source + from * segment.step - through.target;
      composed.push_back({through.source + place * through.step, segment.target + from,
                          segment.step * through.step, to - from});
    }
  }
  return composed;
}

void Parts::Note(const ir::Var& var, const ir::Call& call, const ir::Type& result_ty) {
  const Operator* record = FindOperator(call.op());
  if (record == nullptr || record->movement == nullptr) return;
  const OpView view = ViewCall(call, result_ty);
  if (!ir::HasKnownShape(view.operands[0]) || !ir::HasKnownShape(view.results[0])) return;
  if (auto movement = record->movement(view))
    steps_.emplace(var.get(), Step{call.args()[0], std::move(*movement)});
}

void Parts::NoteSame(const ir::Var& var, const ir::Expr& value) {
  steps_.emplace(var.get(), Step{value, {}});
}

void Parts::NoteMoved(const ir::Var& var, const ir::Expr& value, Movement movement) {
  steps_.emplace(var.get(), Step{value, std::move(movement)});
}

Part Parts::Of(Part part, int dim, Filled filled) const {
  while (true) {
    auto step = steps_.find(part.of.get());
    if (step == steps_.end()) return part;
    const Movement& movement = step->second.movement;
    if (!movement.segments.empty()) {
      if (movement.dim != dim) return part;
      if (!movement.fill.empty()) {
        const bool is_other = !part.fill.empty() && part.fill != movement.fill;
        if (filled == Filled::kNo || is_other) return part;
        part.fill = movement.fill;
      }
      part.segments = Compose(movement.segments, part.segments);
    }
    part.of = step->second.of;
  }
}

}  // namespace distir::rules
