// Sums over rows, compiled for several generations of CPUs; the loader takes the best for the
// machine.
#include "runtime/kernels/convolution/rows.h"

#include <cstring>

#include "runtime/kernels/vectors.h"

namespace distir::runtime {

namespace {

template <typename T>
struct Scaled {
  const T* factors;
  DISTIR_INLINE T At(int64_t term, int64_t) const { return factors[term]; }
  DISTIR_INLINE void LoadTo(int64_t term, int64_t, typename Vector<T>::Elements* to) const {
    *to = typename Vector<T>::Elements{} + factors[term];
  }
};

template <typename T>
struct Elementwise {
  const T* const* factors;
  DISTIR_INLINE T At(int64_t term, int64_t i) const { return factors[term][i]; }
  DISTIR_INLINE void LoadTo(int64_t term, int64_t i, typename Vector<T>::Elements* to) const {
    Load(factors[term] + i, to);
  }
};

// Sums stay in registers while all terms are added to them.
template <int kVectors, typename T, typename Factors>
DISTIR_INLINE void SumVectors(int64_t begin, int64_t num, const Factors& factors,
                              const T* const* from, T* to) {
  using V = typename Vector<T>::Elements;
  V sums[kVectors] = {};
  for (int64_t term = 0; term < num; ++term) {
    for (int v = 0; v < kVectors; ++v) {
      const int64_t i = begin + v * Vector<T>::kSize;
      V factor, value;
      factors.LoadTo(term, i, &factor);
      Load(from[term] + i, &value);
      sums[v] += factor * value;
    }
  }
  for (int v = 0; v < kVectors; ++v)
    std::memcpy(to + begin + v * Vector<T>::kSize, &sums[v], sizeof(V));
}

template <typename T, typename Factors>
DISTIR_INLINE void Sum(int64_t count, int64_t num, const Factors& factors, const T* const* from,
                       T* to) {
  constexpr int64_t kSize = Vector<T>::kSize;
  int64_t i = 0;
  for (; i + 4 * kSize <= count; i += 4 * kSize) SumVectors<4>(i, num, factors, from, to);
  for (; i + 2 * kSize <= count; i += 2 * kSize) SumVectors<2>(i, num, factors, from, to);
  for (; i + kSize <= count; i += kSize) SumVectors<1>(i, num, factors, from, to);
  if (i < count && count >= kSize) return SumVectors<1>(count - kSize, num, factors, from, to);
  for (; i < count; ++i) {
    T sum = 0;
    for (int64_t term = 0; term < num; ++term) sum += factors.At(term, i) * from[term][i];
    to[i] = sum;
  }
}

template <typename T>
DISTIR_INLINE void Add(int64_t count, const T* __restrict from, int64_t distance,
                       T* __restrict to) {
  if (distance == 1) {
    for (int64_t i = 0; i < count; ++i) to[i] += from[i];
  } else {
    for (int64_t i = 0; i < count; ++i) to[i * distance] += from[i];
  }
}

}  // namespace

DISTIR_FOR_SEVERAL_CPUS
void SumOfScaled(int64_t count, int64_t num, const float* factors, const float* const* from,
                 float* to) {
  Sum(count, num, Scaled<float>{factors}, from, to);
}
DISTIR_FOR_SEVERAL_CPUS
void SumOfScaled(int64_t count, int64_t num, const double* factors, const double* const* from,
                 double* to) {
  Sum(count, num, Scaled<double>{factors}, from, to);
}

DISTIR_FOR_SEVERAL_CPUS
void SumOfProducts(int64_t count, int64_t num, const float* const* factors,
                   const float* const* from, float* to) {
  Sum(count, num, Elementwise<float>{factors}, from, to);
}
DISTIR_FOR_SEVERAL_CPUS
void SumOfProducts(int64_t count, int64_t num, const double* const* factors,
                   const double* const* from, double* to) {
  Sum(count, num, Elementwise<double>{factors}, from, to);
}

DISTIR_FOR_SEVERAL_CPUS
void AddTo(int64_t count, const float* from, int64_t distance, float* to) {
  Add(count, from, distance, to);
}
DISTIR_FOR_SEVERAL_CPUS
void AddTo(int64_t count, const double* from, int64_t distance, double* to) {
  Add(count, from, distance, to);
}

}  // namespace distir::runtime
