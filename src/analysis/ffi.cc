// Registers functions for Python's analyses: steps of programs as plain data, equal functions,
// times of collectives, and passes that legalise equal operator calls once.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/string.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "analysis/collective_calls.h"
#include "analysis/equal_functions.h"
#include "analysis/fused_names.h"
#include "analysis/legalized_operators.h"
#include "analysis/operator_calls.h"
#include "analysis/program_steps.h"
#include "analysis/step_names.h"
#include "analysis/timeline/collective_time.h"
#include "ir/tvm/pass.h"
#include "support/functions.h"

namespace distir::analysis {

namespace {

using Data = ffi::Map<ffi::String, ffi::Any>;

ffi::Array<ffi::Any> ToData(const std::vector<Allocation>& allocations) {
  ffi::Array<ffi::Any> rows;
  for (const Allocation& each : allocations)
    rows.push_back(ffi::Array<ffi::Any>{ffi::String(each.name), each.bytes});
  return rows;
}

ffi::Array<double> ToData(const std::vector<double>& numbers) {
  return {numbers.begin(), numbers.end()};
}

ffi::Array<int> ToData(const std::vector<int>& numbers) { return {numbers.begin(), numbers.end()}; }

ffi::Array<ffi::String> ToData(const std::vector<std::string>& texts) {
  ffi::Array<ffi::String> result;
  for (const std::string& text : texts) result.push_back(ffi::String(text));
  return result;
}

ffi::Map<ffi::String, double> ToData(const Operations& operations) {
  ffi::Map<ffi::String, double> result;
  for (const auto& [dtype, number] : operations) {
    const DLDataType type{static_cast<uint8_t>(dtype.first), static_cast<uint8_t>(dtype.second), 1};
    result.Set(ffi::DLDataTypeToString(type), number);
  }
  return result;
}

const char* NameOf(StepKind kind) {
  switch (kind) {
    case StepKind::kKernel:
      return "kernel";
    case StepKind::kPacked:
      return "packed";
    case StepKind::kCollective:
      return "collective";
    case StepKind::kCall:
      return "call";
    case StepKind::kBranch:
      return "branch";
  }
  return "";
}

double Sum(const std::vector<double>& numbers) {
  double sum = 0;
  for (double number : numbers) sum += number;
  return sum;
}

Data ToData(const Body& body);

/*! \brief A row, whose order `analysis/programs/steps.py` knows, too. */
ffi::Array<ffi::Any> ToData(const Step& step) {
  ffi::Array<ffi::Any> row = {ffi::String(NameOf(step.kind)),
                              ffi::String(step.name),
                              ffi::String(step.callee),
                              ToData(step.count.operations),
                              step.count.transcendentals,
                              Sum(step.count.bytes_read),
                              Sum(step.count.bytes_written),
                              ffi::String(step.count.unknown),
                              ToData(step.reads),
                              ToData(step.shapes),
                              ffi::String(step.groups),
                              ffi::String(step.plan),
                              step.note,
                              step.given_bytes,
                              step.made_bytes,
                              step.seconds,
                              step.live_bytes,
                              ToData(step.after)};
  if (step.on_true != nullptr) {
    row.push_back(ToData(*step.on_true));
    row.push_back(ToData(*step.on_false));
  }
  return row;
}

Data ToData(const Body& body) {
  ffi::Array<ffi::Any> steps;
  for (const Step& step : body.steps) steps.push_back(ToData(step));
  Data data;
  data.Set("steps", steps);
  data.Set("result_after", ToData(body.result_after));
  data.Set("peak_bytes", body.peak_bytes);
  data.Set("peak_step", body.peak_step);
  data.Set("alive", ToData(body.alive));
  data.Set("constant_bytes", body.constant_bytes);
  data.Set("allocations", ToData(body.allocations));
  return data;
}

ffi::Array<ffi::Any> ToData(const std::vector<FunctionSteps>& functions) {
  ffi::Array<ffi::Any> rows;
  for (const FunctionSteps& function : functions) {
    Data data = ToData(function.body);
    data.Set("name", ffi::String(function.name));
    data.Set("operator", ffi::String(function.op));
    data.Set("params", ToData(function.params));
    rows.push_back(data);
  }
  return rows;
}

using Table = ffi::Array<ffi::Array<ffi::Any>>;

/*! \param programs Rows of an entry function and its devices.
 * \param meshes As abi::ReadNamedMeshes takes them. */
CollectiveLister MakeLister(const ir::IRModule& mod, const Table& programs, const Table& meshes) {
  std::vector<ProgramOnDevices> entries;
  for (const auto& row : programs) {
    const auto ids = row[1].cast<ffi::Array<int64_t>>();
    entries.push_back({std::string(row[0].cast<ffi::String>()), {ids.begin(), ids.end()}});
  }
  return {mod, entries, abi::MeshAxes(abi::ReadNamedMeshes(meshes))};
}

/*! \brief By function its collectives and the names of functions that it calls, in order. */
ffi::Array<ffi::Any> CollectiveCalls(ir::IRModule mod, Table programs, Table meshes) {
  const CollectiveLister lister = MakeLister(mod, programs, meshes);
  ffi::Array<ffi::Any> found;
  for (const auto& [name, base] : ir::OrderedFunctions(mod)) {
    const ir::Function function = ir::Function::Cast(base);
    if (!function.defined()) continue;
    ffi::Array<ffi::Any> rows;
    for (const CommunicatingCall& each : lister.CallsOf(function)) {
      if (auto call = std::get_if<CollectiveCall>(&each)) {
        rows.push_back(ToData(*call));
      } else {
        rows.push_back(ffi::String(std::get<std::string>(each)));
      }
    }
    found.push_back(ffi::Array<ffi::Any>{ffi::String(name.name()), rows});
  }
  return found;
}

TVM_FFI_STATIC_INIT_BLOCK() {
  support::Functions()
      .def("distir.analysis.Steps",
           [](ffi::Any cluster, ir::IRModule mod) {
             return ToData(StepReader(CollectiveTimes::Read(cluster)).Read(mod));
           })
      // A function that reads modules one after the other, without times; see program_steps.h.
      .def(
          "distir.analysis.StepReader",
          [] {
            auto reader = std::make_shared<StepReader>();
            return support::Typed([reader](ir::IRModule mod) { return ToData(reader->Read(mod)); });
          })
      // A function of modules -> functions, the module of others; see equal_functions.h.
      .def("distir.analysis.EqualFunctions",
           [] {
             auto all = std::make_shared<EqualFunctions>();
             return support::Typed([all](ir::IRModule mod) -> ffi::Any {
               const std::optional<FunctionsOnDevices> found = all->Add(mod);
               if (!found) return ffi::Any();
               ffi::Array<ffi::Any> functions;
               for (const FunctionOnDevices& each : found->functions) {
                 ffi::Map<ffi::String, ffi::String> callees;
                 for (const auto& [like, name] : each.callees) callees.Set(like, name);
                 functions.push_back(ffi::Array<ffi::Any>{
                     ffi::String(each.name), ffi::String(each.like), ToData(each.communications),
                     each.notes, callees, ToData(each.variables)});
               }
               return ffi::Array<ffi::Any>{functions, found->others};
             });
           })
      // A function of (kind, groups or plan as JSON, bytes given, bytes made) -> seconds; see
      // collective_time.h.
      .def("distir.analysis.CollectiveSeconds",
           [](ffi::Any cluster) {
             auto times = std::make_shared<CollectiveTimes>(CollectiveTimes::Read(cluster));
             return support::Typed(
                 [times](ffi::String kind, ffi::String how, double given, double made) {
                   return times->Of(kind, how, given, made);
                 });
           })
      // Two functions, WithKnown and Learn; see legalized_operators.h.
      .def("distir.analysis.LegalizedOperators",
           [] {
             auto all = std::make_shared<LegalizedOperators>();
             return ffi::Array<ffi::Any>{
                 support::Typed([all](ir::IRModule mod) { return all->WithKnown(mod); }),
                 support::Typed([all](ir::IRModule mod, ir::IRModule legalized) {
                   all->Learn(mod, legalized);
                 })};
           })
      .def("distir.analysis.CollectiveCalls", CollectiveCalls)
      .def("distir.analysis.NoteCollectives",
           [](ir::IRModule mod, Table programs, Table meshes) {
             return WithNotes(mod, MakeLister(mod, programs, meshes));
           })
      .def("distir.analysis.WithNamesOf", WithNamesOf)
      .def("distir.analysis.StepNames", StepNames)
      .def("distir.analysis.OutlineOperators",
           []() {
             return ir::MakeModulePass("OutlineOperators", [](const ir::IRModule& mod) {
               return OutlineOperators(mod, Outlined::kLegalized);
             });
           })
      .def("distir.analysis.OutlineAllOperators",
           [](ir::IRModule mod) { return OutlineOperators(mod, Outlined::kAll); })
      .def("distir.analysis.InlineOperators",
           []() { return ir::MakeModulePass("InlineOperators", InlineOperators); });
}

}  // namespace

}  // namespace distir::analysis
