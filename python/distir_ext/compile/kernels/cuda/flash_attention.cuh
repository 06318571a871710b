// Attention without its scores in memory, on the tensor cores of sm_80 and later.
//
// A block of 128 threads has 64 rows of queries, and goes through the keys and values in tiles.
// Scores stay in registers; maxima, sums and results are brought up to date after each tile (Dao et
// al., FlashAttention-2, 2023). Query heads that share a key head are rows of one block, so that a
// key is read once for all of them. Where there are few rows, as in a decode step, the keys are
// split among blocks, and CombineAttention adds what they have found.
//
// TVM's kernels call these functions; flash_attention.py writes such kernels and says what the
// arguments are. A test runs this source on the host (DISTIR_BLOCK_ON_HOST), where the functions
// that are instructions of a GPU here are loops.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace distir {

constexpr float kLog2E = 1.4426950408889634f;
constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kRows = 16 * kWarps;

// ---- instructions

#ifndef DISTIR_BLOCK_ON_HOST

__device__ __forceinline__ unsigned SharedAddress(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

/*! \brief Begins to copy 16 bytes to shared memory, or to write zeros there. */
__device__ __forceinline__ void CopyAsync(void* to, const void* from, bool is_read) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(SharedAddress(to)),
               "l"(from), "r"(is_read ? 16 : 0)
               : "memory");
}

__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;\n" ::: "memory");
}

/*! \brief Loads four matrices of 8 x 8; each lane names a row of one of them. */
__device__ __forceinline__ void LoadMatrices(unsigned (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(SharedAddress(row))
               : "memory");
}

/*! \brief As LoadMatrices, each of them transposed. */
__device__ __forceinline__ void LoadTransposed(unsigned (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(SharedAddress(row))
               : "memory");
}

#define DISTIR_MULTIPLY_ADD(TYPE)                                                       \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE                   \
               ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n" \
               : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])                 \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))

template <typename T>
struct Small;

template <>
struct Small<half> {
  static __device__ __forceinline__ void MultiplyAdd(float (&sum)[4], const unsigned (&a)[4],
                                                     unsigned b0, unsigned b1) {
    DISTIR_MULTIPLY_ADD("f16");
  }
};

template <>
struct Small<__nv_bfloat16> {
  static __device__ __forceinline__ void MultiplyAdd(float (&sum)[4], const unsigned (&a)[4],
                                                     unsigned b0, unsigned b1) {
    DISTIR_MULTIPLY_ADD("bf16");
  }
};

#undef DISTIR_MULTIPLY_ADD

/*! \brief The value of the lane whose number differs by these bits. */
__device__ __forceinline__ float OfLane(float value, int bits) {
  return __shfl_xor_sync(0xffffffffu, value, bits);
}

#endif  // DISTIR_BLOCK_ON_HOST

template <typename T>
__device__ __forceinline__ T Rounded(float value);

template <>
__device__ __forceinline__ half Rounded<half>(float value) {
  return __float2half_rn(value);
}

template <>
__device__ __forceinline__ __nv_bfloat16 Rounded<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

__device__ __forceinline__ float Wide(half value) { return __half2float(value); }
__device__ __forceinline__ float Wide(__nv_bfloat16 value) { return __bfloat162float(value); }

template <typename T>
__device__ __forceinline__ unsigned Pack(float low, float high) {
  union {
    T pair[2];
    unsigned bits;
  } packed;
  packed.pair[0] = Rounded<T>(low);
  packed.pair[1] = Rounded<T>(high);
  return packed.bits;
}

/*! \brief Minus infinity, the score of a key that is masked. */
__device__ __forceinline__ float None() { return __uint_as_float(0xff800000u); }

// ---- tiles in shared memory

/*!
 * \brief Rows of numbers in chunks of 8, which change places within 8 chunks: those of a column lie
 * in different banks.
 */
template <typename T, int Depth>
struct Tile {
  static constexpr int kSteps = (Depth + 15) / 16;  // products that a row takes part in
  static constexpr int kChunks = 2 * kSteps;
  static constexpr int kPitch = (Depth + 63) / 64 * 64;
  static constexpr int kLanes = kChunks <= 8 ? 8 : kChunks <= 16 ? 16 : 32;  // threads of a row

  /*! \brief Copies rows of which the first `num_rows` are there; the others are zeros. */
  template <int Rows, typename Source>
  static __device__ __forceinline__ void Copy(T* tile, const T* any, int num_rows, Source source) {
    const int chunk = threadIdx.x % kLanes, first = threadIdx.x / kLanes;
    if (chunk >= kChunks) return;
#pragma unroll
    for (int i = 0; i < Rows * kLanes / kThreads; ++i) {
      const int row = first + i * (kThreads / kLanes);
      const bool is_read = row < num_rows && chunk * 8 < Depth;
      CopyAsync(tile + row * kPitch + (chunk ^ (row & 7)) * 8,
                is_read ? source(row) + chunk * 8 : any, is_read);
    }
  }
};

/*! \brief The matrices of 16 x 16 in a tile: what a lane loads of them. */
template <typename T, int Depth>
struct Matrices {
  /*! \brief The lane loads a row of the first 16, and the left or the right chunk. */
  __device__ __forceinline__ Matrices(const T* tile, int row, int side)
      : row_(tile + row * Tile<T, Depth>::kPitch), mask_(side ^ (row & 7)) {}

  /*! \brief That row in the matrix at 16 * row, 16 * column. */
  __device__ __forceinline__ const T* At(int row, int column) const {
    return row_ + 16 * row * Tile<T, Depth>::kPitch + ((2 * column) ^ mask_) * 8;
  }

 private:
  const T* row_;
  int mask_;
};

struct AttentionSizes {
  long long batch, queries, keys;
  long long bias_strides[4];  // of batch, head, query, key; 0 where one number is for all
  float scale;                // of the scores
  long long offset;           // with a causal mask, query i sees the keys up to i + offset
};

/*! \brief The rows and the part of the keys that a block has. */
struct AttentionBlock {
  long long batch, head, first_row, split;
};

template <int Group, int Heads, int Splits, bool IsCausal>
__device__ __forceinline__ AttentionBlock BlockOf(long long queries) {
  const long long of_head = (queries * Group + kRows - 1) / kRows;
  long long index = blockIdx.x;
  AttentionBlock block;
  const long long tile = index % of_head;
  // The last rows of a causal mask have most keys, so they begin first.
  block.first_row = (IsCausal ? of_head - 1 - tile : tile) * kRows;
  index /= of_head;
  block.split = index % Splits;
  index /= Splits;
  block.head = index % Heads;
  block.batch = index / Heads;
  return block;
}

// ---- attention

/*!
 * \brief Attention of a block.
 * \tparam T half or __nv_bfloat16.
 * \tparam Depth, ValueDepth Of a key, of a value; multiples of 8.
 * \tparam Heads, Group Heads of the keys, and query heads of each.
 * \tparam Keys Keys of a tile.
 * \tparam Splits Parts of the keys. With more than one, `sums` and `stats` get what
 * CombineAttention takes, otherwise `out` the result.
 */
template <typename T, int Depth, int ValueDepth, int Heads, int Group, int Keys, int Splits,
          bool IsCausal, bool HasBias>
__device__ __forceinline__ void AttentionOfBlock(const T* query, const T* key, const T* value,
                                                 const T* bias, T* out, float* sums, float* stats,
                                                 void* shared, const AttentionSizes& sizes) {
  constexpr int kSteps = Tile<T, Depth>::kSteps, kValueSteps = Tile<T, ValueDepth>::kSteps;
  T* query_tile = static_cast<T*>(shared);
  T* key_tile = query_tile + kRows * Tile<T, Depth>::kPitch;
  T* value_tile = key_tile + Keys * Tile<T, Depth>::kPitch;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int group = lane / 4, pair = lane % 4 * 2;
  const auto block = BlockOf<Group, Heads, Splits, IsCausal>(sizes.queries);
  const long long rows = sizes.queries * Group;

  const auto row_of = [&](int half_of_rows) {
    return block.first_row + warp * 16 + half_of_rows * 8 + group;
  };
  // Rows of the block are (query, head of its group).
  const auto head_of = [&](long long row) { return block.head * Group + row % Group; };
  const auto index_of = [&](long long row) {
    return (block.batch * sizes.queries + row / Group) * (Heads * Group) + head_of(row);
  };
  const long long part = ((sizes.keys + Keys - 1) / Keys + Splits - 1) / Splits * Keys;
  const long long begin = block.split * part;
  long long end = begin + part < sizes.keys ? begin + part : sizes.keys;
  if (IsCausal) {
    const long long last = block.first_row + kRows < rows ? block.first_row + kRows : rows;
    const long long seen = (last - 1) / Group + sizes.offset + 1;
    end = seen < end ? seen : end;
  }
  const long long pitch = static_cast<long long>(Heads) * Depth;
  const long long value_pitch = static_cast<long long>(Heads) * ValueDepth;
  const T* keys_of_head = key + block.batch * sizes.keys * pitch + block.head * Depth;
  const T* values_of_head =
      value + block.batch * sizes.keys * value_pitch + block.head * ValueDepth;
  const auto count_from = [&](long long first) {
    return static_cast<int>(sizes.keys - first < Keys ? sizes.keys - first : Keys);
  };
  const auto copy_keys = [&](long long first) {
    const T* from = keys_of_head + first * pitch;
    Tile<T, Depth>::template Copy<Keys>(key_tile, key, count_from(first),
                                        [=](int row) { return from + row * pitch; });
  };
  const auto copy_values = [&](long long first) {
    const T* from = values_of_head + first * value_pitch;
    Tile<T, ValueDepth>::template Copy<Keys>(value_tile, value, count_from(first),
                                             [=](int row) { return from + row * value_pitch; });
  };

  const int num_rows =
      static_cast<int>(rows - block.first_row < kRows ? rows - block.first_row : kRows);
  Tile<T, Depth>::template Copy<kRows>(query_tile, query, num_rows, [&](int row) {
    return query + index_of(block.first_row + row) * Depth;
  });
  if (begin < end) copy_keys(begin);
  const Matrices<T, Depth> queries(query_tile, warp * 16 + lane % 16, lane / 16);
  const Matrices<T, Depth> keys(key_tile, lane % 8 + lane / 16 * 8, lane / 8 % 2);
  const Matrices<T, ValueDepth> values(value_tile, lane % 16, lane / 16);

  // Of the 16 rows of a warp a lane has parts of two, 8 rows apart.
  float result[2 * kValueSteps][4] = {};
  float largest[2] = {None(), None()}, total[2] = {0, 0};
  for (long long first = begin; first < end; first += Keys) {
    WaitForCopies();
    __syncthreads();  // the keys are there, and nobody reads the values any more
    copy_values(first);

    float score[Keys / 8][4] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      unsigned a[4];
      LoadMatrices(a, queries.At(0, step));
#pragma unroll
      for (int i = 0; i < Keys / 16; ++i) {
        unsigned b[4];
        LoadMatrices(b, keys.At(i, step));
        Small<T>::MultiplyAdd(score[2 * i], a, b[0], b[1]);
        Small<T>::MultiplyAdd(score[2 * i + 1], a, b[2], b[3]);
      }
    }

    // Scores become exponents of 2. With a bias they are scaled before it is added.
    const float scale = sizes.scale * kLog2E;
    const float scale_later = HasBias ? 1 : scale;
    const bool is_cut = first + Keys > sizes.keys ||
                        (IsCausal && first + Keys - 1 > block.first_row / Group + sizes.offset);
#pragma unroll
    for (int half_of_rows = 0; half_of_rows < 2; ++half_of_rows) {
      const auto of_row = [&](int i) -> float& { return score[i / 2][2 * half_of_rows + i % 2]; };
      if (HasBias || is_cut) {
        const long long row = row_of(half_of_rows);
        const T* row_bias = bias;
        if (HasBias && row < rows)
          row_bias += block.batch * sizes.bias_strides[0] + head_of(row) * sizes.bias_strides[1] +
                      row / Group * sizes.bias_strides[2];
        long long last = sizes.keys;
        if (IsCausal && row / Group + sizes.offset + 1 < last)
          last = row / Group + sizes.offset + 1;
        const int seen = static_cast<int>(last - first);  // keys of the tile
#pragma unroll
        for (int i = 0; i < Keys / 4; ++i) {
          const int at = i / 2 * 8 + pair + i % 2;
          if (HasBias && at < seen)
            of_row(i) =
                of_row(i) * scale + Wide(row_bias[(first + at) * sizes.bias_strides[3]]) * kLog2E;
          if (at >= seen) of_row(i) = None();
        }
      }
      float most = None();
#pragma unroll
      for (int i = 0; i < Keys / 4; ++i) most = fmaxf(most, of_row(i));
      most = fmaxf(most, OfLane(most, 1));
      most = fmaxf(most, OfLane(most, 2));
      // The largest exponent so far; 0 for a row of which every key is masked.
      const float before = largest[half_of_rows];
      const float now = fmaxf(before, most * scale_later);
      const float subtracted = now == None() ? 0.0f : now;
      const float shrinks = exp2f(before - subtracted);
      largest[half_of_rows] = now;
      float sum = 0;
#pragma unroll
      for (int i = 0; i < Keys / 4; ++i) {
        of_row(i) = exp2f(of_row(i) * scale_later - subtracted);
        sum += of_row(i);
      }
      total[half_of_rows] = total[half_of_rows] * shrinks + sum;
#pragma unroll
      for (int i = 0; i < 2 * kValueSteps; ++i) {
        result[i][2 * half_of_rows] *= shrinks;
        result[i][2 * half_of_rows + 1] *= shrinks;
      }
    }

    WaitForCopies();
    __syncthreads();  // the values are there, and nobody reads the keys any more
    if (first + Keys < end) copy_keys(first + Keys);
#pragma unroll
    for (int step = 0; step < Keys / 16; ++step) {
      const float (&low)[4] = score[2 * step];
      const float (&high)[4] = score[2 * step + 1];
      const unsigned a[4] = {Pack<T>(low[0], low[1]), Pack<T>(low[2], low[3]),
                             Pack<T>(high[0], high[1]), Pack<T>(high[2], high[3])};
#pragma unroll
      for (int i = 0; i < kValueSteps; ++i) {
        unsigned b[4];
        LoadTransposed(b, values.At(step, i));
        Small<T>::MultiplyAdd(result[2 * i], a, b[0], b[1]);
        Small<T>::MultiplyAdd(result[2 * i + 1], a, b[2], b[3]);
      }
    }
  }
  WaitForCopies();

#pragma unroll
  for (int half_of_rows = 0; half_of_rows < 2; ++half_of_rows) {
    const long long row = row_of(half_of_rows);
    float sum = total[half_of_rows];
    sum += OfLane(sum, 1);
    sum += OfLane(sum, 2);
    if (row >= rows) continue;
    const long long index = index_of(row);
    const long long split = block.split * sizes.batch * sizes.queries * Heads * Group + index;
    if (Splits > 1 && pair == 0) {
      stats[2 * split] = largest[half_of_rows];
      stats[2 * split + 1] = sum;
    }
#pragma unroll
    for (int i = 0; i < 2 * kValueSteps; ++i) {
      const int at = 8 * i + pair;
      if (at >= ValueDepth) continue;
      const float low = result[i][2 * half_of_rows], high = result[i][2 * half_of_rows + 1];
      if (Splits > 1) {
        sums[split * ValueDepth + at] = low;
        sums[split * ValueDepth + at + 1] = high;
      } else {
        *reinterpret_cast<unsigned*>(out + index * ValueDepth + at) =
            Pack<T>(low / sum, high / sum);
      }
    }
  }
}

// ---- functions that kernels call

#define DISTIR_ATTENTION_SIZES                                                          \
  long long batch, long long queries, long long keys, long long batch_stride,           \
      long long head_stride, long long query_stride, long long key_stride, float scale, \
      long long offset

#define DISTIR_GIVEN_SIZES \
  {batch, queries, keys, {batch_stride, head_stride, query_stride, key_stride}, scale, offset}

/*! \brief Attention; without a bias that argument is not read. */
template <typename T, int Depth, int ValueDepth, int Heads, int Group, int Keys, bool IsCausal,
          bool HasBias>
__device__ __forceinline__ void Attention(const T* query, const T* key, const T* value,
                                          const T* bias, T* out, void* shared,
                                          DISTIR_ATTENTION_SIZES) {
  AttentionOfBlock<T, Depth, ValueDepth, Heads, Group, Keys, 1, IsCausal, HasBias>(
      query, key, value, bias, out, nullptr, nullptr, shared, DISTIR_GIVEN_SIZES);
}

/*! \brief Attention to parts of the keys. */
template <typename T, int Depth, int ValueDepth, int Heads, int Group, int Keys, bool IsCausal,
          bool HasBias, int Splits>
__device__ __forceinline__ void SplitAttention(const T* query, const T* key, const T* value,
                                               const T* bias, float* sums, float* stats,
                                               void* shared, DISTIR_ATTENTION_SIZES) {
  AttentionOfBlock<T, Depth, ValueDepth, Heads, Group, Keys, Splits, IsCausal, HasBias>(
      query, key, value, bias, nullptr, sums, stats, shared, DISTIR_GIVEN_SIZES);
}

#undef DISTIR_ATTENTION_SIZES
#undef DISTIR_GIVEN_SIZES

/*! \brief The result of a row, of what blocks have found in their parts of the keys. */
template <typename T, int ValueDepth, int Splits>
__device__ __forceinline__ void CombineAttention(const float* sums, const float* stats, T* out,
                                                 long long rows) {
  const long long row = blockIdx.x;
  float most = None();
  for (int split = 0; split < Splits; ++split) most = fmaxf(most, stats[2 * (split * rows + row)]);
  if (most == None()) most = 0;
  float total = 0;
  for (int split = 0; split < Splits; ++split) {
    const float* found = stats + 2 * (split * rows + row);
    total += exp2f(found[0] - most) * found[1];
  }
  for (int at = threadIdx.x; at < ValueDepth; at += kThreads) {
    float sum = 0;
    for (int split = 0; split < Splits; ++split) {
      const long long index = split * rows + row;
      sum += exp2f(stats[2 * index] - most) * sums[index * ValueDepth + at];
    }
    out[row * ValueDepth + at] = Rounded<T>(sum / total);
  }
}

}  // namespace distir
