/*!
 * \file runtime/kernels/parallel.h
 * \brief Divides the work of a kernel among the threads of this worker.
 */
#ifndef DISTIR_RUNTIME_KERNELS_PARALLEL_H_
#define DISTIR_RUNTIME_KERNELS_PARALLEL_H_

#include <cstdint>
#include <functional>

namespace distir::runtime {

/*!
 * \brief Calls `run(part, parts)` once for each of some parts, by TVM's pool of threads of this
 *        thread: each worker of a session has its own share of the cores.
 * \param operations Multiplications of the whole; little work is one part, in this thread.
 * \param run Must not throw.
 */
void RunInParts(double operations, const std::function<void(int64_t part, int64_t parts)>& run);

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_KERNELS_PARALLEL_H_
