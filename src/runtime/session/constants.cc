// Stores the constants of a program in the executable, and copies them to devices at first use.
#include "runtime/session/constants.h"

#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/session/worker_context.h"
#include "support/error.h"
#include "support/functions.h"

namespace distir::runtime {

namespace ffi = tvm::ffi;

namespace {

constexpr const char* kKind = "distir.constants";

/*! \brief Memory of the host for a tensor that is read from bytes. */
struct HostMemory {
  void AllocData(DLTensor* tensor) { tensor->data = new char[ffi::GetDataSize(*tensor)]; }
  void FreeData(DLTensor* tensor) { delete[] static_cast<char*>(tensor->data); }
};

/*! \brief Appends numbers, each as the bytes that it has in memory, and runs of bytes. */
class Writer {
 public:
  template <typename T>
  void Write(T number) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&number), sizeof(number));
  }
  void Write(const void* data, size_t size) { bytes_.append(static_cast<const char*>(data), size); }
  ffi::Bytes bytes() && { return ffi::Bytes(std::move(bytes_)); }

 private:
  std::string bytes_;
};

/*! \brief Reads what Writer has written. */
class Reader {
 public:
  explicit Reader(const ffi::Bytes& bytes) : data_(bytes.data()), left_(bytes.size()) {}

  template <typename T>
  T Read() {
    T number;
    Read(&number, sizeof(number));
    return number;
  }

  void Read(void* data, size_t size) {
    DISTIR_REQUIRE(size <= left_, ValueError) << "the constants of an executable are cut off";
    std::memcpy(data, data_, size);
    data_ += size;
    left_ -= size;
  }

 private:
  const char* data_;
  size_t left_;
};

void Save(const ffi::Tensor& tensor, Writer* writer) {
  writer->Write(tensor.dtype());
  writer->Write<int64_t>(tensor.ndim());
  for (const int64_t size : tensor.shape()) writer->Write(size);
  writer->Write(static_cast<const char*>(tensor.data_ptr()), ffi::GetDataSize(tensor));
}

ffi::Tensor Load(Reader* reader) {
  const auto dtype = reader->Read<DLDataType>();
  std::vector<int64_t> sizes(reader->Read<int64_t>());
  for (int64_t& size : sizes) size = reader->Read<int64_t>();
  auto tensor = ffi::Tensor::FromNDAlloc(HostMemory(), ffi::Shape(std::move(sizes)), dtype,
                                         DLDevice{kDLCPU, 0});
  reader->Read(tensor.data_ptr(), ffi::GetDataSize(tensor));
  return tensor;
}

/*! \brief A function that returns a tensor's copy on device 0 of a kind, which the first call
 * makes. */
ffi::Function CopyWhenCalled(const ffi::Tensor& value, int device_type) {
  struct Copy {
    std::once_flag once;
    std::optional<ffi::Tensor> tensor;
  };
  auto copy = std::make_shared<Copy>();
  return ffi::Function::FromTyped([value, device_type, copy] {
    std::call_once(copy->once, [&] {
      static const ffi::Function to_device =
          ffi::Function::GetGlobalRequired("vm.builtin.to_device");
      copy->tensor = to_device(value, device_type, 0).cast<ffi::Tensor>();
    });
    return *copy->tensor;
  });
}

class ConstantsObj : public ffi::ModuleObj {
 public:
  ConstantsObj(const ffi::String& prefix, const ffi::Array<ffi::Tensor>& values, int device_type)
      : prefix_(prefix), values_(values), device_type_(device_type) {}

  const char* kind() const final { return kKind; }

  int GetPropertyMask() const final {
    return ffi::Module::kBinarySerializable | ffi::Module::kRunnable;
  }

  bool ImplementsFunction(const ffi::String& name) final { return Find(name).has_value(); }

  ffi::Optional<ffi::Function> GetFunction(const ffi::String& name) final {
    const std::optional<ffi::Tensor> value = Find(name);
    if (!value.has_value()) return std::nullopt;
    WorkerContext* worker = WorkerContext::CurrentOrNull();
    if (worker == nullptr || worker->memory().device_type != device_type_)
      return CopyWhenCalled(*value, device_type_);
    const ffi::Tensor tensor = worker->communicator().ToDevice(*value);
    return ffi::Function::FromTyped([tensor] { return tensor; });
  }

  ffi::Bytes SaveToBytes() const final {
    Writer writer;
    writer.Write<int64_t>(device_type_);
    writer.Write<int64_t>(prefix_.size());
    writer.Write(prefix_.data(), prefix_.size());
    writer.Write<int64_t>(values_.size());
    for (const ffi::Tensor& value : values_) Save(value, &writer);
    return std::move(writer).bytes();
  }

 private:
  std::optional<ffi::Tensor> Find(const ffi::String& name) const {
    const std::string text = name;
    const std::string prefix = prefix_;
    if (text.compare(0, prefix.size(), prefix) != 0) return std::nullopt;
    const std::string number = text.substr(prefix.size());
    if (number.empty() || number.size() > 9 ||
        number.find_first_not_of("0123456789") != std::string::npos)
      return std::nullopt;
    const auto index = static_cast<size_t>(std::stoul(number));
    if (index >= values_.size()) return std::nullopt;
    return values_[index];
  }

  const ffi::String prefix_;
  const ffi::Array<ffi::Tensor> values_;
  const int device_type_;
};

ffi::Module LoadConstants(const ffi::Bytes& bytes) {
  Reader reader(bytes);
  const auto device_type = static_cast<int>(reader.Read<int64_t>());
  std::string prefix(reader.Read<int64_t>(), '\0');
  reader.Read(prefix.data(), prefix.size());
  ffi::Array<ffi::Tensor> values;
  for (auto left = reader.Read<int64_t>(); left > 0; --left) values.push_back(Load(&reader));
  return MakeConstants(prefix, values, device_type);
}

}  // namespace

ffi::Module MakeConstants(const ffi::String& prefix, const ffi::Array<ffi::Tensor>& values,
                          int device_type) {
  for (const ffi::Tensor& value : values) {
    DISTIR_REQUIRE(value.device().device_type == kDLCPU && value.IsContiguous(), ValueError)
        << "constants of programs lie in memory of the host, their elements one behind the other";
  }
  return ffi::Module(ffi::make_object<ConstantsObj>(prefix, values, device_type));
}

TVM_FFI_STATIC_INIT_BLOCK() {
  support::Functions()
      .def("distir.runtime.constants", MakeConstants)
      .def("ffi.Module.load_from_bytes.distir.constants", LoadConstants);
}

}  // namespace distir::runtime
