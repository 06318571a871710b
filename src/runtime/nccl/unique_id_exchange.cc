#include "runtime/nccl/unique_id_exchange.h"

#include "runtime/format_list.h"
#include "runtime/nccl/library.h"
#include "support/error.h"

namespace distir::runtime::nccl {

UniqueId ThreadExchange::Meet(const std::vector<int>& ranks, int position) {
  std::unique_lock<std::mutex> lock(mutex_);
  Meeting& meeting = meetings_[ranks];
  if (!meeting.id.has_value()) {
    UniqueId id;
    CheckNccl(Nccl().ncclGetUniqueId(&id), "ncclGetUniqueId");
    meeting.id = id;
    meeting.arrived.resize(ranks.size());
  }
  meeting.arrived[position] = true;
  ++meeting.num_arrived;
  changed_.notify_all();
  auto settled = [&] { return meeting.num_arrived == ranks.size() || aborted_; };
  if (timeout_.count() == 0) {
    changed_.wait(lock, settled);
  } else if (!changed_.wait_for(lock, timeout_, settled)) {
    std::vector<int> absent;
    for (size_t i = 0; i < ranks.size(); ++i)
      if (!meeting.arrived[i]) absent.push_back(ranks[i]);
    TVM_FFI_THROW(RuntimeError) << "the workers of ranks " << FormatList(absent)
                                << " did not come to open the group of ranks " << FormatList(ranks);
  }
  DISTIR_REQUIRE(meeting.num_arrived == ranks.size(), RuntimeError)
      << "opening the group of ranks " << FormatList(ranks)
      << " stopped because another worker failed";
  return *meeting.id;
}

void ThreadExchange::Abort() noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  aborted_ = true;
  changed_.notify_all();
}

}  // namespace distir::runtime::nccl
