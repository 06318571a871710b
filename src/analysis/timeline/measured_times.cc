// Interpolates measured times of collectives by kind, group size and bytes.
#include "analysis/timeline/measured_times.h"

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/string.h>

#include <cmath>
#include <iterator>

namespace distir::analysis {

namespace ffi = tvm::ffi;

namespace {

double Interpolated(const std::map<double, double>& by_size, double bytes) {
  const auto above = by_size.lower_bound(bytes);
  if (above == by_size.begin()) return above->second;
  const auto& [size, seconds] = *std::prev(above);
  if (above == by_size.end()) return seconds * (bytes / size);
  const double part = std::log(bytes / size) / std::log(above->first / size);
  return seconds * std::pow(above->second / seconds, part);
}

/*! \brief Ratio of what a device sends in a group of another size. */
double Ratio(abi::Collective collective, int64_t members, int64_t timed) {
  if (members == timed || abi::RecordOf(collective).sends == abi::Sends::kByPlan) return 1;
  return abi::SentBy(collective, members).Bytes(1) / abi::SentBy(collective, timed).Bytes(1);
}

}  // namespace

MeasuredTimes MeasuredTimes::Read(const ffi::Any& rows) {
  const auto is_positive = [](double number) { return std::isfinite(number) && number > 0; };
  MeasuredTimes times;
  const auto list = rows.as<ffi::Array<ffi::Any>>();
  if (!list.has_value()) TVM_FFI_THROW(ValueError) << "`times` of a cluster are no list";
  for (const ffi::Any& each : *list) {
    const auto row = each.as<ffi::Array<ffi::Any>>();
    const bool is_row = row.has_value() && row->size() == 4;
    const auto name = is_row ? (*row)[0].try_cast<ffi::String>() : std::nullopt;
    const auto members = is_row ? (*row)[1].try_cast<int64_t>() : std::nullopt;
    const auto bytes = is_row ? (*row)[2].try_cast<double>() : std::nullopt;
    const auto seconds = is_row ? (*row)[3].try_cast<double>() : std::nullopt;
    const auto* record =
        name.has_value() ? abi::FindCollective({name->data(), name->size()}) : nullptr;
    const bool takes_time = record != nullptr && record->timed_as == record->collective &&
                            record->sends != abi::Sends::kNothing;
    if (!takes_time || members.value_or(0) < 2 || !is_positive(bytes.value_or(0)) ||
        !is_positive(seconds.value_or(0))) {
      TVM_FFI_THROW(ValueError)
          << "`times` of a cluster are lists of a collective's name, at least "
             "2 members, and positive numbers of bytes and of seconds";
    }
    times.times_[record->collective][*members][*bytes] = *seconds;
  }
  return times;
}

std::optional<double> MeasuredTimes::Seconds(abi::Collective collective, int64_t members,
                                             double bytes) const {
  const auto found = times_.find(collective);
  if (found == times_.end()) return std::nullopt;
  const std::map<int64_t, BySize>& by_members = found->second;
  auto nearest = by_members.lower_bound(members);
  if (nearest == by_members.end()) --nearest;
  if (nearest != by_members.begin() && nearest->first != members) {
    const auto below = std::prev(nearest);
    if (members - below->first < nearest->first - members) nearest = below;
  }
  return Ratio(collective, members, nearest->first) * Interpolated(nearest->second, bytes);
}

}  // namespace distir::analysis
