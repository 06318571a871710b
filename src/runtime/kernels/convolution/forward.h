/*!
 * \file runtime/kernels/convolution/forward.h
 * \brief Convolutions as products of the weight with blocks of patches.
 */
#ifndef DISTIR_RUNTIME_KERNELS_CONVOLUTION_FORWARD_H_
#define DISTIR_RUNTIME_KERNELS_CONVOLUTION_FORWARD_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>

#include "runtime/kernels/blas.h"
#include "runtime/kernels/convolution/formats.h"
#include "runtime/kernels/convolution/patches.h"
#include "runtime/kernels/convolution/sizes.h"
#include "runtime/kernels/convolution/weight_matrix.h"
#include "runtime/kernels/parallel.h"

namespace distir::runtime {

template <typename In, typename Out>
class Forward {
 public:
  using T = typename In::Accumulator;

  Forward(const Convolution& sizes, const typename In::Stored* data,
          const typename In::Stored* weight, typename Out::Stored* out, bool is_reversed)
      : sizes_(sizes),
        data_(data),
        out_(out),
        order_{HasChannelsInside(sizes, is_reversed), is_reversed},
        weight_(sizes, weight, order_),
        patches_(sizes, data, order_.channels_inside) {
    const int64_t windows = sizes.NumWindows();
    out_stride_ = JoinedStride({{sizes.batch.extent, sizes.batch.strides[kOut]},
                                Axis(0, kOut),
                                Axis(1, kOut),
                                Axis(2, kOut)});
    run_ = sizes.batch.extent * windows;
    if (!out_stride_.has_value() && windows >= kFewWindows) {
      out_stride_ = JoinedStride({Axis(0, kOut), Axis(1, kOut), Axis(2, kOut)});
      run_ = windows;
    }
    if (!kWritesAsComputed<In, Out> || (out_stride_.has_value() && *out_stride_ != 1 &&
                                        sizes.out.strides[kOut] != 1 && sizes.out.extent != 1))
      out_stride_ = std::nullopt;
    if constexpr (kReadsAsStored<In>) FindMatrixOfData();
  }

  void Run() const {
    RunInParts(sizes_.Operations(), [this](int64_t part, int64_t parts) { RunPart(part, parts); });
  }

 private:
  // Elements of a block of patches. Larger ones leave the caches, smaller ones have BLAS pack the
  // weight more often.
  static constexpr int64_t kBlock = int64_t{1} << 19;
  static constexpr int64_t kMostElements = 4096;  // of a kernel in one product
  static constexpr int64_t kLeastWindows = 64, kMostWindows = 2048;
  static constexpr int64_t kMultiple = 16;  // of windows, which kernels of BLAS compute at a time
  // Images of fewer windows are computed together, and their results copied to their places.
  static constexpr int64_t kFewWindows = 96;

  std::array<int64_t, 2> Axis(int dim, ConvolutionTensor tensor) const {
    return {sizes_.windows[dim].out, sizes_.windows[dim].strides[tensor]};
  }

  static bool HasChannelsInside(const Convolution& sizes, bool is_reversed) {
    constexpr int64_t kFewChannels = 8;
    if (sizes.in.strides[kData] == 1 && sizes.in.extent >= kFewChannels) return true;
    if (is_reversed || WeightMatrix<In>::StrideOf(sizes, false).has_value()) return false;
    return sizes.windows[2].out >= sizes.windows[2].kernel &&
           WeightMatrix<In>::StrideOf(sizes, true).has_value();
  }

  /*! \brief Data of windows of one element, next to each other, is its own matrix of patches. */
  void FindMatrixOfData() {
    for (const Window& window : sizes_.windows) {
      if (window.kernel != 1 || window.stride != 1 || window.before != 0 ||
          window.data != window.out)
        return;
    }
    const bool all = run_ != sizes_.NumWindows();
    const auto stride = JoinedStride({{all ? sizes_.batch.extent : 1, sizes_.batch.strides[kData]},
                                      Axis(0, kData),
                                      Axis(1, kData),
                                      Axis(2, kData)});
    const bool is_matrix = stride.has_value() &&
                           (*stride == 1 || sizes_.in.strides[kData] == 1 || sizes_.in.extent == 1);
    if (is_matrix) data_stride_ = stride;
  }

  void RunPart(int64_t part, int64_t parts) const {
    const int64_t elements = sizes_.in.extent * sizes_.KernelSize();
    int64_t most = kMostElements;
    if (kExactTerms<In> != 0) most = kExactTerms<In>;
    const int64_t of_product = std::min(elements, most);
    const int64_t groups = sizes_.group.extent;
    const int64_t runs = sizes_.batch.extent * sizes_.NumWindows() / run_;
    // Enough blocks for all parts.
    const int64_t share = (groups * runs * run_ + parts - 1) / parts;
    int64_t block = std::clamp(kBlock / of_product, kLeastWindows, kMostWindows);
    block = std::min(block, share);
    block = (block + kMultiple - 1) / kMultiple * kMultiple;
    const int64_t blocks = (run_ + block - 1) / block;
    std::unique_ptr<T[]> patches, product;
    if (!data_stride_.has_value()) patches.reset(new T[of_product * block]);
    if (!out_stride_.has_value()) product.reset(new T[sizes_.out.extent * block]);
    const int64_t units = groups * runs * blocks;
    for (int64_t unit = units * part / parts; unit < units * (part + 1) / parts; ++unit) {
      const int64_t group = unit / (runs * blocks);
      const int64_t run = unit / blocks % runs, begin = unit % blocks * block;
      const int64_t end = std::min(run_, begin + block);
      RunBlock(group, run * run_ + begin, run * run_ + end, of_product, patches.get(),
               product.get());
    }
  }

  void RunBlock(int64_t group, int64_t begin, int64_t end, int64_t of_product, T* patches,
                T* product) const {
    const int64_t elements = sizes_.in.extent * sizes_.KernelSize();
    const int64_t windows = end - begin;
    MatrixProduct sizes{
        sizes_.out.extent, windows, 0, weight_.out_stride(), weight_.element_stride(), 0, 0,
        windows,           1};
    T* to = product;
    if constexpr (kWritesAsComputed<In, Out>) {
      if (product == nullptr) {
        sizes.c_m = sizes_.out.strides[kOut];
        sizes.c_n = *out_stride_;
        to = out_ + group * sizes_.group.strides[kOut] + OffsetOf(begin, kOut, *out_stride_);
      }
    }
    for (int64_t first = 0; first < elements; first += of_product) {
      const int64_t last = std::min(elements, first + of_product);
      sizes.k = last - first;
      const T* from = patches;
      if (patches != nullptr) {
        const bool windows_contiguous = patches_.windows_contiguous();
        sizes.b_k = windows_contiguous ? windows : 1;
        sizes.b_n = windows_contiguous ? 1 : sizes.k;
        patches_.Fill(group, begin, end, first, last, patches);
      } else if constexpr (kReadsAsStored<In>) {
        sizes.b_k = sizes_.in.strides[kData];
        sizes.b_n = *data_stride_;
        from = data_ + group * sizes_.group.strides[kData] + OffsetOf(begin, kData, *data_stride_) +
               first * sizes.b_k;
      }
      const bool adds = kExactTerms<In> == 0 && first > 0;
      MultiplyMatrices<T>(sizes, weight_.Of(group) + first * weight_.element_stride(), from, to,
                          adds);
      if (kExactTerms<In> != 0) Store(group, begin, end, product, first > 0);
    }
    if (kExactTerms<In> == 0 && product != nullptr) Store(group, begin, end, product, false);
  }

  /*! \brief Offset of a window in a tensor where the windows of a run are at equal distances. */
  int64_t OffsetOf(int64_t window, ConvolutionTensor tensor, int64_t stride) const {
    return window / run_ * sizes_.batch.strides[tensor] + window % run_ * stride;
  }

  void Store(int64_t group, int64_t begin, int64_t end, const T* product, bool adds) const {
    const int64_t per_image = sizes_.NumWindows();
    for (int64_t at = begin; at < end;) {
      int64_t rest = at % per_image, offset = 0;
      const int64_t inner = rest % sizes_.windows[2].out;
      const int64_t count = std::min(end - at, sizes_.windows[2].out - inner);
      for (int d = 2; d >= 0; --d) {
        offset += rest % sizes_.windows[d].out * sizes_.windows[d].strides[kOut];
        rest /= sizes_.windows[d].out;
      }
      typename Out::Stored* to = out_ + group * sizes_.group.strides[kOut] +
                                 at / per_image * sizes_.batch.strides[kOut] + offset;
      for (int64_t channel = 0; channel < sizes_.out.extent; ++channel) {
        const T* from = product + channel * (end - begin) + at - begin;
        typename Out::Stored* row = to + channel * sizes_.out.strides[kOut];
        const int64_t distance = sizes_.windows[2].strides[kOut];
        for (int64_t i = 0; i < count; ++i) {
          if constexpr (kExactTerms<In> != 0) {
            const auto value = static_cast<typename Out::Stored>(from[i]);
            row[i * distance] = adds ? WrappingSum(row[i * distance], value) : value;
          } else {
            row[i * distance] = Out::Store(from[i]);
          }
        }
      }
      at += count;
    }
  }

  const Convolution& sizes_;
  const typename In::Stored* data_;
  typename Out::Stored* out_;
  const ElementOrder order_;
  const WeightMatrix<In> weight_;
  const Patches<In> patches_;
  int64_t run_;                         // windows that are at equal distances in the result
  std::optional<int64_t> out_stride_;   // none: results are copied to their places
  std::optional<int64_t> data_stride_;  // none: patches are made
};

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_KERNELS_CONVOLUTION_FORWARD_H_
