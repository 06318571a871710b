// Collects the numbers of the pass that runs in this thread, and hands them to Python.
#include "ir/report.h"

#include <tvm/ffi/container/map.h>

#include <chrono>
#include <map>

namespace distir::ir {

namespace ffi = tvm::ffi;

namespace {

struct Report {
  std::map<std::string, int64_t> done;
  std::map<std::string, std::map<std::string, int64_t>> skipped;
};

thread_local Report* running = nullptr;

/*! \brief Makes a report that of the running pass for as long as it lives. */
class Running {
 public:
  explicit Running(Report* report) : before_(running) { running = report; }
  ~Running() { running = before_; }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  Report* before_;
};

ffi::Map<ffi::String, int64_t> ToMap(const std::map<std::string, int64_t>& counts) {
  ffi::Map<ffi::String, int64_t> map;
  for (const auto& [name, count] : counts) map.Set(name, count);
  return map;
}

void Send(const std::string& pass, const Report& report, double seconds) {
  auto sink = ffi::Function::GetGlobal("distir.report");
  if (!sink.has_value()) return;  // a C++ host without Python
  ffi::Map<ffi::String, ffi::Map<ffi::String, int64_t>> skipped;
  for (const auto& [name, reasons] : report.skipped) skipped.Set(name, ToMap(reasons));
  (*sink)(pass, ToMap(report.done), skipped, seconds);
}

}  // namespace

void Count(const std::string& what, int64_t times) {
  if (running != nullptr && times != 0) running->done[what] += times;
}

void Skip(const std::string& what, const std::string& why, int64_t times) {
  if (running != nullptr && times != 0) running->skipped[what][why] += times;
}

IRModule RunReported(const std::string& pass, const IRModule& mod,
                     const std::function<IRModule(const IRModule&)>& apply, ReportOf which) {
  Report report;
  const auto begin = std::chrono::steady_clock::now();
  IRModule result;
  {
    const Running scope(&report);
    result = apply(mod);
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  const bool did_something = !result.same_as(mod) || !report.skipped.empty();
  if (which == ReportOf::kNone) return result;
  if (did_something || which == ReportOf::kEvery) Send(pass, report, seconds.count());
  return result;
}

}  // namespace distir::ir
