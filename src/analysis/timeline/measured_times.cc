#include "analysis/timeline/measured_times.h"

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/string.h>

#include <cmath>
#include <iterator>

#include "cost/collective_cost.h"

namespace distir {
namespace analysis {

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

/*! \brief How much more a device sends in a group of another size. */
double Ratio(mesh::CollectiveKind kind, int64_t members, int64_t timed) {
  if (members == timed || mesh::HasPieces(kind)) return 1;
  return cost::BytesSent(kind, members, 1) / cost::BytesSent(kind, timed, 1);
}

}  // namespace

std::optional<mesh::CollectiveKind> CollectiveKindOf(const std::string& name) {
  for (mesh::CollectiveKind kind : mesh::kAllCollectiveKinds) {
    if (name == mesh::CollectiveName(kind)) return kind;
  }
  return std::nullopt;
}

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
    const auto kind = name.has_value() ? CollectiveKindOf(*name) : std::nullopt;
    const bool takes_time = kind.has_value() && *kind != mesh::CollectiveKind::kSlice &&
                            *kind != mesh::CollectiveKind::kView;
    if (!takes_time || members.value_or(0) < 2 || !is_positive(bytes.value_or(0)) ||
        !is_positive(seconds.value_or(0))) {
      TVM_FFI_THROW(ValueError)
          << "`times` of a cluster are lists of a collective's name, at least "
             "2 members, and positive numbers of bytes and of seconds";
    }
    times.times_[*kind][*members][*bytes] = *seconds;
  }
  return times;
}

std::optional<double> MeasuredTimes::Seconds(mesh::CollectiveKind kind, int64_t members,
                                             double bytes) const {
  const auto found = times_.find(kind);
  if (found == times_.end()) return std::nullopt;
  const std::map<int64_t, BySize>& by_members = found->second;
  auto nearest = by_members.lower_bound(members);
  if (nearest == by_members.end()) --nearest;
  if (nearest != by_members.begin() && nearest->first != members) {
    const auto below = std::prev(nearest);
    if (members - below->first < nearest->first - members) nearest = below;
  }
  return Ratio(kind, members, nearest->first) * Interpolated(nearest->second, bytes);
}

}  // namespace analysis
}  // namespace distir
