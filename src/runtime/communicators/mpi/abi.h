/*!
 * \file runtime/communicators/mpi/abi.h
 * \brief Declarations of MPI functions in use, without MPI's headers, in its three ABIs.
 *
 * A library is loaded when a session asks for it, so one build of this library works with and
 * without any MPI. Constants are those of mpi_abi.h (the standard ABI of MPI 5), of MPICH's mpi.h
 * (MPICH and its kin, the ABI initiative of 2013) and of Open MPI's mpi.h, whose handles are
 * addresses of objects in its library. tests/backends/test_mpi.py compares this file with the real
 * headers where they are installed.
 *
 * A handle is a pointer in the standard ABI and in Open MPI, and an int in MPICH. It is a pointer
 * here: an int is passed in the low half of the register, or of the slot of the stack, that a
 * pointer is passed in, on x86-64 and on AArch64 under Linux.
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_MPI_ABI_H_
#define DISTIR_RUNTIME_COMMUNICATORS_MPI_ABI_H_

#include <cstdint>

namespace distir::runtime::mpi {

using Handle = void*;

constexpr int kSuccess = 0;
constexpr int kUndefined = -32766;  // MPI_UNDEFINED, in all of them
constexpr int kErrorTextBytes = 512;

/*! \brief Names and numbers of one ABI. */
struct Abi {
  const char* name;
  // Threads: MPI_THREAD_SERIALIZED, MPI_THREAD_MULTIPLE.
  int serialized, multiple;
  int any_source, any_tag;
  // Offsets of MPI_SOURCE and MPI_TAG in a status, in ints.
  int source_in_status, tag_in_status;
  // Those that are handles: numbers, or (Open MPI) 0 until symbols have been looked up.
  uintptr_t world, byte, errors_return;
  uintptr_t int8, int16, int32, int64, uint8, uint16, uint32, uint64, float32, float64;
  uintptr_t sum, max, min, prod;
};

constexpr Abi kStandardAbi{"the standard ABI of MPI 5",
                           2048,
                           4096,
                           -1,
                           -2,
                           0,
                           1,
                           0x101,
                           0x247,
                           0x143,
                           0x240,
                           0x248,
                           0x250,
                           0x258,
                           0x241,
                           0x249,
                           0x251,
                           0x259,
                           0x210,
                           0x214,
                           0x21,
                           0x23,
                           0x22,
                           0x24};

constexpr Abi kMpichAbi{
    "MPICH's ABI", 2,          3,          -2,         -1,         2,          3,
    0x44000000,    0x4c00010d, 0x54000001, 0x4c000137, 0x4c000238, 0x4c000439, 0x4c00083a,
    0x4c00013b,    0x4c00023c, 0x4c00043d, 0x4c00083e, 0x4c00040a, 0x4c00080b, 0x58000003,
    0x58000001,    0x58000002, 0x58000004};

/*! \brief Open MPI's ABI but for handles, which OpenMpiSymbols names. */
constexpr Abi kOpenMpiAbi{
    "Open MPI's ABI", 2, 3, -1, -1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};

// SYMBOL(field, name)
#define DISTIR_OPEN_MPI_SYMBOLS(SYMBOL)         \
  SYMBOL(world, ompi_mpi_comm_world)            \
  SYMBOL(byte, ompi_mpi_byte)                   \
  SYMBOL(errors_return, ompi_mpi_errors_return) \
  SYMBOL(int8, ompi_mpi_int8_t)                 \
  SYMBOL(int16, ompi_mpi_int16_t)               \
  SYMBOL(int32, ompi_mpi_int32_t)               \
  SYMBOL(int64, ompi_mpi_int64_t)               \
  SYMBOL(uint8, ompi_mpi_uint8_t)               \
  SYMBOL(uint16, ompi_mpi_uint16_t)             \
  SYMBOL(uint32, ompi_mpi_uint32_t)             \
  SYMBOL(uint64, ompi_mpi_uint64_t)             \
  SYMBOL(float32, ompi_mpi_float)               \
  SYMBOL(float64, ompi_mpi_double)              \
  SYMBOL(sum, ompi_mpi_op_sum)                  \
  SYMBOL(max, ompi_mpi_op_max)                  \
  SYMBOL(min, ompi_mpi_op_min)                  \
  SYMBOL(prod, ompi_mpi_op_prod)

/*! \brief A status of any ABI: the largest has 32 bytes. */
struct Status {
  int words[16];
};

// FUNCTION(name, types of the arguments); all of them return an int.
#define DISTIR_MPI_FUNCTIONS(FUNCTION)                                                            \
  FUNCTION(MPI_Initialized, (int*))                                                               \
  FUNCTION(MPI_Finalized, (int*))                                                                 \
  FUNCTION(MPI_Init_thread, (int*, char***, int, int*))                                           \
  FUNCTION(MPI_Query_thread, (int*))                                                              \
  FUNCTION(MPI_Finalize, ())                                                                      \
  FUNCTION(MPI_Error_string, (int, char*, int*))                                                  \
  FUNCTION(MPI_Comm_rank, (Handle, int*))                                                         \
  FUNCTION(MPI_Comm_size, (Handle, int*))                                                         \
  FUNCTION(MPI_Comm_idup, (Handle, Handle*, Handle*))                                             \
  FUNCTION(MPI_Comm_split, (Handle, int, int, Handle*))                                           \
  FUNCTION(MPI_Comm_free, (Handle*))                                                              \
  FUNCTION(MPI_Comm_set_errhandler, (Handle, Handle))                                             \
  FUNCTION(MPI_Bcast, (void*, int, Handle, int, Handle))                                          \
  FUNCTION(MPI_Isend, (const void*, int, Handle, int, int, Handle, Handle*))                      \
  FUNCTION(MPI_Improbe, (int, int, Handle, int*, Handle*, Status*))                               \
  FUNCTION(MPI_Imrecv, (void*, int, Handle, Handle*, Handle*))                                    \
  FUNCTION(MPI_Get_count, (const Status*, Handle, int*))                                          \
  FUNCTION(MPI_Test, (Handle*, int*, Status*))                                                    \
  FUNCTION(MPI_Ibarrier, (Handle, Handle*))                                                       \
  FUNCTION(MPI_Iallreduce, (const void*, void*, int, Handle, Handle, Handle, Handle*))            \
  FUNCTION(MPI_Ireduce_scatter_block, (const void*, void*, int, Handle, Handle, Handle, Handle*)) \
  FUNCTION(MPI_Iallgather, (const void*, int, Handle, void*, int, Handle, Handle, Handle*))       \
  FUNCTION(MPI_Ialltoall, (const void*, int, Handle, void*, int, Handle, Handle, Handle*))

// Extensions of Open MPI and of MPICH and its kin; null in a library that has no such function.
#define DISTIR_OPTIONAL_MPI_FUNCTIONS(FUNCTION) \
  FUNCTION(MPIX_Query_cuda_support, ())         \
  FUNCTION(MPIX_GPU_query_support, (int, int*))

constexpr int kGpuSupportCuda = 0;  // MPIX_GPU_SUPPORT_CUDA of MPICH

#define DISTIR_DECLARE(name, Arguments) int(*name) Arguments = nullptr;

/*! \brief Addresses of MPI's functions. */
struct Functions {
  DISTIR_MPI_FUNCTIONS(DISTIR_DECLARE)
  DISTIR_OPTIONAL_MPI_FUNCTIONS(DISTIR_DECLARE)
};

#undef DISTIR_DECLARE

}  // namespace distir::runtime::mpi

#endif  // DISTIR_RUNTIME_COMMUNICATORS_MPI_ABI_H_
