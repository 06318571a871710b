// Decides if a contraction is products of matrices that lie in memory as cuBLASLt takes them.
#include "target/gpu/matrix_form.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <vector>

#include "ir/symbolic.h"
#include "support/contains.h"

namespace distir::target {

namespace {

// Batches that are not one stride apart are a call each; of more of them a kernel is quicker.
constexpr int64_t kMostCalls = 16;

enum class Role { kRows, kColumns, kContracted, kBatch, kSum };

/*! \brief Labels that lie next to each other in all tensors that have them; size -1 if symbolic. */
struct Axis {
  Role role;
  int64_t size;
};

using Tensors = std::array<Labels, 3>;

/*! \brief The axes of a contraction, and which of them each tensor has, outermost first. */
struct Form {
  std::vector<Axis> axes;
  std::array<std::vector<int>, 3> of_tensor;
};

int64_t Times(int64_t a, int64_t b) { return a < 0 || b < 0 ? -1 : a * b; }

Role RoleOf(const Tensors& tensors, int label) {
  const auto has = [&](int i) { return Has(tensors[i], label); };
  if (!has(2)) return has(0) && has(1) ? Role::kContracted : Role::kSum;
  if (has(0) && has(1)) return Role::kBatch;
  return has(0) ? Role::kRows : Role::kColumns;
}

/*! \brief True if `inner` comes right behind `outer` wherever either of them is. */
bool AreAdjacent(const Tensors& tensors, int outer, int inner) {
  for (const Labels& labels : tensors) {
    const auto at = std::find(labels.begin(), labels.end(), outer);
    const bool has_outer = at != labels.end();
    if (has_outer != Has(labels, inner)) return false;
    if (has_outer && (at + 1 == labels.end() || *(at + 1) != inner)) return false;
  }
  return true;
}

Form FormOf(const Contraction& contraction, const ir::TensorType& result) {
  // Dimensions of size 1 have no stride.
  Tensors tensors;
  std::map<int, int64_t> sizes;
  const std::array<const Labels*, 3> all = {&contraction.labels[0], &contraction.labels[1],
                                            &contraction.result};
  for (size_t i = 0; i < all.size(); ++i) {
    const auto& shape =
        ir::ShapeOf(i < 2 ? ir::TensorType::Cast(contraction.operands[i].ty()) : result);
    for (size_t d = 0; d < all[i]->size(); ++d) {
      const int64_t size = ir::StaticDim(shape[d]);
      if (size == 1) continue;
      const int label = (*all[i])[d];
      tensors[i].push_back(label);
      int64_t& known = sizes.emplace(label, size).first->second;
      known = std::max(known, size);
    }
  }
  Form form;
  std::map<int, int> axis_of;
  // Joined with the axis of the label in front of it, in the first tensor that has it.
  for (size_t i = 0; i < tensors.size(); ++i) {
    for (size_t d = 0; d < tensors[i].size(); ++d) {
      const int label = tensors[i][d];
      if (axis_of.count(label) != 0) continue;
      if (d > 0 && AreAdjacent(tensors, tensors[i][d - 1], label)) {
        axis_of[label] = axis_of[tensors[i][d - 1]];
        Axis& axis = form.axes[axis_of[label]];
        axis.size = Times(axis.size, sizes[label]);
        continue;
      }
      axis_of[label] = static_cast<int>(form.axes.size());
      form.axes.push_back({RoleOf(tensors, label), sizes[label]});
    }
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    for (int label : tensors[i]) {
      std::vector<int>& axes = form.of_tensor[i];
      if (axes.empty() || axes.back() != axis_of[label]) axes.push_back(axis_of[label]);
    }
  }
  return form;
}

}  // namespace

const char* LacksMatrixForm(const Contraction& contraction, const ir::TensorType& result) {
  const Form form = FormOf(contraction, result);
  std::map<Role, int> count;
  for (const Axis& axis : form.axes) ++count[axis.role];
  if (count[Role::kSum] > 0 || count[Role::kContracted] > 1) return "sums over several strides";

  std::map<Role, std::set<int>> chosen;
  for (size_t i = 0; i < form.of_tensor.size(); ++i) {
    if (form.of_tensor[i].empty()) continue;
    const int innermost = form.of_tensor[i].back();
    const Role role = form.axes[innermost].role;
    if (role == Role::kBatch) return "a batch dimension is innermost";
    chosen[role].insert(innermost);
  }
  std::vector<int64_t> batches;
  for (const Role role : {Role::kRows, Role::kColumns}) {
    if (chosen[role].size() > 1) return "matrices with no innermost dimension";
    // The largest axis makes the rows if nothing says which one, as the runtime chooses.
    int own = chosen[role].empty() ? -1 : *chosen[role].begin();
    for (size_t a = 0; own < 0 && a < form.axes.size(); ++a) {
      if (form.axes[a].role == role) own = static_cast<int>(a);
    }
    for (size_t a = 0; a < form.axes.size(); ++a) {
      if (form.axes[a].role == role && static_cast<int>(a) != own)
        batches.push_back(form.axes[a].size);
    }
  }
  for (const Axis& axis : form.axes) {
    if (axis.role == Role::kBatch) batches.push_back(axis.size);
  }
  // One batch dimension is part of the call, the largest.
  std::sort(batches.begin(), batches.end(),
            [](int64_t a, int64_t b) { return a >= 0 && (b < 0 || a < b); });
  int64_t calls = 1;
  for (size_t i = 0; i + 1 < batches.size(); ++i) calls = Times(calls, batches[i]);
  if (calls < 0 || calls > kMostCalls) return "too many batches of several strides";
  return nullptr;
}

}  // namespace distir::target
