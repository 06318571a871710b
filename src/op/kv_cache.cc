#include "op/kv_cache.h"

#include <string>

#include "ir/build.h"

namespace distir {
namespace op {

namespace {

constexpr const char* kLocalPrefix = "vm.builtin.";
constexpr const char* kDistributedPrefix = "vm.builtin.distributed.";
constexpr const char* kAppend = "attention_kv_cache_append";
constexpr const char* kView = "attention_kv_cache_view";

/*! \brief The name without its prefix; empty for calls of anything but these packed functions. */
std::string CacheFunction(const ir::Call& call) {
  auto callee = ir::ExternFunc::Cast(call.op());
  if (!callee.defined()) return "";
  std::string name = callee.name();
  for (const std::string function : {kAppend, kView}) {
    if (name == kLocalPrefix + function || name == kDistributedPrefix + function) return function;
  }
  return "";
}

}  // namespace

bool IsCacheAppend(const ir::Call& call) { return CacheFunction(call) == kAppend; }
bool IsCacheCall(const ir::Call& call) { return !CacheFunction(call).empty(); }

ir::ExternFunc DistributedCacheCallee(const ir::Call& call) {
  return ir::MakeExternFunc(kDistributedPrefix + CacheFunction(call));
}
ir::ExternFunc LocalCacheCallee(const ir::Call& call) {
  return ir::MakeExternFunc(kLocalPrefix + CacheFunction(call));
}

}  // namespace op
}  // namespace distir
