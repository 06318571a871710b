#include "runtime/shard.h"

#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/string.h>

#include <algorithm>
#include <cstring>

#include "runtime/strided_copy.h"

namespace distir::runtime {

namespace ffi = tvm::ffi;

namespace {

ffi::Tensor AllocateTensor(const std::vector<int64_t>& shape, DLDataType dtype) {
  // TVM's allocator, for the alignment that compiled kernels rely on.
  static const ffi::Function allocate =
      ffi::Function::GetGlobalRequired("runtime.TVMTensorAllocWithScope");
  return allocate(ffi::Shape(shape), dtype, DLDevice{kDLCPU, 0}, ffi::Optional<ffi::String>())
      .cast<ffi::Tensor>();
}

ffi::ObjectRef MakeShard(const ffi::Any& source, const ffi::Shape& shape,
                         const ffi::Shape& byte_strides, const ffi::Shape& begin,
                         const ffi::Shape& extent, DLDataType dtype) {
  ElementBytes(dtype);  // here, where a type that can not be cut is the caller's error
  auto shard = ffi::make_object<ShardObj>();
  if (auto tensor = source.as<ffi::Tensor>()) {
    shard->owner = *tensor;
    shard->data = DataOf(*tensor);
  } else {
    shard->data = reinterpret_cast<const char*>(source.cast<int64_t>());
  }
  shard->byte_strides.assign(byte_strides.begin(), byte_strides.end());
  shard->extent.assign(extent.begin(), extent.end());
  shard->dtype = dtype;
  for (size_t i = 0; i < begin.size(); ++i) {
    const int64_t first = std::min(begin[i], shape[i]);
    shard->inside.push_back(std::min(extent[i], shape[i] - first));
    shard->data += first * byte_strides[i];
  }
  return ffi::ObjectRef(shard);
}

void PasteShard(const ffi::TensorView& local, const ffi::TensorView& global,
                const ffi::Shape& begin) {
  const int64_t element_bytes = ElementBytes(local.dtype());
  const std::vector<int64_t> extent = ShapeOf(local);
  const std::vector<int64_t> shape = ShapeOf(global);
  const std::vector<int64_t> target_strides = RowMajorStrides(shape, element_bytes);
  std::vector<int64_t> inside;  // padding is left out
  char* target = DataOf(global);
  for (size_t i = 0; i < extent.size(); ++i) {
    const int64_t first = std::min(begin[i], shape[i]);
    inside.push_back(std::min(extent[i], shape[i] - first));
    target += first * target_strides[i];
  }
  BoxCopy(inside, RowMajorStrides(extent, element_bytes), target_strides, element_bytes)
      .Run(DataOf(local), target);
}

}  // namespace

ffi::Tensor CutShard(const ShardObj& shard) {
  const int64_t element_bytes = ElementBytes(shard.dtype);
  ffi::Tensor result = AllocateTensor(shard.extent, shard.dtype);
  if (shard.inside != shard.extent)
    std::memset(DataOf(result), 0, NumElements(shard.extent) * element_bytes);
  BoxCopy(shard.inside, shard.byte_strides, RowMajorStrides(shard.extent, element_bytes),
          element_bytes)
      .Run(shard.data, DataOf(result));
  return result;
}

ffi::Any CutShards(const ffi::Any& value) {
  if (const auto* shard = value.as<ShardObj>()) return CutShard(*shard);
  if (const auto* array = value.as<ffi::ArrayObj>()) {
    ffi::Array<ffi::Any> result;
    for (const ffi::Any& field : *array) result.push_back(CutShards(field));
    return result;
  }
  return value;
}

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = tvm::ffi::reflection;
  refl::ObjectDef<ShardObj>();
  refl::GlobalDef().def("distir.runtime.shard", MakeShard).def("distir.runtime.paste", PasteShard);
}

}  // namespace distir::runtime
