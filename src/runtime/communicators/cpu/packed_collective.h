/*!
 * \file runtime/communicators/cpu/packed_collective.h
 * \brief A collective of a library (library_collectives.h), piece by piece.
 *
 * Blocks of tensors are packed into pieces of bounded size, some of which are on their way at a
 * time: so tensors need not be contiguous, counts fit into 32 bits, and memory that a library has
 * is never a tensor's.
 *
 * Example: in an all-gather along dimension 1 of [2, 3] from four members the block is [2, 3], has
 * one source, the operand, and four targets in the result, 3 elements after each other.
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_CPU_PACKED_COLLECTIVE_H_
#define DISTIR_RUNTIME_COMMUNICATORS_CPU_PACKED_COLLECTIVE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/communicators/library_collectives.h"

namespace distir::runtime::cpu {

struct PackedCollective {
  LibraryCall call;
  /*! \brief Of a block; strides in bytes. */
  std::vector<int64_t> extent, source_strides, target_strides;
  /*! \brief Where blocks begin: one, or one for each member. */
  std::vector<const char*> sources;
  std::vector<char*> targets;

  /*! \brief What a member sends at least. */
  int64_t LeastBytes(int num_members) const;

  void Run(LibraryCollectives* library, const std::vector<int>& ranks, const WaitUntil& wait,
           const std::function<std::string()>& describe) const;
};

}  // namespace distir::runtime::cpu

#endif  // DISTIR_RUNTIME_COMMUNICATORS_CPU_PACKED_COLLECTIVE_H_
