/*!
 * \file runtime/communicators/cpu/collective_call.h
 * \brief Description of a member's collective call, by which a group checks that its calls agree.
 *
 * It lies in memory that processes share, or is sent to other hosts, so it has no pointers.
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_CPU_COLLECTIVE_CALL_H_
#define DISTIR_RUNTIME_COMMUNICATORS_CPU_COLLECTIVE_CALL_H_

#include <tvm/ffi/container/tensor.h>

#include <cstdint>
#include <string>

namespace distir::runtime::cpu {

constexpr int kMaxDims = 16;

/*! \brief Everything about a call that must agree within a group. */
struct CollectiveCall {
  char operation[16] = "";
  int64_t step = 0;               // of a transfer: the call that it is part of
  int64_t arguments[2] = {0, 0};  // dims, reduction kind: what `operation` takes besides tensors
  DLDataType dtype{};
  int ndim = 0;
  int64_t shape[kMaxDims] = {};  // the first `ndim` are set

  CollectiveCall() = default;
  /*! \throws ValueError if the shape has more than kMaxDims dimensions. */
  CollectiveCall(const char* operation, int64_t step, DLDataType dtype, const int64_t* shape,
                 int ndim, int64_t argument0, int64_t argument1);

  /*! \brief True if this can be read at all: it may come from memory that others write to, or from
   * another host. */
  bool IsWellFormed() const;
  bool Matches(const CollectiveCall& other) const;
  std::string Describe() const;
};

/*! \brief Throws the ValueError for two members whose calls do not match. */
[[noreturn]] void ThrowDisagreement(int device, const CollectiveCall& call, int other_device,
                                    const CollectiveCall& other_call);

}  // namespace distir::runtime::cpu

#endif  // DISTIR_RUNTIME_COMMUNICATORS_CPU_COLLECTIVE_CALL_H_
