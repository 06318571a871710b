/*!
 * \file dialect/operators/kv_cache.h
 * \brief Calls of the runtime's KV caches: create from a tensor, append, view.
 *
 * The tensors are (positions, heads, width). In DistIR appends and views carry the names of their
 * distributed versions, vm.builtin.distributed.*, on DTensors; each worker runs the ordinary
 * functions on a cache of its own shards. All tensors of one cache are placed alike, and never
 * sharded along positions, which come in turns. A function sees only its own calls: functions that
 * share a cache have to agree.
 */
#ifndef DISTIR_DIALECT_OPERATORS_KV_CACHE_H_
#define DISTIR_DIALECT_OPERATORS_KV_CACHE_H_

#include <optional>

#include "ir/node.h"

namespace distir::dialect {

enum class CacheCallKind {
  kCreate,  // (tensor, shape, number of positions filled) -> cache
  kAppend,  // (cache, tensor) -> cache
  kView,    // (cache, shape) -> tensor
};

std::optional<CacheCallKind> CacheCall(const ir::Call& call);
/*! \brief The argument that is the tensor put in; -1 for a view. */
int CacheTensorArgument(CacheCallKind kind);
/*! \brief The variable of the cache that a call uses; null for a creation. */
ir::Expr UsedCache(const ir::Call& call, CacheCallKind kind);
ir::ExternFunc DistributedCacheCallee(CacheCallKind kind);
ir::ExternFunc LocalCacheCallee(CacheCallKind kind);

}  // namespace distir::dialect
#endif  // DISTIR_DIALECT_OPERATORS_KV_CACHE_H_
