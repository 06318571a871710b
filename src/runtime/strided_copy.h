/*!
 * \file runtime/strided_copy.h
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
#ifndef DISTIR_RUNTIME_STRIDED_COPY_H_
#define DISTIR_RUNTIME_STRIDED_COPY_H_

#include <tvm/ffi/container/tensor.h>

#include <cstdint>
#include <vector>

namespace distir::runtime {

/*! \brief Bytes of one element. \throws TypeError for types that do not fill whole bytes. */
int64_t ElementBytes(DLDataType dtype);

/*! \brief Product of the extents; 1 for a scalar. */
int64_t NumElements(const std::vector<int64_t>& extents);

/*! \brief The shape of a tensor as a vector. */
std::vector<int64_t> ShapeOf(const tvm::ffi::TensorView& tensor);

/*! \brief Byte strides of a row-major tensor of this shape. */
std::vector<int64_t> RowMajorStrides(const std::vector<int64_t>& shape, int64_t element_bytes);

/*! \brief Address of the first element, with the tensor's byte offset applied. */
char* DataOf(const tvm::ffi::TensorView& tensor);

/*! \brief A copy of one box between two layouts, to be run on any pair of addresses. */
class BoxCopy {
 public:
  /*!
   * \param extents Elements per dimension; empty for a scalar, zeros allowed.
   * \param source_strides Byte stride of each dimension of the source; any sign, zero repeats.
   * \param target_strides Byte stride of each dimension of the target.
   * \param element_bytes Bytes of one element.
   */
  BoxCopy(const std::vector<int64_t>& extents, const std::vector<int64_t>& source_strides,
          const std::vector<int64_t>& target_strides, int64_t element_bytes);

  /*! \brief Copies; the two boxes must not overlap. */
  void Run(const void* source, void* target) const noexcept;

 private:
  struct Dim {
    int64_t extent;
    int64_t source_stride;
    int64_t target_stride;
  };
  void RunDim(size_t dim, const char* source, char* target) const noexcept;

  std::vector<Dim> dims_;  // outer to inner, without the contiguous tail
  int64_t run_bytes_;      // bytes of the contiguous tail; 0 if the box is empty
};

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_STRIDED_COPY_H_
