/*!
 * \file rules/tir/kernel.h
 * \brief Reads a TIR kernel for sharding: the iterators that index each dimension.
 *
 * Loops, block iterators and dimensions of buffers are ranges of one DigitTable; every access and
 * every binding of a block iterator links them. An iterator that is used as a number (in a
 * condition, a value) is pinned: every device must run all of it, or of the digits that are used
 * (of i % 8 the last three bits). One in an index that is no sum of digits is broken: where its
 * parts lie is not known.
 */
#ifndef DISTIR_RULES_TIR_KERNEL_H_
#define DISTIR_RULES_TIR_KERNEL_H_

#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "ir/tir_node.h"
#include "mesh/sharding.h"
#include "rules/tir/digits.h"

namespace distir::rules {

namespace ffi = tvm::ffi;

/*! \brief One assignment to an element of a buffer. */
struct Statement {
  const ffi::Object* buffer;
  ir::Expr value;
  bool is_init;
  std::vector<int> loops;       // ranges of the enclosing loops
  std::vector<int> iterators;   // of the enclosing block, and loops inside it
  std::vector<int> reductions;  // those of `iterators` that are reduction iterators
  /*! \brief kNone: no reduction that shards can share (another update, a start value that would
   * count more than once). */
  mesh::Reduction reduction = mesh::Reduction::kNone;
  /*! \brief Terms that a reduction combines into the element. */
  std::vector<ir::Expr> terms;
};

struct Kernel {
  DigitTable digits;
  std::unordered_map<const ffi::Object*, int> iterators;             // range of a loop or iterator
  std::unordered_map<const ffi::Object*, std::vector<int>> buffers;  // ranges of the dimensions
  std::unordered_map<const ffi::Object*, ir::Expr> extents;          // of a loop or iterator
  std::vector<ir::Expr> sizes;                                       // of the ranges
  std::vector<ir::Var> iterator_order;                               // as they stand in the kernel
  std::vector<ir::Var> intermediates;                                // buffers made inside
  std::vector<Statement> statements;                                 // in program order
  /*! \brief Largest divisor of ranges with a quotient or a remainder; kUnbounded if it is no
   * constant. */
  std::map<int, int64_t> divided;
  /*! \brief Buffers whose elements may not be of any value: some are positions, or divide
   * integers. */
  std::set<const ffi::Object*> positions;
  /*! \brief Variables, but for iterators, that are more than the size of something: they are in
   * an index, a value or a condition. */
  std::set<const ffi::Object*> numbers;
  /*! \brief Simplified indices, without quotients or remainders that have no effect. */
  std::unordered_map<const ffi::Object*, ir::Expr> plainer;
  /*! \brief Reason why the kernel was not understood; empty if it was. */
  std::string failure;
};

/*! \brief Reads a kernel; `digits` is solved unless there is a failure. */
Kernel ReadKernel(const ir::PrimFunc& function);

/*! \brief The buffers that an expression loads. */
std::vector<const ffi::Object*> LoadedBuffers(const ir::Expr& expr);

}  // namespace distir::rules
#endif  // DISTIR_RULES_TIR_KERNEL_H_
