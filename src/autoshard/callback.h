/*!
 * \file autoshard/callback.h
 * \brief Calls a Python function that may stop a search early.
 */
#ifndef DISTIR_AUTOSHARD_CALLBACK_H_
#define DISTIR_AUTOSHARD_CALLBACK_H_

#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

#include "autoshard/solver.h"

namespace distir::autoshard {

/*!
 * \brief Asks whether the search should end.
 *
 * Python raises KeyboardInterrupt where a function of Python begins, before it can handle it. The
 * interrupt ends the search like any other answer, and the best so far is not lost.
 */
inline bool Ends(const tvm::ffi::Function& stop, const Solution& best) {
  try {
    return stop(best.cost, best.bound).cast<bool>();
  } catch (const tvm::ffi::Error& error) {
    if (error.kind() != "KeyboardInterrupt") throw;
    return true;
  }
}

}  // namespace distir::autoshard
#endif  // DISTIR_AUTOSHARD_CALLBACK_H_
