/*!
 * \file runtime/kernels/convolution/patches.h
 * \brief Patches of a convolution as a matrix: for each window and each element of the kernel, the
 * element of the data that it reads, or zero in the padding.
 *
 * The matrix is made in blocks that stay in a cache, so that a product of matrices reads them
 * there. Which of its sides is contiguous is chosen by which side can be copied in long runs.
 */
#ifndef DISTIR_RUNTIME_KERNELS_CONVOLUTION_PATCHES_H_
#define DISTIR_RUNTIME_KERNELS_CONVOLUTION_PATCHES_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "runtime/kernels/convolution/sizes.h"

namespace distir::runtime {

/*! \brief The elements [begin, end) of a kernel's or a window's dimension for which
 * first + i * step is in [0, size). */
struct InnerRange {
  InnerRange(int64_t first, int64_t step, int64_t count, int64_t size)
      : begin(std::clamp<int64_t>(first >= 0 ? 0 : (-first + step - 1) / step, 0, count)),
        end(std::clamp<int64_t>(first >= size ? 0 : (size - first + step - 1) / step, begin,
                                count)) {}
  int64_t begin, end;
};

/*! \brief Copies elements at equal distances, as the type that is computed with. */
template <typename Format, typename T>
void LoadRun(const typename Format::Stored* from, int64_t distance, int64_t count, T* to) {
  if constexpr (std::is_same_v<typename Format::Stored, T>) {
    if (distance == 1) {
      std::memcpy(to, from, count * sizeof(T));
      return;
    }
  } else if (distance == 1) {
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(Format::Load(from[i]));
    return;
  }
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(Format::Load(from[i * distance]));
}

/*!
 * \brief Makes blocks of the matrix of one convolution that is not transposed.
 *
 * Elements of a kernel, over input channels and positions, are numbered with the channels outside,
 * or, with channels_inside, inside.
 */
template <typename Format>
class Patches {
 public:
  using Stored = typename Format::Stored;
  using T = typename Format::Accumulator;

  Patches(const Convolution& sizes, const Stored* data, bool channels_inside)
      : sizes_(sizes), data_(data), channels_inside_(channels_inside) {
    const Window& last = sizes.windows[2];
    if (channels_inside && sizes.in.strides[kData] == 1) {
      form_ = Form::kChannels;
    } else {
      form_ = last.kernel > last.out && !channels_inside ? Form::kKernels : Form::kWindows;
    }
  }

  /*! \brief True if the windows of a block are contiguous, else the elements of the kernel. */
  bool windows_contiguous() const { return form_ == Form::kWindows; }

  /*!
   * \brief Fills a block.
   * \param begin, end Windows, numbered over all images.
   * \param first, last Elements of the kernel.
   */
  void Fill(int64_t group, int64_t begin, int64_t end, int64_t first, int64_t last, T* to) const {
    const Stored* data = data_ + group * sizes_.group.strides[kData];
    if (form_ == Form::kWindows) return FillWindows(data, begin, end, first, last, to);
    for (int64_t at = begin; at < end; ++at, to += last - first) {
      const Place place = PlaceOf(at);
      if (form_ == Form::kChannels) {
        FillChannels(data, place, first, last, to);
      } else {
        FillKernel(data, place, first, last, to);
      }
    }
  }

 private:
  enum class Form { kWindows, kChannels, kKernels };

  struct Place {
    int64_t image;
    std::array<int64_t, 3> at;
  };

  Place PlaceOf(int64_t window) const {
    Place place;
    for (int d = 2; d >= 0; --d) {
      place.at[d] = window % sizes_.windows[d].out;
      window /= sizes_.windows[d].out;
    }
    place.image = window;
    return place;
  }

  struct Element {
    int64_t channel;
    std::array<int64_t, 3> at;
  };

  Element ElementOf(int64_t element) const {
    Element found;
    const int64_t channels = sizes_.in.extent;
    if (channels_inside_) {
      found.channel = element % channels;
      element /= channels;
    }
    for (int d = 2; d >= 0; --d) {
      found.at[d] = element % sizes_.windows[d].kernel;
      element /= sizes_.windows[d].kernel;
    }
    if (!channels_inside_) found.channel = element;
    return found;
  }

  /*! \brief Moves to where the outer two dimensions look at; false in the padding. */
  bool AtOuter(const Place& place, const std::array<int64_t, 3>& in_kernel,
               const Stored** data) const {
    *data += place.image * sizes_.batch.strides[kData];
    for (int d = 0; d < 2; ++d) {
      const Window& window = sizes_.windows[d];
      const int64_t at = place.at[d] * window.stride + window.OffsetOf(in_kernel[d]);
      if (at < 0 || at >= window.data) return false;
      *data += at * window.strides[kData];
    }
    return true;
  }

  void FillWindows(const Stored* data, int64_t begin, int64_t end, int64_t first, int64_t last,
                   T* to) const {
    const Window& inner = sizes_.windows[2];
    for (int64_t element = first; element < last; ++element) {
      const Element in_kernel = ElementOf(element);
      Place place = PlaceOf(begin);
      for (int64_t at = begin; at < end;) {
        const int64_t count = std::min(inner.out - place.at[2], end - at);
        FillRow(data, place, in_kernel, inner.stride, count, to);
        to += count;
        at += count;
        Advance(&place);
      }
    }
  }

  /*! \brief Copies what the windows of a row look at, or the elements of a kernel's row: every
   * `step`-th element, from that of this window and element on. */
  void FillRow(const Stored* data, const Place& place, const Element& in_kernel, int64_t step,
               int64_t count, T* to) const {
    const Window& inner = sizes_.windows[2];
    const int64_t first = place.at[2] * inner.stride + inner.OffsetOf(in_kernel.at[2]);
    const Stored* row = data + in_kernel.channel * sizes_.in.strides[kData];
    if (!AtOuter(place, in_kernel.at, &row)) {
      std::fill_n(to, count, T(0));
      return;
    }
    const InnerRange range(first, step, count, inner.data);
    std::fill_n(to, range.begin, T(0));
    LoadRun<Format>(row + (first + range.begin * step) * inner.strides[kData],
                    step * inner.strides[kData], range.end - range.begin, to + range.begin);
    std::fill_n(to + range.end, count - range.end, T(0));
  }

  /*! \brief To the begin of the next row of windows. */
  void Advance(Place* place) const {
    place->at[2] = 0;
    for (int d = 1; d >= 0; --d) {
      if (++place->at[d] < sizes_.windows[d].out) return;
      place->at[d] = 0;
    }
    ++place->image;
  }

  void FillChannels(const Stored* data, const Place& place, int64_t first, int64_t last,
                    T* to) const {
    const int64_t channels = sizes_.in.extent;
    const Window& inner = sizes_.windows[2];
    for (int64_t element = first; element < last;) {
      const Element in_kernel = ElementOf(element);
      const int64_t count = std::min(channels - in_kernel.channel, last - element);
      const int64_t at = place.at[2] * inner.stride + inner.OffsetOf(in_kernel.at[2]);
      const Stored* from = data;
      if (AtOuter(place, in_kernel.at, &from) && at >= 0 && at < inner.data) {
        LoadRun<Format>(from + at * inner.strides[kData] + in_kernel.channel, 1, count, to);
      } else {
        std::fill_n(to, count, T(0));
      }
      to += count;
      element += count;
    }
  }

  void FillKernel(const Stored* data, const Place& place, int64_t first, int64_t last,
                  T* to) const {
    const Window& inner = sizes_.windows[2];
    for (int64_t element = first; element < last;) {
      const Element in_kernel = ElementOf(element);
      const int64_t count = std::min(inner.kernel - in_kernel.at[2], last - element);
      FillRow(data, place, in_kernel, inner.dilation, count, to);
      to += count;
      element += count;
    }
  }

  const Convolution& sizes_;
  const Stored* data_;
  const bool channels_inside_;
  Form form_;
};

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_KERNELS_CONVOLUTION_PATCHES_H_
