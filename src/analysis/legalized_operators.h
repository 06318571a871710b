/*!
 * \file analysis/legalized_operators.h
 * \brief Caches the kernels that TVM made of operators, for later modules. Legalising is the most
 * expensive part of an estimate, and the modules of a sweep have few different operators.
 *
 * Worked example: of `operator_3(p0): return R.multiply(p0, 2.0)`, which OutlineOperators wrote,
 * LegalizeOps makes `operator_3(p0): return R.call_tir(multiply, p0)` and a kernel. In the next
 * module that has an equal function, it is written so from the beginning.
 */
#ifndef DISTIR_ANALYSIS_LEGALIZED_OPERATORS_H_
#define DISTIR_ANALYSIS_LEGALIZED_OPERATORS_H_

#include <cstddef>
#include <utility>
#include <vector>

#include "analysis/structural_index.h"
#include "ir/node.h"

namespace distir::analysis {

/*! \brief Kernels of operators for one target. */
class LegalizedOperators {
 public:
  /*! \brief A module of OutlineOperators, with the operators that are known as TVM writes them. */
  ir::IRModule WithKnown(const ir::IRModule& outlined);
  /*!
   * \brief Learns what has become of the others.
   * \param outlined As it was given to WithKnown before.
   * \param legalized Output of LegalizeOps for the result.
   */
  void Learn(const ir::IRModule& outlined, const ir::IRModule& legalized);

 private:
  class Renaming;
  using Kernel = std::pair<ir::GlobalVar, ir::BaseFunc>;
  struct Known {
    ir::Function function;  // null until it is learnt
    std::vector<Kernel> kernels;
  };
  /*! \brief A kernel by a name that no other one has. */
  const Kernel& KernelOf(const ir::GlobalVar& name, const ir::BaseFunc& kernel);
  Known& Find(const ir::BaseFunc& function);

  StructuralIndex operators_, kernels_;
  std::vector<Known> known_;      // by number
  std::vector<Kernel> distinct_;  // by number
};

}  // namespace distir::analysis
#endif  // DISTIR_ANALYSIS_LEGALIZED_OPERATORS_H_
