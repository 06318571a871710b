// Records begin and end of each operator while a worker is profiled.
#include "runtime/session/notes/profile.h"

#include <tvm/ffi/string.h>

#include <memory>

#include "runtime/session/job.h"
#include "runtime/session/worker_context.h"
#include "support/functions.h"

namespace distir::runtime {

namespace ffi = tvm::ffi;

namespace {

constexpr std::string_view kMachines = "vm.builtin.";
constexpr std::string_view kNewTensor = "distir.runtime.new_tensor";

bool StartsWith(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

}  // namespace

bool Profile::IsLeftOut(std::string_view name) {
  if (name == kNewTensor) return true;
  if (!StartsWith(name, kMachines)) return false;
  // These run kernels and functions, and say which side of a branch is taken.
  return name != "vm.builtin.call_tir_dyn" && name != "vm.builtin.invoke_closure" &&
         name != "vm.builtin.read_if_cond";
}

double Profile::Now() const {
  worker_.communicator().Synchronize();
  return runtime::Now();
}

void Profile::Begins(std::string_view name) {
  auto [known, is_new] = index_.emplace(name, static_cast<int>(names_.size()));
  if (is_new) names_.emplace_back(name);
  const int outer = open_.empty() ? -1 : open_.back();
  open_.push_back(static_cast<int>(events_.size()));
  worker_.traffic().TakeLast();
  events_.push_back({known->second, outer, 0, 0, -1, -1});
  events_.back().begin = Now();
}

void Profile::Ends(std::string_view name, int64_t value) {
  // An operator ended by an error is closed together with the one that contains it.
  while (!open_.empty() && names_[events_[open_.back()].name] != name) open_.pop_back();
  if (open_.empty()) return;
  Event& event = events_[open_.back()];
  open_.pop_back();
  event.end = Now();
  event.flow = worker_.traffic().TakeLast();
  event.value = value;
}

ffi::Array<ffi::Any> Profile::Rows() const {
  ffi::Array<ffi::Any> names, rows;
  for (const std::string& name : names_) names.push_back(ffi::String(name));
  for (const Event& event : events_) {
    if (event.end == 0) break;  // the step that asks
    rows.push_back(ffi::Array<ffi::Any>{static_cast<int64_t>(event.name),
                                        static_cast<int64_t>(event.outer), event.begin, event.end,
                                        static_cast<int64_t>(event.flow), event.value});
  }
  return {names, rows};
}

namespace {

TVM_FFI_STATIC_INIT_BLOCK() {
  support::Functions()
      .def("distir.runtime.profile_begin",
           []() {
             WorkerContext& worker = WorkerContext::Current();
             worker.profile = std::make_unique<Profile>(&worker);
           })
      .def("distir.runtime.profile_end", []() {
        WorkerContext& worker = WorkerContext::Current();
        const std::unique_ptr<Profile> profile = std::move(worker.profile);
        return profile == nullptr ? ffi::Array<ffi::Any>() : profile->Rows();
      });
}

}  // namespace

}  // namespace distir::runtime
