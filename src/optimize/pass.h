/*!
 * \file optimize/pass.h
 * \brief OptimizeCollectives: makes collectives fewer, smaller and earlier.
 */
#ifndef DISTIR_OPTIMIZE_PASS_H_
#define DISTIR_OPTIMIZE_PASS_H_

#include <tvm/ffi/container/array.h>

#include <set>
#include <string>

#include "optimize/optimization.h"

namespace distir::optimize {

/*!
 * \brief The names of the optimisations to run: those that are on by default, and what a user says
 * otherwise.
 * \throws ValueError naming an unknown one.
 */
std::set<std::string> Choose(const tvm::ffi::Array<tvm::ffi::String>& enable,
                             const tvm::ffi::Array<tvm::ffi::String>& disable);

/*! \brief Runs optimisations on a module after LegalizeRedistribute. */
ir::IRModule OptimizeCollectives(const ir::IRModule& mod, const std::set<std::string>& chosen,
                                 const Options& options);

}  // namespace distir::optimize
#endif  // DISTIR_OPTIMIZE_PASS_H_
