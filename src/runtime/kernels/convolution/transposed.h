/*!
 * \file runtime/kernels/convolution/transposed.h
 * \brief Transposed convolutions: products of the weight with the data, each added to the elements
 *        of the result that its window looks at.
 */
#ifndef DISTIR_RUNTIME_KERNELS_CONVOLUTION_TRANSPOSED_H_
#define DISTIR_RUNTIME_KERNELS_CONVOLUTION_TRANSPOSED_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "runtime/kernels/blas.h"
#include "runtime/kernels/convolution/formats.h"
#include "runtime/kernels/convolution/patches.h"
#include "runtime/kernels/convolution/rows.h"
#include "runtime/kernels/convolution/sizes.h"
#include "runtime/kernels/convolution/weight_matrix.h"
#include "runtime/kernels/parallel.h"

namespace distir::runtime {

/*! \brief The convolution that a transposed one of stride 1 is, with its kernel reversed. */
inline std::optional<Convolution> AsForward(Convolution sizes) {
  for (Window& window : sizes.windows) {
    if (window.stride != 1) return std::nullopt;
    window.before = (window.kernel - 1) * window.dilation - window.before;
  }
  sizes.is_transposed = false;
  return sizes;
}

template <typename In, typename Out>
class Transposed {
 public:
  using T = typename In::Accumulator;
  using Stored = typename In::Stored;

  Transposed(const Convolution& sizes, const Stored* data, const Stored* weight,
             typename Out::Stored* out)
      : sizes_(sizes), data_(data), out_(out), weight_(Swapped(sizes), weight, {}) {
    // The result, or a part of it as one channel after the other.
    inner_out_ = sizes.windows[0].out * sizes.windows[1].out * sizes.windows[2].out;
    strides_ = {sizes.windows[1].out * sizes.windows[2].out, sizes.windows[2].out, 1};
    channel_stride_ = inner_out_;
    if constexpr (kWritesAsComputed<In, Out>) {
      for (int d = 0; d < 3; ++d) strides_[d] = sizes.windows[d].strides[kOut];
      channel_stride_ = sizes.out.strides[kOut];
    }
    if constexpr (kReadsAsStored<In>) {
      const auto stride = JoinedStride({Axis(0), Axis(1), Axis(2)});
      if (stride.has_value() &&
          (*stride == 1 || sizes.in.strides[kData] == 1 || sizes.in.extent == 1))
        data_stride_ = stride;
    }
  }

  void Run() const {
    RunInParts(sizes_.Operations(), [this](int64_t part, int64_t parts) { RunPart(part, parts); });
  }

 private:
  static constexpr int64_t kBlock = int64_t{1} << 17;  // elements of a block of products
  static constexpr int64_t kMostRows = 1024;
  static constexpr int64_t kLeastWindows = 64;

  /*! \brief Rows are input channels, elements those of the kernel over output channels. */
  static Convolution Swapped(Convolution sizes) {
    std::swap(sizes.in, sizes.out);
    return sizes;
  }

  std::array<int64_t, 2> Axis(int dim) const {
    return {sizes_.windows[dim].data, sizes_.windows[dim].strides[kData]};
  }

  void RunPart(int64_t part, int64_t parts) const {
    const int64_t kernel = sizes_.KernelSize(), channels = sizes_.out.extent;
    const int64_t images = sizes_.batch.extent * sizes_.group.extent;
    int64_t pieces =
        std::max((parts + images - 1) / images, (channels * kernel + kMostRows - 1) / kMostRows);
    pieces = std::min(pieces, channels);
    const int64_t rows = (channels + pieces - 1) / pieces * kernel;
    const int64_t windows = sizes_.NumWindows();
    const int64_t block = std::min(windows, std::max(kBlock / rows, kLeastWindows));
    std::unique_ptr<T[]> products(new T[rows * block]), copy, sum;
    if (!data_stride_.has_value()) copy.reset(new T[sizes_.in.extent * windows]);
    if (!kWritesAsComputed<In, Out>) sum.reset(new T[rows / kernel * inner_out_]);
    const int64_t units = images * pieces;
    for (int64_t unit = units * part / parts; unit < units * (part + 1) / parts; ++unit) {
      const int64_t image = unit / pieces / sizes_.group.extent;
      const int64_t group = unit / pieces % sizes_.group.extent;
      const int64_t first = channels * (unit % pieces) / pieces;
      const int64_t last = channels * (unit % pieces + 1) / pieces;
      if (first == last) continue;
      RunPiece(image, group, first, last, block, products.get(), copy.get(), sum.get());
    }
  }

  void RunPiece(int64_t image, int64_t group, int64_t first, int64_t last, int64_t block,
                T* products, T* copy, T* sum) const {
    const int64_t windows = sizes_.NumWindows(), kernel = sizes_.KernelSize();
    const Stored* data =
        data_ + image * sizes_.batch.strides[kData] + group * sizes_.group.strides[kData];
    typename Out::Stored* out = out_ + image * sizes_.batch.strides[kOut] +
                                group * sizes_.group.strides[kOut] +
                                first * sizes_.out.strides[kOut];
    T* to = sum;
    if constexpr (kWritesAsComputed<In, Out>) to = out;
    ForEachOutRow(last - first, [&](int64_t channel, const std::array<int64_t, 2>& at) {
      T* row = to + channel * channel_stride_ + at[0] * strides_[0] + at[1] * strides_[1];
      for (int64_t i = 0; i < sizes_.windows[2].out; ++i) row[i * strides_[2]] = T(0);
    });
    MatrixProduct product{(last - first) * kernel,
                          0,
                          sizes_.in.extent,
                          weight_.element_stride(),
                          weight_.out_stride(),
                          0,
                          0,
                          0,
                          1};
    const T* from = copy;
    product.b_k = windows;
    product.b_n = 1;
    if (copy != nullptr) {
      CopyData(data, copy);
    } else if constexpr (kReadsAsStored<In>) {
      from = data;
      product.b_k = sizes_.in.strides[kData];
      product.b_n = *data_stride_;
    }
    for (int64_t begin = 0; begin < windows; begin += block) {
      const int64_t end = std::min(windows, begin + block);
      product.n = product.c_m = end - begin;
      MultiplyMatrices<T>(product, weight_.Of(group) + first * kernel * weight_.element_stride(),
                          from + begin * product.b_n, products, false);
      AddProductsTo(last - first, begin, end, products, to);
    }
    if constexpr (!kWritesAsComputed<In, Out>) {
      ForEachOutRow(last - first, [&](int64_t channel, const std::array<int64_t, 2>& at) {
        const T* row = sum + channel * channel_stride_ + at[0] * strides_[0] + at[1] * strides_[1];
        typename Out::Stored* stored = out + channel * sizes_.out.strides[kOut] +
                                       at[0] * sizes_.windows[0].strides[kOut] +
                                       at[1] * sizes_.windows[1].strides[kOut];
        for (int64_t i = 0; i < sizes_.windows[2].out; ++i)
          stored[i * sizes_.windows[2].strides[kOut]] = Out::Store(row[i]);
      });
    }
  }

  template <typename Visit>
  void ForEachOutRow(int64_t channels, const Visit& visit) const {
    for (int64_t channel = 0; channel < channels; ++channel) {
      for (int64_t a = 0; a < sizes_.windows[0].out; ++a) {
        for (int64_t b = 0; b < sizes_.windows[1].out; ++b) visit(channel, {a, b});
      }
    }
  }

  /*! \brief One input channel after the other. */
  void CopyData(const Stored* data, T* to) const {
    const auto& windows = sizes_.windows;
    for (int64_t channel = 0; channel < sizes_.in.extent; ++channel) {
      for (int64_t a = 0; a < windows[0].data; ++a) {
        for (int64_t b = 0; b < windows[1].data; ++b, to += windows[2].data) {
          LoadRun<In>(data + channel * sizes_.in.strides[kData] + a * windows[0].strides[kData] +
                          b * windows[1].strides[kData],
                      windows[2].strides[kData], windows[2].data, to);
        }
      }
    }
  }

  void AddProductsTo(int64_t channels, int64_t begin, int64_t end, const T* products, T* to) const {
    const auto& windows = sizes_.windows;
    for (int64_t channel = 0; channel < channels; ++channel, to += channel_stride_) {
      for (int64_t a = 0; a < windows[0].kernel; ++a) {
        for (int64_t b = 0; b < windows[1].kernel; ++b) {
          for (int64_t c = 0; c < windows[2].kernel; ++c) {
            AddElement({a, b, c}, begin, end, products, to);
            products += end - begin;
          }
        }
      }
    }
  }

  /*! \brief The products of one element of the kernel with a block of windows. */
  void AddElement(const std::array<int64_t, 3>& in_kernel, int64_t begin, int64_t end,
                  const T* products, T* to) const {
    const auto& windows = sizes_.windows;
    for (int64_t at = begin; at < end;) {
      const int64_t inner = at % windows[2].data, rest = at / windows[2].data;
      const int64_t count = std::min(windows[2].data - inner, end - at);
      const std::array<int64_t, 2> outer = {rest / windows[1].data, rest % windows[1].data};
      T* row = to;
      bool is_inside = true;
      for (int d = 0; d < 2; ++d) {
        const int64_t place = outer[d] * windows[d].stride + windows[d].OffsetOf(in_kernel[d]);
        is_inside = is_inside && place >= 0 && place < windows[d].out;
        row += place * strides_[d];
      }
      const int64_t place = inner * windows[2].stride + windows[2].OffsetOf(in_kernel[2]);
      const InnerRange range(place, windows[2].stride, count, windows[2].out);
      if (is_inside && range.end > range.begin) {
        AddTo(range.end - range.begin, products + range.begin, windows[2].stride * strides_[2],
              row + (place + range.begin * windows[2].stride) * strides_[2]);
      }
      products += count;
      at += count;
    }
  }

  const Convolution& sizes_;
  const Stored* data_;
  typename Out::Stored* out_;
  const WeightMatrix<In> weight_;
  std::optional<int64_t> data_stride_;  // none: the data is copied
  int64_t inner_out_;                   // elements of a channel of an image
  std::array<int64_t, 3> strides_;      // of what is added to
  int64_t channel_stride_;
};

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_KERNELS_CONVOLUTION_TRANSPOSED_H_
