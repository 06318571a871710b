/*!
 * \file stages/work.h
 * \brief Time of an operator on one device, from its shapes and its factor rule.
 *
 * Every element of a result takes one operation, or a multiplication and an addition for each of
 * the numbers that are summed for it: the sizes of the factors that its last operand has and no
 * result (of a convolution, the kernel; of a lookup, the indices; of attention, the values). It
 * reads the operands, as far as operations can touch them, and writes the results. The time is that
 * of computing or that of memory, whichever is longer (the roofline model: Williams and others,
 * "Roofline: an insightful visual performance model", 2009). A symbolic dimension counts as 1024.
 *
 * Worked example: (8, 16) times (16, 32) is 2 * 8 * 32 * 16 operations; it reads 8 * 16 and 16 * 32
 * elements and writes 8 * 32.
 */
#ifndef DISTIR_STAGES_WORK_H_
#define DISTIR_STAGES_WORK_H_

#include <unordered_map>

#include "ir/node.h"
#include "rules/tir/rule.h"

namespace distir::stages {

namespace ffi = tvm::ffi;

/*! \brief Operations and bytes of one device per second. */
struct DeviceSpeed {
  double operations;
  double bytes;  // read from or written to memory
};

class WorkEstimate {
 public:
  WorkEstimate(const ir::IRModule& mod, DeviceSpeed speed)
      : mod_(mod), speed_(speed), kernels_(mod.functions()) {}

  /*! \brief Seconds of one binding. A call of a function takes what the function takes, a branch
   * what the longer side takes. */
  double SecondsOf(const ir::Binding& binding);

 private:
  double SecondsOf(const ir::Call& call, const ir::Type& result_ty);
  double SecondsOf(const ir::SeqExpr& seq);

  const ir::IRModule mod_;
  const DeviceSpeed speed_;
  rules::KernelTable kernels_;
  std::unordered_map<const ffi::Object*, double> of_functions_;
};

}  // namespace distir::stages
#endif  // DISTIR_STAGES_WORK_H_
