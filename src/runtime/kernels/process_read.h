/*!
 * \file runtime/kernels/process_read.h
 * \brief Copies a box out of the memory of another process of this machine.
 *
 * The system reads for whoever may trace that process (process_vm_readv, ptrace(2)): as a rule the
 * same user, with Yama (Ubuntu) its ancestors only. It goes by way of a buffer that stays in the
 * caches, since the rows of a box lie apart in both memories, and each range that the system is
 * asked for takes as long as some thousand bytes.
 */
#ifndef DISTIR_RUNTIME_KERNELS_PROCESS_READ_H_
#define DISTIR_RUNTIME_KERNELS_PROCESS_READ_H_

#include <sys/types.h>

#include <cstdint>

#include "runtime/kernels/strided_copy.h"

namespace distir::runtime {

/*!
 * \brief Runs a copy.
 * \param process Whose memory the source is.
 * \param source Of the first element, an address of that process; strides are not negative.
 * \param result_bytes Bytes that are written before they are read.
 * \return 0, or the number of the error (errno) by which the system has refused to read.
 */
int ReadProcess(pid_t process, const BoxCopy& copy, const char* source, char* target,
                int64_t result_bytes);

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_KERNELS_PROCESS_READ_H_
