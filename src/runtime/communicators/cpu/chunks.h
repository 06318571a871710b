/*!
 * \file runtime/communicators/cpu/chunks.h
 * \brief Splits a box into chunks of bounded size that are contiguous in its row-major layout.
 *
 * Example: a box of 3 x 8 with at most 4 elements has six chunks of 1 x 4.
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_CPU_CHUNKS_H_
#define DISTIR_RUNTIME_COMMUNICATORS_CPU_CHUNKS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

namespace distir::runtime::cpu {

struct Chunk {
  std::vector<int64_t> begin;
  std::vector<int64_t> extent;

  /*! \brief Offset of the chunk in a layout with these strides. */
  int64_t Offset(const std::vector<int64_t>& strides) const {
    int64_t offset = 0;
    for (size_t i = 0; i < begin.size(); ++i) offset += begin[i] * strides[i];
    return offset;
  }
};

/*! \brief Visits the chunks in row-major order; an empty box is one empty chunk. */
template <typename Visit>
void ForEachChunk(const std::vector<int64_t>& extent, int64_t max_elements, Visit visit) {
  // Dimensions behind `dim` are whole in every chunk, those before it have one index.
  size_t dim = extent.size();
  int64_t inner = 1;
  while (dim > 0 && inner * extent[dim - 1] <= max_elements) inner *= extent[--dim];
  Chunk chunk{std::vector<int64_t>(extent.size(), 0), extent};
  const bool empty = std::find(extent.begin(), extent.end(), 0) != extent.end();
  if (dim == 0 || empty) {
    visit(chunk);
    return;
  }
  --dim;
  const int64_t length = std::max<int64_t>(1, max_elements / inner);
  for (size_t i = 0; i < dim; ++i) chunk.extent[i] = 1;
  while (true) {
    for (int64_t at = 0; at < extent[dim]; at += length) {
      chunk.begin[dim] = at;
      chunk.extent[dim] = std::min(length, extent[dim] - at);
      visit(chunk);
    }
    size_t outer = dim;
    while (outer > 0 && ++chunk.begin[outer - 1] == extent[outer - 1]) chunk.begin[--outer] = 0;
    if (outer == 0) return;
  }
}

}  // namespace distir::runtime::cpu

#endif  // DISTIR_RUNTIME_COMMUNICATORS_CPU_CHUNKS_H_
