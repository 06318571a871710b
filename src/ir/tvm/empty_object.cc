// Makes objects of TVM through their reflected creators, without an FFI call for each.
#include "ir/tvm/empty_object.h"

#include <tvm/ffi/error.h>

#include <algorithm>

namespace distir::ir {

std::string EmptyObject::Resolve() {
  const std::string missing = kind_.Resolve();
  if (!missing.empty()) return missing;
  const TVMFFITypeInfo* type = TVMFFIGetTypeInfo(kind_.type_index());
  std::vector<std::string> fields;
  int64_t size = sizeof(TVMFFIObject);
  ffi::reflection::ForEachFieldInfo(type, [&](const TVMFFIFieldInfo* field) {
    fields.emplace_back(field->name.data, field->name.size);
    size += field->size;
  });
  std::sort(fields.begin(), fields.end());
  // A field without a name cannot be set.
  const bool is_known = type->metadata != nullptr && type->metadata->creator != nullptr &&
                        type->metadata->total_size == size && fields == fields_;
  if (!is_known) return std::string("type `") + kind_.type_key() + "` (its fields have changed)";
  creator_ = type->metadata->creator;
  return "";
}

ffi::ObjectPtr<ffi::Object> EmptyObject::Make() const {
  TVMFFIObjectHandle made;
  TVM_FFI_CHECK_SAFE_CALL(creator_(&made));
  return ffi::details::ObjectUnsafe::ObjectPtrFromOwned<ffi::Object>(
      static_cast<TVMFFIObject*>(made));
}

}  // namespace distir::ir
