/*!
 * \file runtime/kernels/convolution/sizes.h
 * \brief Describes a convolution as loops over sizes and strides, for tensors in any layout.
 *
 *     out[n, g, o, p] = sum over c, k of data[n, g, c, p * stride + k * dilation - before]
 *                                        * weight[g, o, c, k]
 *
 * A transposed one adds data[n, g, c, p] * weight[g, c, o, k] to
 * out[n, g, o, p * stride + k * dilation - before].
 */
#ifndef DISTIR_RUNTIME_KERNELS_CONVOLUTION_SIZES_H_
#define DISTIR_RUNTIME_KERNELS_CONVOLUTION_SIZES_H_

#include <tvm/ffi/container/tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>

namespace distir::runtime {

/*! \brief The tensors, as indices of strides. */
enum ConvolutionTensor { kData, kWeight, kOut };

/*! \brief An axis with its extent and the elements between neighbours, by ConvolutionTensor; 0
 * where a tensor lacks it. */
struct ConvolutionAxis {
  int64_t extent = 1;
  std::array<int64_t, 3> strides = {0, 0, 0};
};

/*! \brief A spatial dimension. */
struct Window {
  int64_t data = 1, out = 1, kernel = 1;
  int64_t stride = 1, dilation = 1, before = 0;
  std::array<int64_t, 3> strides = {0, 0, 0};

  /*! \brief The element of the data that one of the kernel is multiplied by in the first window. */
  int64_t OffsetOf(int64_t in_kernel) const { return in_kernel * dilation - before; }
};

struct Convolution {
  ConvolutionAxis batch, group, in, out;  // channels in and out are those of one group
  std::array<Window, 3> windows;          // outer ones first; the first of fewer are of size 1
  bool is_transposed = false;

  int64_t KernelSize() const;
  /*! \brief Windows of one image, or with is_transposed the elements of its data. */
  int64_t NumWindows() const;
  double Operations() const;
};

/*!
 * \brief Reads a text such as "NCHW,OIHW->NCHW strides=2,2 padding=3,3,3,3 dilation=1,1 groups=1",
 *        with "transposed" behind it for a transposed one. Padding is that before each spatial
 *        dimension, then that behind each.
 * \throws ValueError for a text or shapes that are none of a convolution.
 */
Convolution ReadConvolution(const std::string& text,
                            const std::array<tvm::ffi::TensorView, 3>& tensors);

/*! \brief The distance of neighbours if axes, outer ones first, are one in a tensor: those of
 * extent 1 do not count. */
std::optional<int64_t> JoinedStride(std::initializer_list<std::array<int64_t, 2>> axes);

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_KERNELS_CONVOLUTION_SIZES_H_
