/*!
 * \file runtime/kernels/convolution/depthwise.h
 * \brief Convolutions whose groups have one channel: rows of the data times single weights, as
 *        there is no product of matrices in them.
 *
 * Channels that lie next to each other are computed together. Else one channel of an image is
 * copied with its padding, so that every element of the kernel looks at whole rows:
 * with a stride of s, those at 0, s, 2 s, .. lie next to each other, then those at 1, s + 1, ..
 */
#ifndef DISTIR_RUNTIME_KERNELS_CONVOLUTION_DEPTHWISE_H_
#define DISTIR_RUNTIME_KERNELS_CONVOLUTION_DEPTHWISE_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "runtime/kernels/convolution/formats.h"
#include "runtime/kernels/convolution/patches.h"
#include "runtime/kernels/convolution/rows.h"
#include "runtime/kernels/convolution/sizes.h"
#include "runtime/kernels/parallel.h"

namespace distir::runtime {

template <typename In, typename Out>
class Depthwise {
 public:
  using T = typename In::Accumulator;
  using Stored = typename In::Stored;

  /*! \brief True for few channels of a group, and integers that are exact as summed here. */
  static bool Computes(const Convolution& sizes) {
    constexpr int64_t kFewChannels = 2;
    return !sizes.is_transposed && sizes.in.extent == 1 && sizes.out.extent <= kFewChannels &&
           sizes.group.extent > 1 &&
           (kExactTerms<In> == 0 || sizes.KernelSize() <= kExactTerms<In>);
  }

  Depthwise(const Convolution& sizes, const Stored* data, const Stored* weight,
            typename Out::Stored* out)
      : sizes_(sizes), data_(data), out_(out) {
    groups_inside_ = sizes.group.strides[kData] == 1 && sizes.out.extent == 1;
    ForEachTap([&](const std::array<int64_t, 3>& at, int64_t) {
      int64_t offset = 0;
      for (int d = 0; d < 3; ++d)
        offset += at[d] * sizes.windows[d].dilation * sizes.windows[d].strides[kData];
      offsets_.push_back(offset);
    });
    const int64_t channels = sizes.group.extent * sizes.out.extent, kernel = sizes.KernelSize();
    weights_.resize(channels * kernel);
    for (int64_t channel = 0; channel < channels; ++channel) {
      const Stored* from = weight + channel / sizes.out.extent * sizes.group.strides[kWeight] +
                           channel % sizes.out.extent * sizes.out.strides[kWeight];
      ForEachTap([&](const std::array<int64_t, 3>& at, int64_t tap) {
        int64_t offset = 0;
        for (int d = 0; d < 3; ++d) offset += at[d] * sizes.windows[d].strides[kWeight];
        weights_[groups_inside_ ? tap * channels + channel : channel * kernel + tap] =
            In::Load(from[offset]);
      });
    }
  }

  void Run() const {
    const Window &outer = sizes_.windows[0], &middle = sizes_.windows[1];
    const int64_t units =
        sizes_.batch.extent * (groups_inside_ ? outer.out * middle.out : sizes_.group.extent);
    RunInParts(sizes_.Operations(), [&](int64_t part, int64_t parts) {
      Scratch scratch;
      for (int64_t unit = units * part / parts; unit < units * (part + 1) / parts; ++unit) {
        if (groups_inside_) {
          RunRow(unit / (outer.out * middle.out),
                 {unit / middle.out % outer.out, unit % middle.out}, &scratch);
        } else {
          RunGroup(unit / sizes_.group.extent, unit % sizes_.group.extent, &scratch);
        }
      }
    });
  }

 private:
  struct Scratch {
    std::vector<T> sums, loaded;
    std::vector<const T*> from, factors;
  };

  template <typename Visit>
  void ForEachTap(const Visit& visit) const {
    int64_t tap = 0;
    for (int64_t a = 0; a < sizes_.windows[0].kernel; ++a) {
      for (int64_t b = 0; b < sizes_.windows[1].kernel; ++b) {
        for (int64_t c = 0; c < sizes_.windows[2].kernel; ++c) visit({a, b, c}, tap++);
      }
    }
  }

  // ---- one row of windows, all groups of each

  void RunRow(int64_t image, const std::array<int64_t, 2>& at, Scratch* scratch) const {
    const Window& inner = sizes_.windows[2];
    const int64_t groups = sizes_.group.extent, taps = sizes_.KernelSize();
    const Stored* data = data_ + image * sizes_.batch.strides[kData];
    typename Out::Stored* out = out_ + image * sizes_.batch.strides[kOut] +
                                at[0] * sizes_.windows[0].strides[kOut] +
                                at[1] * sizes_.windows[1].strides[kOut];
    scratch->sums.resize(groups);
    if (!kReadsAsStored<In>) scratch->loaded.resize(taps * groups);
    for (int64_t window = 0; window < inner.out; ++window) {
      LookAt(data, {at[0], at[1], window}, scratch);
      SumOfProducts(groups, static_cast<int64_t>(scratch->from.size()), scratch->factors.data(),
                    scratch->from.data(), scratch->sums.data());
      Store(scratch->sums.data(), groups, out + window * inner.strides[kOut],
            sizes_.group.strides[kOut]);
    }
  }

  /*! \brief Finds the elements that a window looks at, without padding, and their weights. */
  void LookAt(const Stored* data, const std::array<int64_t, 3>& window, Scratch* scratch) const {
    const int64_t groups = sizes_.group.extent;
    bool is_inside = kReadsAsStored<In>;
    for (int d = 0; d < 3; ++d) {
      const Window& dim = sizes_.windows[d];
      const int64_t first = window[d] * dim.stride - dim.before;
      is_inside = is_inside && first >= 0 && first + (dim.kernel - 1) * dim.dilation < dim.data;
      data += first * dim.strides[kData];
    }
    scratch->from.clear();
    scratch->factors.clear();
    ForEachTap([&](const std::array<int64_t, 3>& in_kernel, int64_t tap) {
      for (int d = 0; d < 3 && !is_inside; ++d) {
        const Window& dim = sizes_.windows[d];
        const int64_t at = window[d] * dim.stride + dim.OffsetOf(in_kernel[d]);
        if (at < 0 || at >= dim.data) return;
      }
      const Stored* from = data + offsets_[tap];
      scratch->factors.push_back(weights_.data() + tap * groups);
      if constexpr (kReadsAsStored<In>) {
        scratch->from.push_back(from);
      } else {
        T* loaded = scratch->loaded.data() + scratch->from.size() * groups;
        LoadRun<In>(from, 1, groups, loaded);
        scratch->from.push_back(loaded);
      }
    });
  }

  // ---- all windows of one group of an image

  /*! \brief Elements of a padded dimension that windows look at. */
  static int64_t PaddedSize(const Window& window) {
    return (window.out - 1) * window.stride + (window.kernel - 1) * window.dilation + 1;
  }

  /*! \brief Elements between those that look alike: a row has `stride` phases of this size. */
  int64_t PhaseSize() const {
    const Window& inner = sizes_.windows[2];
    return (PaddedSize(inner) + inner.stride - 1) / inner.stride;
  }
  /*! \brief To whole vectors of the widest registers. */
  static int64_t RoundedUp(int64_t count) {
    constexpr int64_t kVector = 64 / sizeof(T);
    return (count + kVector - 1) / kVector * kVector;
  }
  int64_t RowSize() const { return PhaseSize() * sizes_.windows[2].stride; }

  void CopyPadded(const Stored* data, std::vector<T>* padded) const {
    const auto& [outer, middle, inner] = sizes_.windows;
    // Sums of whole vectors look at what is behind it.
    padded->assign(PaddedSize(outer) * PaddedSize(middle) * RowSize() + RoundedUp(1), T(0));
    T* row = padded->data();
    for (int64_t a = 0; a < PaddedSize(outer); ++a) {
      for (int64_t b = 0; b < PaddedSize(middle); ++b, row += RowSize()) {
        const int64_t in_outer = a - outer.before, in_middle = b - middle.before;
        if (in_outer < 0 || in_outer >= outer.data || in_middle < 0 || in_middle >= middle.data)
          continue;
        const Stored* from =
            data + in_outer * outer.strides[kData] + in_middle * middle.strides[kData];
        for (int64_t phase = 0; phase < inner.stride; ++phase) {
          const int64_t first = phase - inner.before;
          const InnerRange range(first, inner.stride, PhaseSize(), inner.data);
          LoadRun<In>(from + (first + range.begin * inner.stride) * inner.strides[kData],
                      inner.stride * inner.strides[kData], range.end - range.begin,
                      row + phase * PhaseSize() + range.begin);
        }
      }
    }
  }

  void RunGroup(int64_t image, int64_t group, Scratch* scratch) const {
    const auto& [outer, middle, inner] = sizes_.windows;
    const int64_t taps = sizes_.KernelSize(), row_size = RowSize(), phase_size = PhaseSize();
    CopyPadded(data_ + image * sizes_.batch.strides[kData] + group * sizes_.group.strides[kData],
               &scratch->loaded);
    // Rows of windows that lie next to each other are one row, with some that are no windows.
    const int64_t rows = middle.stride == 1 && inner.stride == 1 ? middle.out : 1;
    const int64_t count = RoundedUp((rows - 1) * row_size + inner.out);
    scratch->sums.resize(count);
    scratch->from.resize(taps);
    std::vector<const T*> first(taps);  // what the first window of an image looks at
    ForEachTap([&](const std::array<int64_t, 3>& at, int64_t tap) {
      const int64_t in_row = at[2] * inner.dilation;
      first[tap] =
          scratch->loaded.data() +
          (at[0] * outer.dilation * PaddedSize(middle) + at[1] * middle.dilation) * row_size +
          in_row % inner.stride * phase_size + in_row / inner.stride;
    });
    for (int64_t a = 0; a < outer.out; ++a) {
      for (int64_t b = 0; b < middle.out; b += rows) {
        const int64_t row = (a * outer.stride * PaddedSize(middle) + b * middle.stride) * row_size;
        for (int64_t tap = 0; tap < taps; ++tap) scratch->from[tap] = first[tap] + row;
        for (int64_t channel = 0; channel < sizes_.out.extent; ++channel) {
          SumOfScaled(count, taps, weights_.data() + (group * sizes_.out.extent + channel) * taps,
                      scratch->from.data(), scratch->sums.data());
          typename Out::Stored* out = out_ + image * sizes_.batch.strides[kOut] +
                                      group * sizes_.group.strides[kOut] +
                                      channel * sizes_.out.strides[kOut] + a * outer.strides[kOut];
          for (int64_t i = 0; i < rows; ++i)
            Store(scratch->sums.data() + i * row_size, inner.out,
                  out + (b + i) * middle.strides[kOut], inner.strides[kOut]);
        }
      }
    }
  }

  static void Store(const T* from, int64_t count, typename Out::Stored* to, int64_t distance) {
    for (int64_t i = 0; i < count; ++i) {
      if constexpr (kExactTerms<In> != 0) {
        to[i * distance] = static_cast<typename Out::Stored>(from[i]);
      } else {
        to[i * distance] = Out::Store(from[i]);
      }
    }
  }

  const Convolution& sizes_;
  const Stored* data_;
  typename Out::Stored* out_;
  bool groups_inside_;
  std::vector<T> weights_;
  std::vector<int64_t> offsets_;  // of the elements of the kernel, in the data
};

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_KERNELS_CONVOLUTION_DEPTHWISE_H_
