// Runs a worker's part of a step, and describes its failure.
#include "runtime/session/step.h"

#include <tvm/ffi/error.h>

#include <exception>
#include <string_view>
#include <vector>

#include "runtime/session/shard.h"
#include "support/functions.h"

namespace distir::runtime {

namespace ffi = tvm::ffi;

Failure DescribeCurrentException(int rank, const std::string& function,
                                 const std::string& operation) {
  Failure failure{rank, function, operation, "RuntimeError", "", ""};
  try {
    throw;
  } catch (const ffi::Error& error) {
    failure.kind = error.kind();
    failure.message = error.message();
    failure.backtrace = error.backtrace();
  } catch (const std::exception& error) {
    failure.message = error.what();
  } catch (...) {
    failure.message = "an exception of unknown type";
  }
  return failure;
}

WorkTime RunStep(WorkerContext* worker, const StepNumber& number, const std::string& name,
                 const ffi::Optional<ffi::Function>& function,
                 const ffi::Array<ffi::Any>& arguments, ffi::Any* result) {
  SessionState& session = worker->session();
  const int rank = worker->rank();
  WorkTime time;
  worker->received_at = time.begin = Now();
  worker->communicator().CallBegins(number.call);
  worker->traffic().FunctionBegins(name);
  session.operator_name(rank).Set("");
  session.backend().StepBegins(rank, number.step);
  // Freed after a failure is made known: freeing memory of a GPU waits for what it runs, and that
  // may wait for peers until the session's communication is aborted.
  std::vector<ffi::Any> cut;
  try {
    if (session.failed()) {
      TVM_FFI_THROW(RuntimeError) << "the session has failed before this step";
    }
    // A step that begins or ends recording is none of the profile's.
    const bool is_profiled = worker->profile != nullptr;
    if (is_profiled) worker->profile->Begins(name);
    if (function.has_value()) {
      for (const ffi::Any& argument : arguments) {
        cut.push_back(CutShards(argument, worker->memory(), &worker->communicator()));
      }
      worker->donated().StepBegins(arguments, cut);
      std::vector<ffi::AnyView> views(cut.begin(), cut.end());
      function.value().CallPacked(ffi::PackedArgs(views.data(), static_cast<int>(views.size())),
                                  result);
    }
    if (is_profiled && worker->profile != nullptr) worker->profile->Ends(name, -1);
  } catch (...) {
    session.Fail(DescribeCurrentException(rank, name, session.operator_name(rank).Get()));
  }
  worker->donated().StepEnds();
  session.backend().StepEnds(rank, number.step);
  time.received = worker->received_at;
  time.end = Now();
  return time;
}

ffi::Map<ffi::String, ffi::Any> FailureToMap(const Failure& failure, const SessionState& state) {
  ffi::Map<ffi::String, ffi::Any> map;
  map.Set("worker", failure.rank);
  map.Set("device", failure.rank < 0 ? -1 : state.device_ids()[failure.rank]);
  map.Set("function", ffi::String(failure.function));
  map.Set("operator", ffi::String(failure.operation));
  map.Set("kind", ffi::String(failure.kind));
  map.Set("message", ffi::String(failure.message));
  map.Set("backtrace", ffi::String(failure.backtrace));
  return map;
}

namespace {

// Called by the virtual machine before and after each of its calls; see its set_instrument.
void RecordOperator(ffi::PackedArgs args, ffi::Any*) {
  WorkerContext* worker = WorkerContext::CurrentOrNull();
  if (worker == nullptr) return;
  const bool begins = args[2].cast<bool>();
  if (!begins && worker->profile == nullptr) return;
  const ffi::String name = args[1].cast<ffi::String>();
  const std::string_view text(name.data(), name.size());
  // Kept as text because what the virtual machine passes lives no longer than its call.
  if (begins) worker->session().operator_name(worker->rank()).Set(text);
  if (worker->profile == nullptr || Profile::IsLeftOut(text)) return;
  if (begins) {
    worker->profile->Begins(text);
  } else {
    const bool is_condition = text == "vm.builtin.read_if_cond";
    worker->profile->Ends(text, is_condition ? args[3].try_cast<int64_t>().value_or(-1) : -1);
  }
}

TVM_FFI_STATIC_INIT_BLOCK() {
  support::Functions().def_packed("distir.runtime.record_operator", RecordOperator);
}

}  // namespace

}  // namespace distir::runtime
