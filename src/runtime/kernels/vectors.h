/*!
 * \file runtime/kernels/vectors.h
 * \brief Vectors of the widest registers, in functions that are compiled for several generations of
 * CPUs; the loader takes those for the machine's own instructions.
 */
#ifndef DISTIR_RUNTIME_KERNELS_VECTORS_H_
#define DISTIR_RUNTIME_KERNELS_VECTORS_H_

#include <cstdint>
#include <cstring>

// Sanitizers are not ready when the loader asks which of them it is.
#if defined(__x86_64__) && !defined(__clang__) && __GNUC__ >= 12 && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define DISTIR_FOR_SEVERAL_CPUS \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define DISTIR_FOR_SEVERAL_CPUS
#endif
// Into each of the clones, with its instructions.
#define DISTIR_INLINE inline __attribute__((always_inline))

namespace distir::runtime {

// As many elements as the widest registers have; narrower ones are used in turns.
template <typename T>
struct Vector {
  static constexpr int64_t kSize = 64 / sizeof(T);
  typedef T Elements __attribute__((vector_size(64)));
};

template <typename T>
DISTIR_INLINE void Load(const T* from, typename Vector<T>::Elements* to) {
  std::memcpy(to, from, sizeof(*to));
}

/*! \brief Sum of the elements of a vector. */
template <typename T>
DISTIR_INLINE T SumOfElements(const typename Vector<T>::Elements& vector) {
  typedef T Half __attribute__((vector_size(32)));
  typedef T Quarter __attribute__((vector_size(16)));
  Half halves[2];
  std::memcpy(halves, &vector, sizeof(vector));
  halves[0] += halves[1];
  Quarter quarters[2];
  std::memcpy(quarters, &halves[0], sizeof(Half));
  quarters[0] += quarters[1];
  T sum = quarters[0][0];
  for (size_t i = 1; i < sizeof(Quarter) / sizeof(T); ++i) sum += quarters[0][i];
  return sum;
}

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_KERNELS_VECTORS_H_
