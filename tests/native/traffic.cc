// Test hook: the bytes and messages that the runtime counts for a collective of one group.
#include "runtime/session/notes/traffic.h"

#include <numeric>
#include <vector>

#include "abi/collective.h"
#include "arguments.h"

namespace distir::test {

namespace {

// The name of a collective, members of the group, bytes of the argument -> bytes that are sent,
// bytes that are received, messages.
Any TrafficInGroup(Arguments& in) {
  const auto name = in.Next<ffi::String>();
  std::vector<int> ranks(in.Next<int64_t>());
  std::iota(ranks.begin(), ranks.end(), 0);
  const runtime::Group group(ranks, 0);
  const auto bytes = in.Next<int64_t>();
  runtime::Traffic traffic;
  traffic.CountInGroup(abi::FindCollective({name.data(), name.size()})->collective, "[]", group,
                       bytes);
  const runtime::Flow& flow = traffic.flows().front();
  return ffi::Array<int64_t>{flow.bytes_sent, flow.bytes_received, flow.messages};
}

const bool kTraffic = Register({{"TrafficInGroup", TrafficInGroup}});

}  // namespace

}  // namespace distir::test
