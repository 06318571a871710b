// Runs matrix decompositions by LAPACK on stacks of matrices.
#include "runtime/kernels/lapack.h"

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <string>
#include <vector>

#include "runtime/kernels/blas.h"
#include "runtime/kernels/strided_copy.h"
#include "support/functions.h"

namespace distir::runtime {

namespace {

namespace ffi = tvm::ffi;

// Behind the arguments of a Fortran function stand the lengths of its texts.
constexpr size_t kOne = 1;

/*! \brief Sizes of a stack of matrices. */
struct Stack {
  int64_t count = 1;
  int rows = 0;
  int columns = 0;
  int64_t size() const { return static_cast<int64_t>(rows) * columns; }
  int least() const { return std::min(rows, columns); }
};

[[noreturn]] void FailInLapack(const char* name, const std::string& reason) {
  TVM_FFI_THROW(ValueError) << "distir.lapack." << name << ": " << reason;
}

Stack StackOf(const char* name, const TensorView& tensor) {
  const int rank = tensor.ndim();
  if (rank < 2) FailInLapack(name, "a matrix has two dimensions, not " + std::to_string(rank));
  Stack stack;
  for (int i = 0; i + 2 < rank; ++i) stack.count *= tensor.size(i);
  for (int64_t size : {tensor.size(rank - 2), tensor.size(rank - 1)}) {
    if (size > std::numeric_limits<int>::max()) FailInLapack(name, "a dimension exceeds 32 bits");
  }
  stack.rows = static_cast<int>(tensor.size(rank - 2));
  stack.columns = static_cast<int>(tensor.size(rank - 1));
  return stack;
}

Stack SquareStackOf(const char* name, const TensorView& tensor) {
  const Stack stack = StackOf(name, tensor);
  if (stack.rows != stack.columns) FailInLapack(name, "a matrix is not square");
  return stack;
}

void CheckCount(const char* name, const TensorView& tensor, int64_t count) {
  if (tensor.numel() != count) {
    FailInLapack(name, "a tensor has " + std::to_string(tensor.numel()) + " elements, not " +
                           std::to_string(count));
  }
}

/*! \brief Checks that a text is one letter of each list, such as {"LU", "NT"}. */
void CheckLetters(const char* name, const String& text, std::initializer_list<const char*> lists) {
  bool fits = text.size() == lists.size();
  size_t at = 0;
  for (const char* list : lists) {
    fits = fits && std::string(list).find(text.data()[at]) != std::string::npos;
    ++at;
  }
  if (!fits) FailInLapack(name, "\"" + std::string(text) + "\" are no options of it");
}

/*! \brief A function of LAPACK for float or double. */
template <typename T, typename Function>
Function* Find(const char* name) {
  const std::string symbol = (sizeof(T) == 4 ? "s" : "d") + std::string(name) + "_";
  void* found = FindBlasFunction(symbol);
  if (found == nullptr) {
    TVM_FFI_THROW(RuntimeError) << "distir.lapack." << name
                                << ": there is no LAPACK; pip install scipy-openblas32";
  }
  return reinterpret_cast<Function*>(found);
}

template <typename T>
T* Data(const TensorView& tensor) {
  return reinterpret_cast<T*>(DataOf(tensor));
}

/*! \brief Matrices as LAPACK has them, column after column, in memory of their own. */
template <typename T>
class Columns {
 public:
  Columns(int rows, int columns) : rows_(rows), columns_(columns), elements_(Count()) {}

  void Read(const T* matrix) {
    for (int64_t i = 0; i < rows_; ++i) {
      for (int64_t j = 0; j < columns_; ++j) elements_[j * rows_ + i] = matrix[i * columns_ + j];
    }
  }
  void Write(T* matrix) const {
    for (int64_t i = 0; i < rows_; ++i) {
      for (int64_t j = 0; j < columns_; ++j) matrix[i * columns_ + j] = elements_[j * rows_ + i];
    }
  }
  T* data() { return elements_.data(); }
  /*! \brief Distance between columns; at least 1, as LAPACK requires. */
  int stride() const { return std::max(rows_, 1); }

 private:
  size_t Count() const {
    return std::max<size_t>(1, static_cast<size_t>(rows_) * static_cast<size_t>(columns_));
  }

  int rows_;
  int columns_;
  std::vector<T> elements_;
};

/*! \brief The work space that a function asks for when it is called with a length of -1. */
template <typename T, typename Call>
void WithWork(const Call& call) {
  T size = 0;
  int length = -1;
  call(&size, &length);
  length = std::max(1, static_cast<int>(size));
  std::vector<T> work(length);
  call(work.data(), &length);
}

/*! \brief Calls f with a float or double, as the tensors are. */
template <typename F>
void ByDtype(const char* name, std::initializer_list<TensorView> tensors, const F& f) {
  const DLDataType dtype = tensors.begin()->dtype();
  const bool is_float =
      dtype.code == kDLFloat && dtype.lanes == 1 && (dtype.bits == 32 || dtype.bits == 64);
  for (const TensorView& each : tensors) {
    const DLDataType other = each.dtype();
    if (each.device().device_type != kDLCPU) FailInLapack(name, "a matrix is not in host memory");
    if (!is_float || other.code != dtype.code || other.bits != dtype.bits) {
      FailInLapack(name, "a matrix is " + std::string(ffi::DLDataTypeToString(other)) +
                             "; all are float32, or all float64");
    }
  }
  if (dtype.bits == 32) {
    f(float());
  } else {
    f(double());
  }
}

void CheckInfo(const char* name, const TensorView& info, int64_t count) {
  const DLDataType dtype = info.dtype();
  if (dtype.code != kDLInt || dtype.bits != 32) FailInLapack(name, "its integers are int32");
  CheckCount(name, info, count);
}

}  // namespace

void Potrf(TensorView a, const String& uplo, TensorView factor, TensorView info) {
  const char* name = "potrf";
  CheckLetters(name, uplo, {"LU"});
  const Stack stack = SquareStackOf(name, a);
  CheckCount(name, factor, stack.count * stack.size());
  CheckInfo(name, info, stack.count);
  ByDtype(name, {a, factor}, [&](auto zero) {
    using T = decltype(zero);
    const auto potrf = Find<T, void(const char*, const int*, T*, const int*, int*, size_t)>(name);
    Columns<T> matrix(stack.rows, stack.columns);
    const int stride = matrix.stride();
    for (int64_t i = 0; i < stack.count; ++i) {
      matrix.Read(Data<T>(a) + i * stack.size());
      potrf(uplo.data(), &stack.rows, matrix.data(), &stride, Data<int>(info) + i, kOne);
      matrix.Write(Data<T>(factor) + i * stack.size());
    }
  });
}

void Getrf(TensorView a, TensorView lu, TensorView pivots, TensorView info) {
  const char* name = "getrf";
  const Stack stack = StackOf(name, a);
  CheckCount(name, lu, stack.count * stack.size());
  CheckInfo(name, pivots, stack.count * stack.least());
  CheckInfo(name, info, stack.count);
  ByDtype(name, {a, lu}, [&](auto zero) {
    using T = decltype(zero);
    const auto getrf = Find<T, void(const int*, const int*, T*, const int*, int*, int*)>(name);
    Columns<T> matrix(stack.rows, stack.columns);
    const int stride = matrix.stride();
    for (int64_t i = 0; i < stack.count; ++i) {
      matrix.Read(Data<T>(a) + i * stack.size());
      getrf(&stack.rows, &stack.columns, matrix.data(), &stride,
            Data<int>(pivots) + i * stack.least(), Data<int>(info) + i);
      matrix.Write(Data<T>(lu) + i * stack.size());
    }
  });
}

void Trsm(TensorView a, TensorView b, const String& options, TensorView x) {
  const char* name = "trsm";
  CheckLetters(name, options, {"LR", "LU", "NTC", "NU"});
  const Stack triangle = SquareStackOf(name, a);
  const Stack stack = StackOf(name, b);
  const int side = options.data()[0] == 'L' ? stack.rows : stack.columns;
  if (triangle.count != stack.count || triangle.rows != side)
    FailInLapack(name, "sizes do not agree");
  CheckCount(name, x, stack.count * stack.size());
  ByDtype(name, {a, b, x}, [&](auto zero) {
    using T = decltype(zero);
    const auto trsm = Find<T, void(const char*, const char*, const char*, const char*, const int*,
                                   const int*, const T*, const T*, const int*, T*, const int*,
                                   size_t, size_t, size_t, size_t)>(name);
    Columns<T> left(triangle.rows, triangle.columns);
    Columns<T> right(stack.rows, stack.columns);
    const int left_stride = left.stride();
    const int right_stride = right.stride();
    const T one = 1;
    const char* letters = options.data();
    for (int64_t i = 0; i < stack.count; ++i) {
      left.Read(Data<T>(a) + i * triangle.size());
      right.Read(Data<T>(b) + i * stack.size());
      trsm(letters, letters + 1, letters + 2, letters + 3, &stack.rows, &stack.columns, &one,
           left.data(), &left_stride, right.data(), &right_stride, kOne, kOne, kOne, kOne);
      right.Write(Data<T>(x) + i * stack.size());
    }
  });
}

void Geqrf(TensorView a, TensorView reflectors, TensorView factors) {
  const char* name = "geqrf";
  const Stack stack = StackOf(name, a);
  CheckCount(name, reflectors, stack.count * stack.size());
  CheckCount(name, factors, stack.count * stack.least());
  ByDtype(name, {a, reflectors, factors}, [&](auto zero) {
    using T = decltype(zero);
    const auto geqrf =
        Find<T, void(const int*, const int*, T*, const int*, T*, T*, const int*, int*)>(name);
    Columns<T> matrix(stack.rows, stack.columns);
    const int stride = matrix.stride();
    for (int64_t i = 0; i < stack.count; ++i) {
      matrix.Read(Data<T>(a) + i * stack.size());
      WithWork<T>([&](T* work, const int* length) {
        int info = 0;
        geqrf(&stack.rows, &stack.columns, matrix.data(), &stride,
              Data<T>(factors) + i * stack.least(), work, length, &info);
      });
      matrix.Write(Data<T>(reflectors) + i * stack.size());
    }
  });
}

void Orgqr(TensorView reflectors, TensorView factors, TensorView q) {
  const char* name = "orgqr";
  const Stack stack = StackOf(name, reflectors);
  const int count = factors.ndim() > 0 ? static_cast<int>(factors.size(factors.ndim() - 1)) : 0;
  if (stack.rows < stack.columns || stack.columns < count) FailInLapack(name, "sizes do not agree");
  CheckCount(name, factors, stack.count * count);
  CheckCount(name, q, stack.count * stack.size());
  ByDtype(name, {reflectors, factors, q}, [&](auto zero) {
    using T = decltype(zero);
    const auto orgqr = Find<T, void(const int*, const int*, const int*, T*, const int*, const T*,
                                    T*, const int*, int*)>(name);
    Columns<T> matrix(stack.rows, stack.columns);
    const int stride = matrix.stride();
    for (int64_t i = 0; i < stack.count; ++i) {
      matrix.Read(Data<T>(reflectors) + i * stack.size());
      WithWork<T>([&](T* work, const int* length) {
        int info = 0;
        orgqr(&stack.rows, &stack.columns, &count, matrix.data(), &stride,
              Data<T>(factors) + i * count, work, length, &info);
      });
      matrix.Write(Data<T>(q) + i * stack.size());
    }
  });
}

void Gesdd(TensorView a, const String& mode, TensorView rest, TensorView values, TensorView u,
           TensorView vt, TensorView info) {
  const char* name = "gesdd";
  CheckLetters(name, mode, {"ASN"});
  const Stack stack = StackOf(name, a);
  const Stack left = StackOf(name, u);
  const Stack right = StackOf(name, vt);
  const bool is_all = mode.data()[0] == 'A';
  const bool has_vectors = mode.data()[0] != 'N';
  const int least = stack.least();
  CheckCount(name, rest, stack.count * stack.size());
  CheckCount(name, values, stack.count * least);
  CheckInfo(name, info, stack.count);
  if (has_vectors && (left.rows != stack.rows || right.columns != stack.columns ||
                      left.columns != (is_all ? stack.rows : least) ||
                      right.rows != (is_all ? stack.columns : least))) {
    FailInLapack(name, "sizes do not agree");
  }
  ByDtype(name, {a, rest, values, u, vt}, [&](auto zero) {
    using T = decltype(zero);
    const auto gesdd =
        Find<T, void(const char*, const int*, const int*, T*, const int*, T*, T*, const int*, T*,
                     const int*, T*, const int*, int*, int*, size_t)>(name);
    Columns<T> matrix(stack.rows, stack.columns);
    Columns<T> of_u(left.rows, left.columns);
    Columns<T> of_vt(right.rows, right.columns);
    std::vector<int> integers(8 * std::max(1, least));
    const int stride = matrix.stride();
    const int u_stride = of_u.stride();
    const int vt_stride = of_vt.stride();
    for (int64_t i = 0; i < stack.count; ++i) {
      matrix.Read(Data<T>(a) + i * stack.size());
      WithWork<T>([&](T* work, const int* length) {
        gesdd(mode.data(), &stack.rows, &stack.columns, matrix.data(), &stride,
              Data<T>(values) + i * least, of_u.data(), &u_stride, of_vt.data(), &vt_stride, work,
              length, integers.data(), Data<int>(info) + i, kOne);
      });
      matrix.Write(Data<T>(rest) + i * stack.size());
      of_u.Write(Data<T>(u) + i * left.size());
      of_vt.Write(Data<T>(vt) + i * right.size());
    }
  });
}

void Syevd(TensorView a, const String& options, TensorView vectors, TensorView values,
           TensorView info) {
  const char* name = "syevd";
  CheckLetters(name, options, {"VN", "LU"});
  const Stack stack = SquareStackOf(name, a);
  CheckCount(name, vectors, stack.count * stack.size());
  CheckCount(name, values, stack.count * stack.rows);
  CheckInfo(name, info, stack.count);
  ByDtype(name, {a, vectors, values}, [&](auto zero) {
    using T = decltype(zero);
    const auto syevd = Find<T, void(const char*, const char*, const int*, T*, const int*, T*, T*,
                                    const int*, int*, const int*, int*, size_t, size_t)>(name);
    Columns<T> matrix(stack.rows, stack.columns);
    // As many as the documentation of syevd asks for.
    const int64_t n = stack.rows;
    std::vector<int> integers(std::max<int64_t>(1, 3 + 5 * n));
    const int integer_length = static_cast<int>(integers.size());
    const int stride = matrix.stride();
    for (int64_t i = 0; i < stack.count; ++i) {
      matrix.Read(Data<T>(a) + i * stack.size());
      WithWork<T>([&](T* work, const int* length) {
        const int asked = *length < 0 ? -1 : integer_length;
        syevd(options.data(), options.data() + 1, &stack.rows, matrix.data(), &stride,
              Data<T>(values) + i * n, work, length, integers.data(), &asked, Data<int>(info) + i,
              kOne, kOne);
      });
      matrix.Write(Data<T>(vectors) + i * stack.size());
    }
  });
}

namespace {

TVM_FFI_STATIC_INIT_BLOCK() {
  support::Functions()
      .def("distir.lapack.potrf", Potrf)
      .def("distir.lapack.getrf", Getrf)
      .def("distir.lapack.trsm", Trsm)
      .def("distir.lapack.geqrf", Geqrf)
      .def("distir.lapack.orgqr", Orgqr)
      .def("distir.lapack.gesdd", Gesdd)
      .def("distir.lapack.syevd", Syevd);
}

}  // namespace

}  // namespace distir::runtime
