// Operators that are always replicated, each with the reason, so that the table is complete.
#include "ops/family.h"

namespace distir::ops {

namespace {

const ReplicatedOperators kDataDependent("data-dependent shape",
                                         "the shape of its result depends on the data",
                                         {"relax.dynamic_strided_slice", "relax.nonzero",
                                          "relax.unique",
                                          "relax.vision.all_class_non_max_suppression"});
const ReplicatedOperators kShapes("shape", "a few integers, computed from the global shape",
                                  {"relax.shape_to_tensor", "relax.size", "relax.tensor_to_shape"});
const ReplicatedOperators kInspect(
    "inspection", "reads the header of the tensor in memory, which a shard does not share",
    {"relax.inspect.tensor_byte_offset", "relax.inspect.tensor_dtype_bits",
     "relax.inspect.tensor_dtype_code", "relax.inspect.tensor_dtype_lanes",
     "relax.inspect.tensor_elem_offset", "relax.inspect.tensor_ndim",
     "relax.inspect.tensor_shape_i", "relax.inspect.tensor_stride_i"});
const ReplicatedOperators kOutput("input and output", "every worker would print or check a part",
                                  {"relax.assert_op", "relax.print"});
const ReplicatedOperators kMemory("memory", "manages or reinterprets memory, after partitioning",
                                  {"relax.builtin.alloc_tensor", "relax.memory.alloc_storage",
                                   "relax.memory.alloc_tensor", "relax.memory.ensure_zero_offset",
                                   "relax.memory.kill_storage", "relax.memory.kill_tensor",
                                   "relax.memory.view", "relax.vm.alloc_storage",
                                   "relax.vm.alloc_tensor", "relax.vm.call_tir_dyn",
                                   "relax.vm.kill_object"});
const ReplicatedOperators kWrapped("constants", "holds a constant, which has no sharding",
                                   {"relax.null_value", "relax.wrap_param"});
const ReplicatedOperators kClosures("calls", "what it calls is only known when it runs",
                                    {"relax.invoke_closure", "relax.invoke_pure_closure",
                                     "relax.make_closure"});

const DescribedOperators kKernels("calls", "rule derived from the kernel",
                                  {"relax.call_tir", "relax.call_tir_inplace",
                                   "relax.call_tir_with_grad"});
const DescribedOperators kPackedQuantization(
    "calls",
    "rule stated by the user (register_rule), else replicated; KV caches "
    "by the shards of their heads",
    {"relax.call_builtin_with_ctx", "relax.call_dps_packed", "relax.call_inplace_packed",
     "relax.call_pure_packed", "relax.call_py_func"});
const DescribedOperators kShardingGroup("distribution",
                                        "ties the shardings of the values in its tuple",
                                        {"relax.dist.sharding_group"});
const DescribedOperators kLocalView("distribution", "already on the worker's part",
                                    {"relax.dist.call_tir_inplace_local_view",
                                     "relax.dist.call_tir_local_view"});

}  // namespace

}  // namespace distir::ops
