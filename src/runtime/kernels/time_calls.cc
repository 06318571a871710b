// distir.runtime.time_calls(function, arguments, seconds): how long one call takes on this thread.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <vector>

namespace distir::runtime {

namespace {

namespace ffi = tvm::ffi;

// Other work on the host shows in some rounds only, so the one in the middle counts.
constexpr int kRounds = 5;

/*!
 * \brief Seconds of a call. Calls take the lists of arguments in turns, so that what no cache holds
 * from one turn to the next is read from where it would be in a program.
 * \param seconds That all rounds take together, about.
 */
double TimeCalls(const ffi::Function& function, const ffi::Array<ffi::Array<ffi::Any>>& arguments,
                 double seconds) {
  using Clock = std::chrono::steady_clock;
  std::vector<std::vector<ffi::AnyView>> lists;
  for (const ffi::Array<ffi::Any>& list : arguments) lists.emplace_back(list.begin(), list.end());
  const auto turn = [&] {
    ffi::Any result;
    const Clock::time_point begin = Clock::now();
    for (const std::vector<ffi::AnyView>& list : lists) {
      function.CallPacked(list.data(), static_cast<int32_t>(list.size()), &result);
    }
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  turn();  // pages, threads and caches come to be
  const double of_turn = std::max(turn(), 1e-9);
  const int turns = std::max(1, static_cast<int>(std::min(seconds / kRounds / of_turn, 1e6)));
  std::array<double, kRounds> rounds{};
  for (double& taken : rounds) {
    for (int i = 0; i < turns; ++i) taken += turn();
  }
  std::nth_element(rounds.begin(), rounds.begin() + kRounds / 2, rounds.end());
  return rounds[kRounds / 2] / turns / static_cast<double>(lists.size());
}

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef().def("distir.runtime.time_calls", TimeCalls);
}

}  // namespace

}  // namespace distir::runtime
