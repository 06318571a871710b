/*!
 * \file mesh/relate.cc
 * \brief Recognises one mesh as a view of another.
 *
 * Positions in the root are numbers in a mixed radix, one digit per axis. A view of the root is
 * given by a table: root position of every view position. The table is a view exactly if every view
 * axis counts through some digits of the root, that is, adds 0, t, 2t, ... for some stride t, then
 * the next digit, and if the contributions of the view axes add up.
 */
#include <algorithm>

#include "mesh/sharding.h"

namespace distir::mesh {

namespace {

/*! \brief Root position of every view position; nullopt unless the devices are the same. */
std::optional<std::vector<int64_t>> PositionsInRoot(const Mesh& view, const Mesh& root) {
  const int64_t size = root.size();
  std::vector<int64_t> table(size);
  if (view.device_ids == root.device_ids) {
    for (int64_t i = 0; i < size; ++i) table[i] = i;
    return table;
  }
  std::vector<std::pair<int64_t, int64_t>> by_id(size);
  for (int64_t i = 0; i < size; ++i) by_id[i] = {root.device_ids[i], i};
  std::sort(by_id.begin(), by_id.end());
  for (int64_t i = 0; i < size; ++i) {
    const std::pair<int64_t, int64_t> key(view.device_ids[i], 0);
    auto it = std::lower_bound(by_id.begin(), by_id.end(), key);
    if (it == by_id.end() || it->first != key.first) return std::nullopt;
    table[i] = it->second;
  }
  return table;
}

/*!
 * \brief Appends, minor to major, the references for a digit that counts in steps of `stride` root
 * positions up to `size`; false if it does not begin and end at divisors of the axes.
 */
bool AppendDigit(const Mesh& root, int64_t stride, int64_t size, AxisList* refs) {
  int64_t axis_stride = 1;
  for (int axis = root.ndim() - 1; axis >= 0 && size > 1; --axis) {
    const int64_t extent = root.shape[axis];
    if (stride < axis_stride * extent) {
      if (stride % axis_stride != 0 || extent % (stride / axis_stride) != 0) return false;
      const int64_t room = extent / (stride / axis_stride);
      const int64_t take = std::min(room, size);
      if (room % take != 0 || size % take != 0) return false;
      refs->push_back(AxisRef{axis, room / take, take});
      stride *= take;
      size /= take;
    }
    axis_stride *= extent;
  }
  return size == 1;
}

/*!
 * \brief The references of one view axis, whose coordinate c stands at root position
 * table[c * step].
 */
std::optional<AxisList> RelateAxis(const Mesh& root, const std::vector<int64_t>& table,
                                   int64_t extent, int64_t step) {
  AxisList refs;  // minor to major
  for (int64_t begin = 1; begin < extent;) {
    // Coordinates below `begin` are explained; the next digit counts in units of `begin`.
    const int64_t stride = table[begin * step];
    int64_t size = 2;
    while (size * begin < extent && table[size * begin * step] == size * stride) ++size;
    if (extent % (size * begin) != 0 || !AppendDigit(root, stride, size, &refs)) {
      return std::nullopt;
    }
    for (int64_t c = begin; c < size * begin; ++c) {
      if (table[c * step] != c / begin * stride + table[c % begin * step]) return std::nullopt;
    }
    begin *= size;
  }
  std::reverse(refs.begin(), refs.end());
  return Canonical(refs);
}

}  // namespace

std::optional<std::vector<AxisList>> Relate(const Mesh& view, const Mesh& root) {
  std::vector<AxisList> related;
  related.reserve(view.shape.size());
  if (view == root) {
    for (int axis = 0; axis < root.ndim(); ++axis) {
      related.push_back(Canonical(AxisList{FullAxis(root, axis)}));
    }
    return related;
  }
  const int64_t size = root.size();
  if (view.size() != size) return std::nullopt;
  const auto table = PositionsInRoot(view, root);
  if (!table || table->front() != 0) return std::nullopt;

  int64_t step = size;
  for (int64_t extent : view.shape) {
    const int64_t outer = step;
    step /= extent;
    auto refs = RelateAxis(root, *table, extent, step);
    if (!refs) return std::nullopt;
    // Contributions add up: this axis' and those of the axes after it.
    for (int64_t position = step; position < outer; ++position) {
      const int64_t inner = position % step;
      if ((*table)[position] != (*table)[position - inner] + (*table)[inner]) return std::nullopt;
    }
    related.push_back(std::move(*refs));
  }
  return related;
}

}  // namespace distir::mesh
