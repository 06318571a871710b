/*!
 * \file runtime/cublaslt/products.h
 * \brief Matrix products of one worker by cuBLASLt: its handle, its workspace, and the algorithms
 * chosen so far.
 *
 * A product is D = activation(A B + C + bias) on column-major matrices, in a batch whose matrices
 * are one stride apart. cuBLASLt's heuristic is asked once for each product of other sizes,
 * strides, types, epilogue or alignment. Sums are float32, of float64 float64; TF32 is not used.
 */
#ifndef DISTIR_RUNTIME_CUBLASLT_PRODUCTS_H_
#define DISTIR_RUNTIME_CUBLASLT_PRODUCTS_H_

#include <array>
#include <map>
#include <memory>

#include "runtime/cublaslt/abi.h"

namespace distir::runtime::cublaslt {

/*! \brief A matrix as it lies in memory: columns are `ld` elements apart. */
struct Matrix {
  int64_t rows = 1, cols = 1, ld = 1;
  /*! \brief Elements between matrices of a batch; 0 if all use the same one. */
  int64_t batch_stride = 0;
  bool transposed = false;  // of A and B
  int type = 0;             // cudaDataType
};

/*! \brief Sizes and form of a product; C has the layout of D. */
struct ProductForm {
  Matrix a, b, d;
  int64_t batch = 1;
  int epilogue = kCublasltEpilogueDefault;
  bool adds = false;  // C is added
};

/*! \brief Addresses of a product; c and bias are null where the form has none. */
struct ProductData {
  const void *a, *b, *c, *bias;
  void* d;
};

class LtProducts {
 public:
  /*! \brief Opens cuBLASLt on a CUDA device, which is the current one. */
  explicit LtProducts(int device);
  ~LtProducts();
  LtProducts(const LtProducts&) = delete;
  LtProducts& operator=(const LtProducts&) = delete;

  /*!
   * \brief Enqueues a product.
   * \throws RuntimeError if cuBLASLt refuses it; names the library, its version, and the sizes.
   */
  void Run(const ProductForm& form, const ProductData& data, void* stream);

 private:
  struct Plan;
  using Key = std::array<int64_t, 25>;

  Plan& FindPlan(const ProductForm& form, const ProductData& data);
  void* Workspace(size_t bytes, void* stream);

  const int device_;
  Handle handle_ = nullptr;
  void* workspace_ = nullptr;
  void* stream_ = nullptr;  // of the workspace
  std::map<Key, std::unique_ptr<Plan>> plans_;
};

}  // namespace distir::runtime::cublaslt

#endif  // DISTIR_RUNTIME_CUBLASLT_PRODUCTS_H_
