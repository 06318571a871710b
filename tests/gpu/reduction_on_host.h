/*!
 * \file tests/gpu/reduction_on_host.h
 * \brief Reductions as NCCL makes them, on host memory: of every type, rounded after each step.
 */
#ifndef DISTIR_TESTS_GPU_REDUCTION_ON_HOST_H_
#define DISTIR_TESTS_GPU_REDUCTION_ON_HOST_H_

#include <cstddef>
#include <vector>

namespace on_host {

/*! \brief Bytes of an element of a type of NCCL. */
int BytesOf(int dtype);

/*!
 * \brief Reduces elements of all ranks.
 * \param sources What each rank brings.
 * \param begin The first element.
 * \param count How many elements.
 * \param dtype NCCL's type.
 * \param operation NCCL's operation.
 * \param out Where the result goes: so many elements.
 */
void Reduce(const std::vector<const char*>& sources, size_t begin, size_t count, int dtype,
            int operation, char* out);

}  // namespace on_host

#endif  // DISTIR_TESTS_GPU_REDUCTION_ON_HOST_H_
