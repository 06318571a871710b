// Cuts shards out of global arrays, and pastes results back.
#include "runtime/session/shard.h"

#include <malloc.h>
#include <sys/mman.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/string.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <system_error>

#include "runtime/append.h"
#include "runtime/communicators/result_memory.h"
#include "runtime/kernels/format_list.h"
#include "runtime/kernels/mapped_read.h"
#include "runtime/kernels/process_read.h"
#include "runtime/kernels/strided_copy.h"
#include "support/error.h"
#include "support/functions.h"

namespace distir::runtime {

namespace ffi = tvm::ffi;

namespace {

constexpr DLDevice kHost{kDLCPU, 0};

// Smaller shards are sent as quickly as they are shown.
constexpr int64_t kSmallestSeenBytes = 64 << 10;

// Smaller tensors that stay are allocated as others are.
constexpr int64_t kSmallestOwnPages = 64 << 10;

// Bytes of freed gathered results that a process keeps for reuse.
constexpr size_t kMostKeptBytes = size_t{256} << 20;

ffi::Tensor AllocateTensor(const ffi::Shape& shape, DLDataType dtype) {
  // TVM's allocator, for the alignment that compiled kernels rely on.
  static const ffi::Function allocate =
      ffi::Function::GetGlobalRequired("runtime.TVMTensorAllocWithScope");
  return allocate(shape, dtype, kHost, ffi::Optional<ffi::String>()).cast<ffi::Tensor>();
}

// For large tensors that stay: it goes back to the system with them. Memory that threads allocate
// otherwise comes from arenas, which keep much of it when it is freed.
struct OwnPages {
  static size_t BytesOf(const DLTensor& tensor) { return ffi::GetDataSize(tensor); }
  void AllocData(DLTensor* tensor) {
    const size_t bytes = BytesOf(*tensor);
    void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) throw std::bad_alloc();
    madvise(pages, bytes, MADV_HUGEPAGE);  // a wish
    tensor->data = pages;
  }
  void FreeData(DLTensor* tensor) { munmap(tensor->data, BytesOf(*tensor)); }
};

ffi::ObjectRef MakeShard(const ffi::Any& source, const ffi::Shape& shape,
                         const ffi::Shape& byte_strides, const ffi::Shape& begin,
                         const ffi::Shape& extent, DLDataType dtype, const ffi::String& file,
                         int64_t process) {
  // Here, where what cannot be cut is the caller's error.
  CheckedBytes(extent, dtype);
  DISTIR_REQUIRE(shape.size() == extent.size() && begin.size() == extent.size() &&
                     byte_strides.size() == extent.size() &&
                     std::all_of(begin.begin(), begin.end(), [](int64_t at) { return at >= 0; }),
                 ValueError)
      << "there is no shard " << FormatList(extent) << " at " << FormatList(begin)
      << " of an array of shape " << FormatList(shape);
  auto shard = ffi::make_object<ShardObj>();
  // A number, since it may be an address of another process, or a place in a file.
  uint64_t data = 0;
  if (auto tensor = source.as<ffi::Tensor>()) {
    shard->owner = *tensor;
    data = reinterpret_cast<uint64_t>(DataOf(*tensor));
  } else {
    data = static_cast<uint64_t>(source.cast<int64_t>());
  }
  shard->byte_strides.assign(byte_strides.begin(), byte_strides.end());
  shard->extent.assign(extent.begin(), extent.end());
  shard->dtype = dtype;
  shard->file = file;
  shard->process = static_cast<pid_t>(process);
  for (size_t i = 0; i < begin.size(); ++i) {
    const int64_t first = std::min(begin[i], shape[i]);
    shard->inside.push_back(std::min(extent[i], shape[i] - first));
    data += static_cast<uint64_t>(first) * static_cast<uint64_t>(byte_strides[i]);
  }
  shard->data = reinterpret_cast<const char*>(data);
  return ffi::ObjectRef(shard);
}

ffi::ObjectRef JoinShards(const ffi::Shape& extent, DLDataType dtype,
                          const ffi::Array<ffi::ObjectRef>& shards,
                          const ffi::Array<ffi::Shape>& begins) {
  CheckedBytes(extent, dtype);
  DISTIR_REQUIRE(shards.size() == begins.size(), ValueError)
      << shards.size() << " shards begin at " << begins.size() << " places";
  auto joined = ffi::make_object<ShardObj>();
  joined->extent.assign(extent.begin(), extent.end());
  joined->dtype = dtype;
  for (size_t index = 0; index < shards.size(); ++index) {
    const auto* shard = shards[index].as<ShardObj>();
    const ffi::Shape& begin = begins[index];
    bool fits = shard != nullptr && shard->parts.empty() && shard->dtype == dtype &&
                shard->extent.size() == extent.size() && begin.size() == extent.size();
    for (size_t i = 0; fits && i < extent.size(); ++i)
      fits = 0 <= begin[i] && begin[i] <= extent[i] && shard->extent[i] <= extent[i] - begin[i];
    DISTIR_REQUIRE(fits, ValueError) << "shard " << index << " is no part of one of "
                                     << FormatList(extent) << " at " << FormatList(begin);
    joined->parts.push_back({shards[index], shard, {begin.begin(), begin.end()}});
  }
  return ffi::ObjectRef(joined);
}

ResultMemory& GatheredResults() {
  static const auto memory = std::make_shared<ResultMemory>(kMostKeptBytes);
  return *memory;
}

/*! \brief A tensor for a gathered result; memory of earlier ones is used again. */
ffi::Tensor NewHostTensor(const ffi::Shape& shape, DLDataType dtype) {
  return GatheredResults().NewTensor(shape, dtype);
}

/*! \brief Gives the system what this process keeps of the memory of tensors that are gone. */
void ReturnMemory() {
  GatheredResults().FreeKept();
  ExtendedTensors().FreeKept();
  // Virtual machines allocate from a pool that all of them share.
  if (auto clear = ffi::Function::GetGlobal("vm.builtin.memory_manager.clear")) {
    try {
      (*clear)();
    } catch (const ffi::Error&) {  // the memory of a device on which nothing works stays
    }
  }
#ifdef __GLIBC__
  malloc_trim(0);  // each thread has had an arena of its own, which stays when the thread ends
#endif
}

void PasteShard(const ffi::TensorView& local, const ffi::TensorView& global,
                const ffi::Shape& begin) {
  DISTIR_REQUIRE(local.dtype() == global.dtype() && local.ndim() == global.ndim() &&
                     begin.size() == static_cast<size_t>(global.ndim()) &&
                     std::all_of(begin.begin(), begin.end(), [](int64_t at) { return at >= 0; }) &&
                     local.IsContiguous() && global.IsContiguous(),
                 ValueError)
      << "a shard of " << ffi::DLDataTypeToString(local.dtype()) << " " << FormatList(local.shape())
      << " cannot be put at " << FormatList(begin) << " of an array of "
      << ffi::DLDataTypeToString(global.dtype()) << " " << FormatList(global.shape());
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

ffi::Tensor NewArgument(const ffi::Shape& shape, DLDataType dtype, Communicator* communicator) {
  const int64_t num_bytes = CheckedBytes(shape, dtype);
  const bool is_seen = communicator != nullptr && communicator->PrefersNewTensors() &&
                       num_bytes >= kSmallestSeenBytes;
  return is_seen ? communicator->NewTensor(shape, dtype) : AllocateTensor(shape, dtype);
}

namespace {

/*! \brief Copies what a shard has of its array to where it belongs in a tensor. */
void CopyBox(const ShardObj& shard, char* target, const std::vector<int64_t>& target_strides) {
  const int64_t element_bytes = ElementBytes(shard.dtype);
  const BoxCopy copy(shard.inside, shard.byte_strides, target_strides, element_bytes);
  if (shard.process != 0) {
    const int64_t num_bytes = NumElements(shard.inside) * element_bytes;
    const int error = ReadProcess(shard.process, copy, shard.data, target, num_bytes);
    DISTIR_REQUIRE(error == 0, RuntimeError)
        << shard.file << " cannot be read: " << std::generic_category().message(error)
        << "; the worker that has it may have ended";
    return;
  }
  if (shard.file.empty()) {
    copy.Run(shard.data, target);
    return;
  }
  struct Read {
    const BoxCopy& copy;
    const char* source;
    char* target;
  } read{copy, shard.data, target};
  const auto run = [](const void* argument) {
    const Read& it = *static_cast<const Read*>(argument);
    it.copy.Run(it.source, it.target);
  };
  DISTIR_REQUIRE(ReadMapped(run, &read), ValueError)
      << shard.file << " was cut off while it was read, or cannot be read";
}

/*! \brief True if the array, or all parts together, have every element of a shard. */
bool IsFull(const ShardObj& shard) {
  if (shard.data != nullptr) return shard.inside == shard.extent;
  int64_t found = 0;
  for (const ShardObj::Part& part : shard.parts) found += NumElements(part.shard->inside);
  return found == NumElements(shard.extent);
}

void CopyShard(const ShardObj& shard, const ffi::Tensor& result) {
  const int64_t element_bytes = ElementBytes(shard.dtype);
  char* const target = DataOf(result);
  if (!IsFull(shard)) std::memset(target, 0, NumElements(shard.extent) * element_bytes);
  const std::vector<int64_t> strides = RowMajorStrides(shard.extent, element_bytes);
  if (shard.data != nullptr) CopyBox(shard, target, strides);
  for (const ShardObj::Part& part : shard.parts) {
    int64_t offset = 0;
    for (size_t i = 0; i < strides.size(); ++i) offset += part.begin[i] * strides[i];
    CopyBox(*part.shard, target + offset, strides);
  }
}

}  // namespace

ffi::Tensor CutShardToKeep(const ShardObj& shard, DLDevice device, Communicator* communicator) {
  const int64_t bytes = NumElements(shard.extent) * ElementBytes(shard.dtype);
  if (device.device_type != kDLCPU || bytes < kSmallestOwnPages)
    return CutShard(shard, device, device.device_type == kDLCPU ? nullptr : communicator);
  ffi::Tensor result =
      ffi::Tensor::FromNDAlloc(OwnPages(), ffi::Shape(shard.extent), shard.dtype, kHost);
  CopyShard(shard, result);
  return result;
}

ffi::Tensor CutShard(const ShardObj& shard, DLDevice device, Communicator* communicator) {
  ffi::Tensor result = NewArgument(ffi::Shape(shard.extent), shard.dtype, communicator);
  CopyShard(shard, result);
  return device.device_type == kDLCPU ? result : communicator->ToDevice(result);
}

ffi::Any CutShards(const ffi::Any& value, DLDevice device, Communicator* communicator) {
  if (const auto* shard = value.as<ShardObj>()) return CutShard(*shard, device, communicator);
  if (const auto* array = value.as<ffi::ArrayObj>()) {
    ffi::Array<ffi::Any> result;
    for (const ffi::Any& field : *array) result.push_back(CutShards(field, device, communicator));
    return result;
  }
  return value;
}

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = tvm::ffi::reflection;
  refl::ObjectDef<ShardObj>();
  support::Functions()
      .def("distir.runtime.shard", MakeShard)
      .def("distir.runtime.joined_shard", JoinShards)
      .def("distir.runtime.cut_shard",
           [](const ffi::Arc<ShardObj>& shard) {
             ffi::Tensor result = NewHostTensor(ffi::Shape(shard->extent), shard->dtype);
             CopyShard(*shard, result);
             return result;
           })
      .def("distir.runtime.new_host_tensor", NewHostTensor)
      .def("distir.runtime.paste", PasteShard)
      .def("distir.runtime.return_memory", ReturnMemory)
      .def("distir.runtime.address", [](const ffi::TensorView& tensor) {
        DISTIR_REQUIRE(tensor.IsContiguous(), ValueError)
            << "a tensor of shape " << FormatList(tensor.shape()) << " is not contiguous";
        return reinterpret_cast<int64_t>(DataOf(tensor));
      });
}

}  // namespace distir::runtime
