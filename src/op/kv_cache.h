/*!
 * \file op/kv_cache.h
 * \brief The runtime's caches of keys and values: append a tensor (positions, heads, width), view
 * all positions.
 *
 * In DistIR the calls carry the names of their distributed versions, vm.builtin.distributed.*, on
 * DTensors; each worker runs the ordinary functions on a cache of its own shards.
 */
#ifndef DISTIR_OP_KV_CACHE_H_
#define DISTIR_OP_KV_CACHE_H_

#include "ir/node.h"

namespace distir {
namespace op {

bool IsCacheAppend(const ir::Call& call);
/*! \brief An append or a view. */
bool IsCacheCall(const ir::Call& call);
ir::ExternFunc DistributedCacheCallee(const ir::Call& call);
ir::ExternFunc LocalCacheCallee(const ir::Call& call);

}  // namespace op
}  // namespace distir
#endif  // DISTIR_OP_KV_CACHE_H_
