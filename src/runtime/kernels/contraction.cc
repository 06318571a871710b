// Plans a contraction of two tensors as matrix products.
#include "runtime/kernels/contraction.h"

#include <algorithm>

#include "runtime/kernels/blas.h"

namespace distir::runtime {

namespace {

// Matrices of at least so many multiplications are worth a call each; below, a copy that allows
// larger ones is cheaper.
constexpr int64_t kEnoughWork = 32 * 32 * 32;

enum class Role { kRows, kColumns, kContracted, kLoop, kSum };

Role RoleOf(const ContractionAxis& axis) {
  const bool left = axis.strides[kLeft] != 0;
  const bool right = axis.strides[kRight] != 0;
  if (axis.strides[kResult] == 0) return left && right ? Role::kContracted : Role::kSum;
  if (left == right) return Role::kLoop;
  return left ? Role::kRows : Role::kColumns;
}

/*! \brief Joins `inner` to `outer` if they are one axis in every tensor. */
bool Join(ContractionAxis* outer, const ContractionAxis& inner) {
  for (Operand operand : {kLeft, kRight, kResult}) {
    if (outer->strides[operand] != inner.strides[operand] * inner.extent) return false;
  }
  outer->extent *= inner.extent;
  outer->strides = inner.strides;
  return true;
}

/*! \brief The axes of one role, outer ones first, joined where they can be. */
std::vector<ContractionAxis> AxesOf(const std::vector<ContractionAxis>& axes, Role role) {
  std::vector<ContractionAxis> found;
  for (const ContractionAxis& axis : axes) {
    if (axis.extent != 1 && RoleOf(axis) == role) found.push_back(axis);
  }
  const auto distance = [](const ContractionAxis& axis) {
    const auto& strides = axis.strides;
    return strides[kResult] != 0 ? strides[kResult] : std::max(strides[kLeft], strides[kRight]);
  };
  std::stable_sort(found.begin(), found.end(),
                   [&](const auto& a, const auto& b) { return distance(a) > distance(b); });
  std::vector<ContractionAxis> joined;
  for (const ContractionAxis& axis : found) {
    if (joined.empty() || !Join(&joined.back(), axis)) joined.push_back(axis);
  }
  return joined;
}

std::array<bool, 3> NeedCopies(const ContractionAxis& m, const ContractionAxis& n,
                               const ContractionAxis& k) {
  const auto needs_copy = [](const ContractionAxis& rows, const ContractionAxis& columns,
                             Operand operand) {
    return !IsBlasMatrix(rows.extent, columns.extent, rows.strides[operand],
                         columns.strides[operand]);
  };
  return {needs_copy(m, k, kLeft), needs_copy(k, n, kRight), needs_copy(m, n, kResult)};
}

}  // namespace

ContractionPlan PlanContraction(std::vector<ContractionAxis> axes, bool may_copy) {
  std::vector<ContractionAxis> rows = AxesOf(axes, Role::kRows);
  std::vector<ContractionAxis> columns = AxesOf(axes, Role::kColumns);
  std::vector<ContractionAxis> contracted = AxesOf(axes, Role::kContracted);
  for (auto* list : {&rows, &columns, &contracted}) {
    if (list->empty()) list->emplace_back();
  }

  struct Choice {
    size_t m = 0, n = 0, k = 0;
    int64_t work = 0;
  } largest, uncopied;
  for (size_t m = 0; m < rows.size(); ++m) {
    for (size_t n = 0; n < columns.size(); ++n) {
      for (size_t k = 0; k < contracted.size(); ++k) {
        const Choice choice{m, n, k, rows[m].extent * columns[n].extent * contracted[k].extent};
        if (choice.work > largest.work) largest = choice;
        if (choice.work <= uncopied.work) continue;
        if (NeedCopies(rows[m], columns[n], contracted[k]) == std::array<bool, 3>{})
          uncopied = choice;
      }
    }
  }
  const int64_t enough = may_copy ? std::min(kEnoughWork, largest.work) : 1;
  const bool is_enough = uncopied.work >= enough;
  const Choice& choice = is_enough ? uncopied : largest;

  ContractionPlan plan;
  plan.m = rows[choice.m];
  plan.n = columns[choice.n];
  plan.k = contracted[choice.k];
  plan.is_copied = NeedCopies(plan.m, plan.n, plan.k);
  plan.loops = AxesOf(axes, Role::kLoop);
  plan.sums = AxesOf(axes, Role::kSum);
  const auto keep_others = [](const std::vector<ContractionAxis>& from, size_t chosen,
                              std::vector<ContractionAxis>* to) {
    for (size_t i = 0; i < from.size(); ++i) {
      if (i != chosen) to->push_back(from[i]);
    }
  };
  keep_others(rows, choice.m, &plan.loops);
  keep_others(columns, choice.n, &plan.loops);
  keep_others(contracted, choice.k, &plan.sums);
  return plan;
}

CopyAxes UseDenseCopy(ContractionPlan* plan, Operand operand) {
  std::vector<ContractionAxis*> axes;
  for (auto* list : {&plan->loops, &plan->sums}) {
    for (ContractionAxis& axis : *list) axes.push_back(&axis);
  }
  for (ContractionAxis* axis : {&plan->m, &plan->k, &plan->n}) axes.push_back(axis);
  CopyAxes copy;
  int64_t stride = 1;
  for (size_t i = axes.size(); i-- > 0;) {
    int64_t& own = axes[i]->strides[operand];
    if (own == 0) continue;
    copy.extents.insert(copy.extents.begin(), axes[i]->extent);
    copy.tensor_strides.insert(copy.tensor_strides.begin(), own);
    copy.copy_strides.insert(copy.copy_strides.begin(), stride);
    own = stride;
    stride *= axes[i]->extent;
  }
  return copy;
}

}  // namespace distir::runtime
