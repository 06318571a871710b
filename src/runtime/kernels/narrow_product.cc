// Products of few rows: dot products where the other matrix's columns lie contiguous, else sums of
// its scaled rows.
#include "runtime/kernels/narrow_product.h"

#include <algorithm>
#include <vector>

#include "runtime/kernels/vectors.h"

namespace distir::runtime {

namespace {

// Of more rows BLAS's blocks are worth their copies.
constexpr int64_t kMostRows = 8;
// A register of the widest kind.
constexpr int64_t kFewest = 16;
// Rows of b that are added to a part of c before its next part: they stay in the cache.
constexpr int64_t kRowsAtOnce = 32;

// ---- b's columns are contiguous: dot products

/*! \brief Some rows of c in some of its columns; a's rows are contiguous, `a_stride` apart. */
template <int kRows, int kColumns, typename T>
DISTIR_INLINE void Dot(const MatrixProduct& p, const T* a, int64_t a_stride, const T* b, T* c,
                       bool accumulate) {
  using V = typename Vector<T>::Elements;
  constexpr int64_t kSize = Vector<T>::kSize;
  V sums[kRows][kColumns] = {};
  int64_t k = 0;
  for (; k + kSize <= p.k; k += kSize) {
    V right[kColumns];
    for (int n = 0; n < kColumns; ++n) Load(b + n * p.b_n + k, &right[n]);
    for (int m = 0; m < kRows; ++m) {
      V left;
      Load(a + m * a_stride + k, &left);
      for (int n = 0; n < kColumns; ++n) sums[m][n] += left * right[n];
    }
  }
  for (int m = 0; m < kRows; ++m) {
    for (int n = 0; n < kColumns; ++n) {
      T sum = SumOfElements<T>(sums[m][n]);
      for (int64_t rest = k; rest < p.k; ++rest)
        sum += a[m * a_stride + rest] * b[n * p.b_n + rest];
      T& target = c[m * p.c_m + n * p.c_n];
      target = accumulate ? target + sum : sum;
    }
  }
}

template <int kColumns, typename T>
DISTIR_INLINE void DotRows(const MatrixProduct& p, const T* a, int64_t a_stride, const T* b, T* c,
                           bool accumulate) {
  int64_t m = 0;
  for (; m + 4 <= p.m; m += 4)
    Dot<4, kColumns>(p, a + m * a_stride, a_stride, b, c + m * p.c_m, accumulate);
  for (; m + 2 <= p.m; m += 2)
    Dot<2, kColumns>(p, a + m * a_stride, a_stride, b, c + m * p.c_m, accumulate);
  if (m < p.m) Dot<1, kColumns>(p, a + m * a_stride, a_stride, b, c + m * p.c_m, accumulate);
}

template <typename T>
DISTIR_INLINE void DotColumns(const MatrixProduct& p, const T* a, int64_t a_stride, const T* b,
                              T* c, bool accumulate) {
  constexpr int kColumns = 4;
  int64_t n = 0;
  for (; n + kColumns <= p.n; n += kColumns)
    DotRows<kColumns>(p, a, a_stride, b + n * p.b_n, c + n * p.c_n, accumulate);
  for (; n < p.n; ++n) DotRows<1>(p, a, a_stride, b + n * p.b_n, c + n * p.c_n, accumulate);
}

// ---- b's rows are contiguous, and so are c's: sums of scaled rows

/*! \brief Adds rows [begin, end) of b, scaled, to some rows of c in some of its columns. */
template <int kRows, int kVectors, typename T>
DISTIR_INLINE void AddScaled(const MatrixProduct& p, int64_t begin, int64_t end, const T* a,
                             const T* b, T* c, bool accumulate) {
  using V = typename Vector<T>::Elements;
  constexpr int64_t kSize = Vector<T>::kSize;
  V sums[kRows][kVectors] = {};
  if (accumulate) {
    for (int m = 0; m < kRows; ++m) {
      for (int v = 0; v < kVectors; ++v) Load(c + m * p.c_m + v * kSize, &sums[m][v]);
    }
  }
  for (int64_t k = begin; k < end; ++k) {
    V right[kVectors];
    for (int v = 0; v < kVectors; ++v) Load(b + k * p.b_k + v * kSize, &right[v]);
    for (int m = 0; m < kRows; ++m) {
      const T left = a[m * p.a_m + k * p.a_k];
      for (int v = 0; v < kVectors; ++v) sums[m][v] += left * right[v];
    }
  }
  for (int m = 0; m < kRows; ++m) {
    for (int v = 0; v < kVectors; ++v)
      std::memcpy(c + m * p.c_m + v * kSize, &sums[m][v], sizeof(V));
  }
}

template <int kVectors, typename T>
DISTIR_INLINE void AddScaledRows(const MatrixProduct& p, int64_t begin, int64_t end, const T* a,
                                 const T* b, T* c, bool accumulate) {
  int64_t m = 0;
  for (; m + 2 <= p.m; m += 2)
    AddScaled<2, kVectors>(p, begin, end, a + m * p.a_m, b, c + m * p.c_m, accumulate);
  if (m < p.m) AddScaled<1, kVectors>(p, begin, end, a + m * p.a_m, b, c + m * p.c_m, accumulate);
}

template <typename T>
DISTIR_INLINE void AddScaledColumns(const MatrixProduct& p, const T* a, const T* b, T* c,
                                    bool accumulate) {
  constexpr int64_t kSize = Vector<T>::kSize;
  const int64_t at_once = p.n <= 4 * kSize ? p.k : kRowsAtOnce;
  for (int64_t begin = 0; begin < p.k; begin += at_once) {
    const int64_t end = std::min(p.k, begin + at_once);
    const bool adds = accumulate || begin > 0;
    int64_t n = 0;
    for (; n + 4 * kSize <= p.n; n += 4 * kSize)
      AddScaledRows<4>(p, begin, end, a, b + n, c + n, adds);
    for (; n + kSize <= p.n; n += kSize) AddScaledRows<1>(p, begin, end, a, b + n, c + n, adds);
    for (; n < p.n; ++n) {
      for (int64_t m = 0; m < p.m; ++m) {
        T sum = adds ? c[m * p.c_m + n] : 0;
        for (int64_t k = begin; k < end; ++k) sum += a[m * p.a_m + k * p.a_k] * b[k * p.b_k + n];
        c[m * p.c_m + n] = sum;
      }
    }
  }
}

template <typename T>
DISTIR_INLINE void Multiply(const MatrixProduct& p, const T* a, const T* b, T* c, bool accumulate) {
  if (p.b_k != 1) return AddScaledColumns(p, a, b, c, accumulate);
  if (p.a_k == 1 || p.k == 1) return DotColumns(p, a, p.a_m, b, c, accumulate);
  std::vector<T> rows(p.m * p.k);
  for (int64_t m = 0; m < p.m; ++m) {
    for (int64_t k = 0; k < p.k; ++k) rows[m * p.k + k] = a[m * p.a_m + k * p.a_k];
  }
  DotColumns(p, rows.data(), p.k, b, c, accumulate);
}

}  // namespace

bool IsNarrowProduct(const MatrixProduct& sizes) {
  if (sizes.m > kMostRows || sizes.n < sizes.m) return false;
  if (sizes.b_k == 1) return sizes.k >= kFewest;
  return sizes.b_n == 1 && sizes.c_n == 1 && sizes.n >= kFewest;
}

DISTIR_FOR_SEVERAL_CPUS
void MultiplyNarrow(const MatrixProduct& sizes, const float* a, const float* b, float* c,
                    bool accumulate) {
  Multiply(sizes, a, b, c, accumulate);
}
DISTIR_FOR_SEVERAL_CPUS
void MultiplyNarrow(const MatrixProduct& sizes, const double* a, const double* b, double* c,
                    bool accumulate) {
  Multiply(sizes, a, b, c, accumulate);
}

}  // namespace distir::runtime
