// Multiplies strided matrices by a BLAS library, or by loops where there is none.
#include "runtime/kernels/blas.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <mutex>
#include <utility>

#include "runtime/kernels/narrow_product.h"

namespace distir::runtime {

namespace {

// Values of the C interface of BLAS (netlib.org/blas/blast-forum/cinterface.pdf).
constexpr int kRowMajor = 101;
constexpr int kAsIs = 111;
constexpr int kTransposed = 112;

template <typename T>
struct Functions {
  void (*gemm)(int order, int a_transposed, int b_transposed, int m, int n, int k, T alpha,
               const T* a, int a_stride, const T* b, int b_stride, T beta, T* c,
               int c_stride) = nullptr;
  void (*gemv)(int order, int transposed, int rows, int columns, T alpha, const T* a, int a_stride,
               const T* x, int x_stride, T beta, T* y, int y_stride) = nullptr;
  explicit operator bool() const { return gemm != nullptr && gemv != nullptr; }
};

// mkl_types.h: each call in the thread that makes it.
constexpr int kMklSequential = 1;

struct Library {
  std::string path;
  std::string prefix;
};

Library* ChosenLibrary() {
  static Library library;
  return &library;
}

template <typename Function>
void Find(void* library, const std::string& name, Function* function) {
  const std::string symbol = ChosenLibrary()->prefix + name;
  *function = reinterpret_cast<Function>(dlsym(library, symbol.c_str()));
}

/*! \brief Has every call of a library run in the thread that makes it. */
void UseOneThread(void* library) {
  void (*openblas)(int) = nullptr;
  Find(library, "openblas_set_num_threads", &openblas);
  if (openblas != nullptr) openblas(1);
  int (*mkl)(int) = nullptr;
  Find(library, "MKL_Set_Threading_Layer", &mkl);
  if (mkl != nullptr) mkl(kMklSequential);
}

class Blas {
 public:
  static const Blas& Get() {
    static const Blas blas;
    return blas;
  }
  template <typename T>
  const Functions<T>& Of() const;
  void* library() const { return library_; }

 private:
  Blas() {
    const std::string& path = ChosenLibrary()->path;
    void* library = path.empty() ? nullptr : dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      std::fprintf(stderr,
                   "distir_ext: there is no BLAS, so products of matrices are computed by slow "
                   "loops; pip install scipy-openblas32\n");
      return;
    }
    library_ = library;
    UseOneThread(library);
    Find(library, "cblas_sgemm", &of_float_.gemm);
    Find(library, "cblas_sgemv", &of_float_.gemv);
    Find(library, "cblas_dgemm", &of_double_.gemm);
    Find(library, "cblas_dgemv", &of_double_.gemv);
  }

  void* library_ = nullptr;
  Functions<float> of_float_;
  Functions<double> of_double_;
};

template <>
const Functions<float>& Blas::Of<float>() const {
  return of_float_;
}
template <>
const Functions<double>& Blas::Of<double>() const {
  return of_double_;
}

/*! \brief A matrix as BLAS has it: rows of contiguous elements, which may stand for columns. */
struct Rows {
  int transposed;
  int stride;
};

Rows RowsOf(int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride) {
  const bool as_is = column_stride == 1 || columns == 1;
  if (as_is && (row_stride >= columns || rows == 1))
    return {kAsIs, static_cast<int>(std::max(row_stride, columns))};
  return {kTransposed, static_cast<int>(std::max(column_stride, rows))};
}

bool FitsBlas(const MatrixProduct& p) {
  for (int64_t value : {p.m, p.n, p.k, p.a_m, p.a_k, p.b_k, p.b_n, p.c_m, p.c_n}) {
    if (value > std::numeric_limits<int>::max()) return false;
  }
  return IsBlasMatrix(p.m, p.k, p.a_m, p.a_k) && IsBlasMatrix(p.k, p.n, p.b_k, p.b_n) &&
         IsBlasMatrix(p.m, p.n, p.c_m, p.c_n);
}

/*! \brief The product that gives the transposed result. */
MatrixProduct Swapped(const MatrixProduct& p) {
  return {p.n, p.m, p.k, p.b_n, p.b_k, p.a_k, p.a_m, p.c_n, p.c_m};
}

// One row: c (n) = a (k) b (k, n), with any distance between elements of c and of a.
template <typename T>
void MultiplyRow(const Functions<T>& blas, const MatrixProduct& p, const T* a, const T* b, T* c,
                 T beta) {
  const Rows rows = RowsOf(p.n, p.k, p.b_n, p.b_k);
  const bool as_is = rows.transposed == kAsIs;
  blas.gemv(kRowMajor, rows.transposed, static_cast<int>(as_is ? p.n : p.k),
            static_cast<int>(as_is ? p.k : p.n), 1, b, rows.stride, a,
            static_cast<int>(std::max<int64_t>(p.a_k, 1)), beta, c,
            static_cast<int>(std::max<int64_t>(p.c_n, 1)));
}

template <typename T>
void MultiplyByBlas(const Functions<T>& blas, const MatrixProduct& p, const T* a, const T* b, T* c,
                    T beta) {
  if (p.m == 1) return MultiplyRow(blas, p, a, b, c, beta);
  if (p.n == 1) return MultiplyRow(blas, Swapped(p), b, a, c, beta);
  if (p.c_n != 1) return MultiplyByBlas(blas, Swapped(p), b, a, c, beta);
  const Rows of_a = RowsOf(p.m, p.k, p.a_m, p.a_k);
  const Rows of_b = RowsOf(p.k, p.n, p.b_k, p.b_n);
  blas.gemm(kRowMajor, of_a.transposed, of_b.transposed, static_cast<int>(p.m),
            static_cast<int>(p.n), static_cast<int>(p.k), 1, a, of_a.stride, b, of_b.stride, beta,
            c, static_cast<int>(p.c_m));
}

template <typename T>
void MultiplyByLoops(const MatrixProduct& p, const T* a, const T* b, T* c, bool accumulate) {
  for (int64_t m = 0; m < p.m; ++m) {
    T* row = c + m * p.c_m;
    for (int64_t n = 0; !accumulate && n < p.n; ++n) row[n * p.c_n] = 0;
    for (int64_t k = 0; k < p.k; ++k) {
      const T left = a[m * p.a_m + k * p.a_k];
      const T* right = b + k * p.b_k;
      for (int64_t n = 0; n < p.n; ++n) row[n * p.c_n] += left * right[n * p.b_n];
    }
  }
}

}  // namespace

void SetBlasLibrary(const std::string& path, const std::string& prefix) {
  *ChosenLibrary() = {path, prefix};
}

void* FindBlasFunction(const std::string& name) {
  void* library = Blas::Get().library();
  void* found = nullptr;
  if (library != nullptr) Find(library, name, &found);
  return found;
}

template <typename T>
void MultiplyMatrices(const MatrixProduct& sizes, const T* a, const T* b, T* c, bool accumulate) {
  if (IsNarrowProduct(sizes)) return MultiplyNarrow(sizes, a, b, c, accumulate);
  if (const MatrixProduct swapped = Swapped(sizes); IsNarrowProduct(swapped))
    return MultiplyNarrow(swapped, b, a, c, accumulate);
  const Functions<T>& blas = Blas::Get().Of<T>();
  if (blas && FitsBlas(sizes)) return MultiplyByBlas<T>(blas, sizes, a, b, c, accumulate ? 1 : 0);
  MultiplyByLoops(sizes, a, b, c, accumulate);
}

template void MultiplyMatrices(const MatrixProduct&, const float*, const float*, float*, bool);
template void MultiplyMatrices(const MatrixProduct&, const double*, const double*, double*, bool);

}  // namespace distir::runtime
