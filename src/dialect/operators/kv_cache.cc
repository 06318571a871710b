// Maps the KV-cache builtins of TVM to their distributed names and back.
#include "dialect/operators/kv_cache.h"

#include <string>

#include "ir/build.h"

namespace distir::dialect {

namespace {

/*! \brief Indexed by CacheCallKind. */
struct CacheFunction {
  const char* local;
  const char* distributed;
  int tensor_argument;
};

constexpr CacheFunction kFunctions[] = {
    {"vm.builtin.attention_kv_cache_create", "vm.builtin.attention_kv_cache_create", 0},
    {"vm.builtin.attention_kv_cache_append", "vm.builtin.distributed.attention_kv_cache_append", 1},
    {"vm.builtin.attention_kv_cache_view", "vm.builtin.distributed.attention_kv_cache_view", -1},
};

const CacheFunction& FunctionOf(CacheCallKind kind) { return kFunctions[static_cast<int>(kind)]; }

}  // namespace

std::optional<CacheCallKind> CacheCall(const ir::Call& call) {
  auto callee = ir::ExternFunc::Cast(call.op());
  if (!callee.defined()) return std::nullopt;
  std::string name = callee.name();
  for (CacheCallKind kind :
       {CacheCallKind::kCreate, CacheCallKind::kAppend, CacheCallKind::kView}) {
    if (name == FunctionOf(kind).local || name == FunctionOf(kind).distributed) return kind;
  }
  return std::nullopt;
}

int CacheTensorArgument(CacheCallKind kind) { return FunctionOf(kind).tensor_argument; }

ir::Expr UsedCache(const ir::Call& call, CacheCallKind kind) {
  return kind == CacheCallKind::kCreate ? ir::Expr() : call.args()[0];
}

ir::ExternFunc DistributedCacheCallee(CacheCallKind kind) {
  return ir::MakeExternFunc(FunctionOf(kind).distributed);
}
ir::ExternFunc LocalCacheCallee(CacheCallKind kind) {
  return ir::MakeExternFunc(FunctionOf(kind).local);
}

}  // namespace distir::dialect
