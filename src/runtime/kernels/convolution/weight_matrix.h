/*!
 * \file runtime/kernels/convolution/weight_matrix.h
 * \brief Packs the weight of a convolution as one matrix per group: output channels by elements of
 * the kernel over input channels.
 */
#ifndef DISTIR_RUNTIME_KERNELS_CONVOLUTION_WEIGHT_MATRIX_H_
#define DISTIR_RUNTIME_KERNELS_CONVOLUTION_WEIGHT_MATRIX_H_

#include <cstdint>
#include <memory>

#include "runtime/kernels/convolution/formats.h"
#include "runtime/kernels/convolution/sizes.h"
#include "runtime/kernels/parallel.h"

namespace distir::runtime {

/*! \brief The order in which the elements of a kernel are numbered. */
struct ElementOrder {
  bool channels_inside = false;
  bool is_reversed = false;  // positions count from the last one
};

template <typename Format>
class WeightMatrix {
 public:
  using T = typename Format::Accumulator;

  /*! \brief Copies the weight where it is no such matrix as it lies. */
  WeightMatrix(const Convolution& sizes, const typename Format::Stored* weight,
               const ElementOrder& order)
      : group_(sizes.group.strides[kWeight]), out_(sizes.out.strides[kWeight]) {
    if constexpr (kReadsAsStored<Format>) {
      const auto stride = StrideOf(sizes, order.channels_inside);
      if (!order.is_reversed && stride.has_value() && (*stride == 1 || out_ == 1)) {
        data_ = weight;
        element_ = *stride;
        return;
      }
    }
    const int64_t elements = sizes.in.extent * sizes.KernelSize();
    const int64_t rows = sizes.group.extent * sizes.out.extent;
    copy_.reset(new T[rows * elements]);
    RunInParts(static_cast<double>(rows * elements), [&](int64_t part, int64_t parts) {
      for (int64_t row = rows * part / parts; row < rows * (part + 1) / parts; ++row) {
        CopyRow(sizes, order,
                weight + row / sizes.out.extent * sizes.group.strides[kWeight] +
                    row % sizes.out.extent * sizes.out.strides[kWeight],
                copy_.get() + row * elements);
      }
    });
    data_ = copy_.get();
    element_ = 1;
    out_ = elements;
    group_ = elements * sizes.out.extent;
  }

  const T* Of(int64_t group) const { return data_ + group * group_; }
  int64_t out_stride() const { return out_; }
  int64_t element_stride() const { return element_; }

  /*! \brief The distance of elements in this order as the weight lies, if there is one. */
  static std::optional<int64_t> StrideOf(const Convolution& sizes, bool channels_inside) {
    const std::array<int64_t, 2> in = {sizes.in.extent, sizes.in.strides[kWeight]}, one = {1, 1};
    const auto of = [&sizes](int d) {
      const Window& window = sizes.windows[d];
      return std::array<int64_t, 2>{window.kernel, window.strides[kWeight]};
    };
    return JoinedStride(
        {channels_inside ? one : in, of(0), of(1), of(2), channels_inside ? in : one});
  }

 private:
  static void CopyRow(const Convolution& sizes, const ElementOrder& order,
                      const typename Format::Stored* from, T* to) {
    const int64_t channels = sizes.in.extent, positions = sizes.KernelSize();
    for (int64_t position = 0; position < positions; ++position) {
      int64_t rest = order.is_reversed ? positions - 1 - position : position, offset = 0;
      for (int d = 2; d >= 0; --d) {
        offset += rest % sizes.windows[d].kernel * sizes.windows[d].strides[kWeight];
        rest /= sizes.windows[d].kernel;
      }
      for (int64_t channel = 0; channel < channels; ++channel) {
        const int64_t element =
            order.channels_inside ? position * channels + channel : channel * positions + position;
        to[element] = Format::Load(from[offset + channel * sizes.in.strides[kWeight]]);
      }
    }
  }

  std::unique_ptr<T[]> copy_;
  const T* data_;
  int64_t group_, out_, element_;
};

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_KERNELS_CONVOLUTION_WEIGHT_MATRIX_H_
