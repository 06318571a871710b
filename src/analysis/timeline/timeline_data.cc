// Reads timeline problems from plain data, and returns simulated timelines to Python.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "analysis/timeline/timeline.h"
#include "support/functions.h"

namespace distir::analysis {

namespace ffi = tvm::ffi;

namespace {

using Data = ffi::Map<ffi::String, ffi::Any>;
using Rows = ffi::Array<ffi::Any>;

template <typename T>
std::vector<T> Numbers(const ffi::Any& list) {
  const auto numbers = list.cast<ffi::Array<int64_t>>();
  return {numbers.begin(), numbers.end()};
}

/*! \brief A row [kind, seconds, stream, communication, label, after], as
 * `analysis/simulate.py` writes it. */
Operation ToOperation(const Rows& row) {
  return {static_cast<OperationKind>(row[0].cast<int>()),
          row[1].cast<double>(),
          row[2].cast<int>(),
          row[3].cast<int>(),
          row[4].cast<int>(),
          Numbers<int>(row[5])};
}

Communication ToCommunication(const Rows& row, const std::vector<int64_t>& device_ids) {
  const std::string form = row[0].cast<std::string>(), text = row[1].cast<std::string>();
  if (form == "groups") return InGroups(text, device_ids);
  return form == "segments" ? OfSegments(text, device_ids) : OfTransfer(text, device_ids);
}

std::vector<Operation> OperationsOfRows(const ffi::Any& rows) {
  std::vector<Operation> program;
  for (const ffi::Any& row : rows.cast<Rows>()) program.push_back(ToOperation(row.cast<Rows>()));
  return program;
}

/*! \brief A row as NumPy's records have it, without label and `after`; on one stream. */
struct Record {
  double seconds;
  int32_t kind, communication;
};

std::vector<Operation> OperationsOfRecords(const ffi::Any& bytes) {
  const auto text = bytes.cast<ffi::Bytes>();
  std::vector<Operation> program;
  program.reserve(text.size() / sizeof(Record));
  for (size_t at = 0; at < text.size(); at += sizeof(Record)) {
    Record each;
    std::memcpy(&each, text.data() + at, sizeof(Record));
    program.push_back(
        {static_cast<OperationKind>(each.kind), each.seconds, 0, each.communication, 0, {}});
  }
  return program;
}

TimelineProblem ToProblem(const Data& data, std::vector<Operation> (*to_program)(const ffi::Any&)) {
  TimelineProblem problem;
  for (const ffi::Any& program : data["programs"].cast<Rows>())
    problem.programs.push_back(to_program(program));
  const std::vector<int64_t> device_ids = Numbers<int64_t>(data["device_ids"]);
  for (const ffi::Any& row : data["communications"].cast<Rows>())
    problem.communications.push_back(ToCommunication(row.cast<Rows>(), device_ids));
  for (const ffi::Any& row : data["devices"].cast<Rows>())
    problem.devices.push_back(Numbers<int>(row));
  for (const ffi::Any& row : data["order"].cast<Rows>()) {
    const std::vector<int> pair = Numbers<int>(row);
    problem.order.emplace_back(pair[0], pair[1]);
  }
  problem.limits = Numbers<int>(data["limits"]);
  problem.finishers = Numbers<int>(data["finishers"]);
  problem.sends_wait = data["sends_wait"].cast<bool>();
  return problem;
}

/*! \brief The memory of numbers, which NumPy reads as it is. */
template <typename T>
ffi::Bytes ToBytes(const std::vector<T>& numbers) {
  return ffi::Bytes(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(T));
}

Data Simulate(const Data& data) {
  const auto timeline = std::make_shared<Timeline>(ToProblem(data, OperationsOfRows));
  const TimelineResult result = timeline->Run();
  Rows classes, blocked;
  for (const ClassTimes& each : result.classes) {
    classes.push_back(Rows{ffi::Array<int>(each.devices.begin(), each.devices.end()),
                           each.first_event, ToBytes(each.arrivals), ToBytes(each.begins),
                           ToBytes(each.causes)});
  }
  for (const Blocked& each : result.blocked)
    blocked.push_back(ffi::Array<int64_t>{each.event, each.waits_for});
  Data found;
  found.Set("seconds", result.seconds);
  found.Set("last_event", result.last_event);
  found.Set("classes", classes);
  found.Set("blocked", blocked);
  found.Set("seconds_without",
            support::Typed([timeline](int label) { return timeline->SecondsWithout(label); }));
  return found;
}

/*! \brief Simulates programs given as bytes of records; seconds, or below 0 on a deadlock. */
double SimulatedSeconds(const Data& data) {
  const TimelineResult result = Timeline(ToProblem(data, OperationsOfRecords)).Run();
  return result.blocked.empty() ? result.seconds : -1;
}

/*! \brief Lists the peers of some devices in a transfer: pairs of a device and those that send to
 * it, then pairs of a device and those that it sends to, by id. */
Rows Peers(const ffi::String& plan, const ffi::Array<int64_t>& ids) {
  const std::vector<int64_t> device_ids(ids.begin(), ids.end());
  const Communication found = OfTransfer(plan, device_ids);
  Rows sides;
  for (const std::vector<int>* side : {&found.sources, &found.targets}) {
    Rows pairs;
    for (size_t device = 0; device < device_ids.size(); ++device) {
      if ((*side)[device] < 0) continue;
      ffi::Array<int64_t> peers;
      for (int peer : found.lists[(*side)[device]]) peers.push_back(device_ids[peer]);
      pairs.push_back(Rows{device_ids[device], peers});
    }
    sides.push_back(pairs);
  }
  return sides;
}

TVM_FFI_STATIC_INIT_BLOCK() {
  support::Functions()
      .def("distir.analysis.Simulate", Simulate)
      .def("distir.analysis.SimulatedSeconds", SimulatedSeconds)
      .def("distir.analysis.Peers", Peers);
}

}  // namespace

}  // namespace distir::analysis
