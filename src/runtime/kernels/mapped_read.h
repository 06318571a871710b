/*!
 * \file runtime/kernels/mapped_read.h
 * \brief Reads memory of a mapped file that another process may truncate meanwhile.
 *
 * A page of a mapping that lies behind the end of its file, or that a disk does not give, ends the
 * process that touches it (SIGBUS). Nobody can look before: the file may be cut off in between.
 */
#ifndef DISTIR_RUNTIME_KERNELS_MAPPED_READ_H_
#define DISTIR_RUNTIME_KERNELS_MAPPED_READ_H_

namespace distir::runtime {

/*!
 * \brief Calls `read(argument)`.
 * \param read It may be left in the middle, so it must own nothing: a BoxCopy's Run, a memcpy.
 * \return True if all of the memory was there.
 */
bool ReadMapped(void (*read)(const void* argument), const void* argument);

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_KERNELS_MAPPED_READ_H_
