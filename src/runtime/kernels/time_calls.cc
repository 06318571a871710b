// distir.runtime.time_calls(functions, arguments, seconds): how long calls take on this thread.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

#include "support/functions.h"

namespace distir::runtime {

namespace {

namespace ffi = tvm::ffi;

constexpr int kLeastRounds = 5, kMostRounds = 200;

/*!
 * \brief Seconds of each call. All calls run one behind the other, as in a program, round after
 * round: so each finds in caches what it would find there. The median counts: what a run of the
 * program takes, too, is not the least that it can take.
 * \param seconds That all rounds take together, about.
 */
ffi::Array<double> TimeCalls(const ffi::Array<ffi::Function>& functions,
                             const ffi::Array<ffi::Array<ffi::Any>>& arguments, double seconds) {
  using Clock = std::chrono::steady_clock;
  const size_t count = functions.size();
  if (arguments.size() != count) {
    TVM_FFI_THROW(ValueError) << "there are " << count << " functions, and arguments of "
                              << arguments.size();
  }
  std::vector<ffi::Function> called(functions.begin(), functions.end());
  std::vector<std::vector<ffi::AnyView>> given;
  for (const ffi::Array<ffi::Any>& list : arguments) given.emplace_back(list.begin(), list.end());
  std::vector<std::vector<double>> taken(count);
  const auto round = [&] {
    const Clock::time_point first = Clock::now();
    Clock::time_point begin = first;
    for (size_t i = 0; i < count; ++i) {
      ffi::Any result;
      called[i].CallPacked(given[i].data(), static_cast<int32_t>(given[i].size()), &result);
      const Clock::time_point end = Clock::now();
      taken[i].push_back(std::chrono::duration<double>(end - begin).count());
      begin = end;
    }
    return std::chrono::duration<double>(begin - first).count();
  };
  round();  // pages, threads and caches come to be
  const double of_round = std::max(round(), 1e-9);
  for (std::vector<double>& each : taken) each.clear();
  const int rounds =
      static_cast<int>(std::clamp<double>(seconds / of_round, kLeastRounds, kMostRounds));
  for (int i = 0; i < rounds; ++i) round();
  ffi::Array<double> medians;
  for (std::vector<double>& each : taken) {
    const auto middle = each.begin() + static_cast<std::ptrdiff_t>(each.size() / 2);
    std::nth_element(each.begin(), middle, each.end());
    medians.push_back(*middle);
  }
  return medians;
}

TVM_FFI_STATIC_INIT_BLOCK() { support::Functions().def("distir.runtime.time_calls", TimeCalls); }

}  // namespace

}  // namespace distir::runtime
