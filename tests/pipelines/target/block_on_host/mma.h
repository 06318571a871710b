/*!
 * \file tests/pipelines/target/block_on_host/mma.h
 * \brief What kernels use of CUDA's mma.h, on the host: each thread of a warp has whole fragments.
 *
 * On a GPU the threads of a warp share a fragment; which element lies where is not specified, so
 * kernels cannot tell. Stores write the same numbers 32 times.
 */
#ifndef DISTIR_TESTS_BLOCK_ON_HOST_MMA_H_
#define DISTIR_TESTS_BLOCK_ON_HOST_MMA_H_

namespace nvcuda {
namespace wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };

template <typename Use, int M, int N, int K, typename T, typename Layout = void>
struct fragment {
  static constexpr int kRows = std::is_same_v<Use, matrix_b> ? K : M;
  static constexpr int kColumns = std::is_same_v<Use, matrix_a> ? K : N;
  T at[kRows][kColumns];
};

template <typename Fragment>
void fill_fragment(Fragment& fragment, float value) {
  for (auto& row : fragment.at)
    for (auto& element : row) element = value;
}

template <typename Use, int M, int N, int K, typename T, typename Layout>
void load_matrix_sync(fragment<Use, M, N, K, T, Layout>& to, const T* from, unsigned stride) {
  using Fragment = fragment<Use, M, N, K, T, Layout>;
  for (int i = 0; i < Fragment::kRows; ++i)
    for (int j = 0; j < Fragment::kColumns; ++j)
      to.at[i][j] = std::is_same_v<Layout, row_major> ? from[i * stride + j] : from[j * stride + i];
}

template <int M, int N, int K, typename T, typename LayoutA, typename LayoutB>
void mma_sync(fragment<accumulator, M, N, K, float>& to,
              const fragment<matrix_a, M, N, K, T, LayoutA>& a,
              const fragment<matrix_b, M, N, K, T, LayoutB>& b,
              const fragment<accumulator, M, N, K, float>& c) {
  float left[M][K], right[K][N];
  for (int i = 0; i < M; ++i)
    for (int k = 0; k < K; ++k) left[i][k] = static_cast<float>(a.at[i][k]);
  for (int k = 0; k < K; ++k)
    for (int j = 0; j < N; ++j) right[k][j] = static_cast<float>(b.at[k][j]);
  for (int i = 0; i < M; ++i) {
    for (int j = 0; j < N; ++j) {
      float sum = c.at[i][j];
      for (int k = 0; k < K; ++k) sum += left[i][k] * right[k][j];
      to.at[i][j] = sum;
    }
  }
}

template <int M, int N, int K>
void store_matrix_sync(float* to, const fragment<accumulator, M, N, K, float>& from,
                       unsigned stride, layout_t layout) {
  for (int i = 0; i < M; ++i)
    for (int j = 0; j < N; ++j)
      to[layout == mem_row_major ? i * stride + j : j * stride + i] = from.at[i][j];
}

}  // namespace wmma
}  // namespace nvcuda

#endif  // DISTIR_TESTS_BLOCK_ON_HOST_MMA_H_
