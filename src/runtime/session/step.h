/*!
 * \file runtime/session/step.h
 * \brief Runs a worker's part of a step, and describes its failure.
 */
#ifndef DISTIR_RUNTIME_SESSION_STEP_H_
#define DISTIR_RUNTIME_SESSION_STEP_H_

#include <tvm/ffi/any.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

#include <cstdint>
#include <string>

#include "runtime/session/job.h"
#include "runtime/session/session_state.h"
#include "runtime/session/worker_context.h"

namespace distir::runtime {

/*! \brief The exception that is being handled. */
Failure DescribeCurrentException(int rank, const std::string& function,
                                 const std::string& operation);

/*! \brief Number of a session's step. */
struct StepNumber {
  int64_t step;
  int64_t call;  // the first step of the call of a function that it is part of
};

/*!
 * \brief Runs a function as the worker that this thread is; shards among its arguments are cut.
 *
 * Nothing is thrown: what the function throws is the session's failure.
 */
WorkTime RunStep(WorkerContext* worker, const StepNumber& number, const std::string& name,
                 const tvm::ffi::Optional<tvm::ffi::Function>& function,
                 const tvm::ffi::Array<tvm::ffi::Any>& arguments, tvm::ffi::Any* result);

/*! \brief A failure as Python reads it. */
tvm::ffi::Map<tvm::ffi::String, tvm::ffi::Any> FailureToMap(const Failure& failure,
                                                            const SessionState& state);

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_SESSION_STEP_H_
