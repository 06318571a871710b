// Knows which arguments of a step results may be written to.
#include "runtime/session/donated_tensors.h"

#include <tvm/ffi/function.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/kernels/strided_copy.h"
#include "runtime/session/shard.h"
#include "runtime/session/worker_context.h"
#include "support/error.h"
#include "support/functions.h"

namespace distir::runtime {

namespace ffi = tvm::ffi;

namespace {

ffi::ObjectPtr<ffi::TensorObj> PointerTo(const ffi::Tensor& tensor) {
  return ffi::details::ObjectUnsafe::ObjectPtrFromObjectRef<ffi::TensorObj>(tensor);
}

}  // namespace

void DonatedTensors::StepBegins(const ffi::Array<ffi::Any>& arguments,
                                const std::vector<ffi::Any>& cut) {
  arguments_ = &arguments;
  cut_ = &cut;
  if (!results_.empty()) FindOwned();  // what is an argument of any step is donated no more
}

void DonatedTensors::StepEnds() {
  arguments_ = nullptr;
  cut_ = nullptr;
  owned_.clear();
}

void DonatedTensors::FindOwned() {
  if (arguments_ == nullptr) return;
  const ffi::Array<ffi::Any>& arguments = *std::exchange(arguments_, nullptr);
  const std::vector<ffi::Any>& cut = *std::exchange(cut_, nullptr);
  std::unordered_set<const ffi::Object*> seen;
  for (size_t i = 0; i < cut.size(); ++i) {
    const ffi::Object* object = cut[i].as<ffi::TensorObj>();
    if (object == nullptr) continue;
    const bool is_new = arguments[i].as<ShardObj>() != nullptr;
    const bool is_result = results_.erase(object) > 0;
    if (!seen.insert(object).second) {
      owned_.erase(object);
    } else if (is_new || is_result) {
      owned_.insert(object);
    }
  }
}

ffi::Tensor DonatedTensors::Take(const ffi::Tensor& argument, bool copies) {
  FindOwned();
  ffi::Tensor taken = argument;
  if (owned_.erase(PointerTo(argument).get()) == 0) {
    taken = NewArgument(argument.shape(), argument.dtype(), nullptr);
    const size_t bytes = ffi::GetDataSize(argument);
    if (copies && bytes > 0) std::memcpy(DataOf(taken), DataOf(argument), bytes);
  }
  if (results_.size() >= most_results_) Forget();
  const ffi::ObjectPtr<ffi::TensorObj> pointer = PointerTo(taken);
  results_.emplace(pointer.get(), pointer);
  return taken;
}

void DonatedTensors::Forget() {
  for (auto each = results_.begin(); each != results_.end();) {
    each = each->second.expired() ? results_.erase(each) : std::next(each);
  }
  most_results_ = std::max(most_results_, 2 * results_.size());
}

namespace {

ffi::Tensor Take(const ffi::Tensor& argument, bool copies) {
  DISTIR_REQUIRE(argument.device().device_type == kDLCPU && argument.IsContiguous(), ValueError)
      << "donated: an argument is not contiguous in host memory";
  return WorkerContext::Current().donated().Take(argument, copies);
}

TVM_FFI_STATIC_INIT_BLOCK() {
  support::Functions()
      .def("distir.runtime.donated",
           [](const ffi::Tensor& argument) { return Take(argument, true); })
      .def("distir.runtime.donated_memory",
           [](const ffi::Tensor& argument) { return Take(argument, false); })
      // A step of its own: what is an argument of one is not donated later.
      .def("distir.runtime.keep_argument", [](const ffi::Any&) {});
}

}  // namespace

}  // namespace distir::runtime
