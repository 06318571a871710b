/*!
 * \file runtime/kernels/strided_copy.h
 * \brief Copies of boxes of elements between strided layouts in host memory.
 *
 * A collective on shards moves boxes: the block of `x` that another worker needs, the place in
 * `out` where a received block goes. Everything about such a copy except the two addresses is
 * known before a worker meets its peers, so a BoxCopy is made first and run later; running it
 * allocates nothing and never throws, which lets it run while peers rely on this worker.
 *
 * Example: columns 2 and 3 of a row-major float32 matrix of 3 x 4, packed:
 * \code
 *   BoxCopy copy({3, 2}, {16, 4}, {8, 4}, 4);  // extents; byte strides of source and target
 *   copy.Run(matrix + 2, packed);              // inner dim is contiguous: 3 copies of 8 bytes
 * \endcode
 */
#ifndef DISTIR_RUNTIME_KERNELS_STRIDED_COPY_H_
#define DISTIR_RUNTIME_KERNELS_STRIDED_COPY_H_

#include <tvm/ffi/container/tensor.h>

#include <cstdint>
#include <vector>

namespace distir::runtime {

/*! \brief Bytes of one element. \throws TypeError for types that do not fill whole bytes. */
int64_t ElementBytes(DLDataType dtype);

/*! \brief Product of the extents; 1 for a scalar. */
int64_t NumElements(const std::vector<int64_t>& extents);

/*!
 * \brief Bytes of a tensor whose shape somebody else has stated.
 * \throws ValueError for negative sizes, and for more bytes than addresses count.
 */
int64_t CheckedBytes(tvm::ffi::ShapeView shape, DLDataType dtype);

/*! \brief The shape of a tensor as a vector. */
std::vector<int64_t> ShapeOf(const tvm::ffi::TensorView& tensor);

/*! \brief Byte strides of a row-major tensor of this shape. */
std::vector<int64_t> RowMajorStrides(const std::vector<int64_t>& shape, int64_t element_bytes);

/*! \brief Address of the first element, with the tensor's byte offset applied. */
char* DataOf(const tvm::ffi::TensorView& tensor);

/*! \brief Rows of equal length, at equal distances: a part of a box. */
struct MemoryPlane {
  const char* source;
  int64_t source_pitch;  // bytes from one row to the next
  char* target;
  int64_t target_pitch;
  int64_t row_bytes;
  int64_t rows;
};

/*! \brief A copy of one box between two layouts, to be run on any pair of addresses. */
class BoxCopy {
 public:
  /*!
   * \param extents Elements per dimension; empty for a scalar, zeros allowed.
   * \param source_strides Byte stride of each dimension of the source; any sign, zero repeats.
   * \param target_strides Byte stride of each dimension of the target.
   * \param element_bytes Bytes of one element.
   * \param result_bytes Bytes that are written before they are read, if that is more than this box.
   */
  BoxCopy(const std::vector<int64_t>& extents, const std::vector<int64_t>& source_strides,
          const std::vector<int64_t>& target_strides, int64_t element_bytes,
          int64_t result_bytes = 0);

  /*! \brief Copies; the two boxes must not overlap. */
  void Run(const void* source, void* target) const noexcept;

  /*! \brief Calls `visit(MemoryPlane)` for each of the planes that make up the box, in order. */
  template <typename Visit>
  void ForEachPlane(const char* source, char* target, const Visit& visit) const {
    if (run_bytes_ != 0) VisitPlanes(0, source, target, visit);
  }

  /*! \brief True if the box is one run of bytes in both layouts. */
  bool contiguous() const { return dims_.empty(); }

 private:
  struct Dim {
    int64_t extent;
    int64_t source_stride;
    int64_t target_stride;
  };
  void RunDim(size_t dim, const char* source, char* target) const noexcept;
  template <typename Visit>
  void VisitPlanes(size_t dim, const char* source, char* target, const Visit& visit) const {
    if (dims_.empty()) {
      visit(MemoryPlane{source, run_bytes_, target, run_bytes_, run_bytes_, 1});
      return;
    }
    const Dim& d = dims_[dim];
    if (dim + 1 == dims_.size()) {
      visit(MemoryPlane{source, d.source_stride, target, d.target_stride, run_bytes_, d.extent});
      return;
    }
    for (int64_t i = 0; i < d.extent; ++i)
      VisitPlanes(dim + 1, source + i * d.source_stride, target + i * d.target_stride, visit);
  }

  std::vector<Dim> dims_;  // outer to inner, without the contiguous tail
  int64_t run_bytes_;      // bytes of the contiguous tail; 0 if the box is empty
  bool streams_ = false;   // whether the box is so large that it is written past the caches
};

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_KERNELS_STRIDED_COPY_H_
