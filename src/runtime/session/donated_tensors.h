/*!
 * \file runtime/session/donated_tensors.h
 * \brief Knows which arguments of a step nobody but the worker has, so that results of the step may
 * be written to their memory.
 *
 * Such are shards that the worker has cut for this step, and results of an earlier step that were
 * made to be donated (`distir.runtime.donated`), unless they were arguments of another step
 * since: what that has returned may be the same memory.
 *
 * Worked example: a training step that donates its state, called with NumPy arrays first:
 * \code
 *   new = distir.runtime.donated(w)  // w was cut for this step: w itself, which becomes a result
 *   new = distir.runtime.donated(w)  // the next step, with that result: w itself again
 *   evaluate(w)
 *   new = distir.runtime.donated(w)  // a copy of w, which becomes a result
 * \endcode
 */
#ifndef DISTIR_RUNTIME_SESSION_DONATED_TENSORS_H_
#define DISTIR_RUNTIME_SESSION_DONATED_TENSORS_H_

#include <tvm/ffi/any.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>

#include <cstddef>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace distir::runtime {

/*! \brief Of one worker, which alone calls it. */
class DonatedTensors {
 public:
  /*! \param arguments As given. \param cut The same with their shards cut. */
  void StepBegins(const tvm::ffi::Array<tvm::ffi::Any>& arguments,
                  const std::vector<tvm::ffi::Any>& cut);
  void StepEnds();

  /*! \brief The argument itself if the step may write to it, else a new tensor with its elements
   * (if `copies`). The result of the step that is written there may be donated to a later one. */
  tvm::ffi::Tensor Take(const tvm::ffi::Tensor& argument, bool copies);

 private:
  void FindOwned();
  void Forget();

  // Of the step, while it runs; null once owned_ is known, which steps that donate ask for.
  const tvm::ffi::Array<tvm::ffi::Any>* arguments_ = nullptr;
  const std::vector<tvm::ffi::Any>* cut_ = nullptr;
  std::unordered_set<const tvm::ffi::Object*> owned_;  // arguments of the step
  // Results that may be donated. What is weakly held has its address to itself.
  std::unordered_map<const tvm::ffi::Object*, tvm::ffi::WeakObjectPtr<tvm::ffi::TensorObj>>
      results_;
  size_t most_results_ = 64;  // before those that are gone are looked for
};

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_SESSION_DONATED_TENSORS_H_
