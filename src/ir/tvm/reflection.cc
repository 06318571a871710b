// Resolves type keys, fields and functions of TVM when the library is loaded.
#include "ir/tvm/reflection.h"

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/reflection/accessor.h>
#include <tvm/ffi/reflection/registry.h>

#include <unordered_set>

#include "support/functions.h"

namespace distir::ir {

namespace {

std::vector<Resolvable*>& AllResolvables() {
  static std::vector<Resolvable*> list;
  return list;
}

std::vector<void (*)()>& AllOnLoad() {
  static std::vector<void (*)()> list;
  return list;
}

const TVMFFITypeInfo* FindType(const char* type_key) {
  TVMFFIByteArray key{type_key, std::char_traits<char>::length(type_key)};
  int32_t type_index;
  if (TVMFFITypeKeyToIndex(&key, &type_index) != 0) {
    TVMFFIObjectHandle error;
    TVMFFIErrorMoveFromRaised(&error);  // the caller reports what is missing
    if (error != nullptr) TVMFFIObjectDecRef(error);
    return nullptr;
  }
  return TVMFFIGetTypeInfo(type_index);
}

const TVMFFIFieldInfo* FindField(const TVMFFITypeInfo* type, const char* name) {
  // A field may be declared by an ancestor.
  std::string_view wanted(name);
  for (const TVMFFITypeInfo* info = type; info != nullptr;
       info = info->type_depth > 0 ? info->type_ancestors[info->type_depth - 1] : nullptr) {
    for (int32_t i = 0; i < info->num_fields; ++i) {
      if (std::string_view(info->fields[i].name.data, info->fields[i].name.size) == wanted) {
        return &info->fields[i];
      }
    }
  }
  return nullptr;
}

std::string MissingField(const char* type_key, const char* name) {
  return std::string("field `") + name + "` of `" + type_key + "`";
}

}  // namespace

Resolvable::Resolvable() { AllResolvables().push_back(this); }

OnLoad::OnLoad(void (*run)()) { AllOnLoad().push_back(run); }

void ResolveAll() {
  static bool resolved = false;
  if (resolved) return;
  std::string missing;
  std::unordered_set<std::string> said;  // several objects may need the same
  for (Resolvable* resolvable : AllResolvables()) {
    std::string what = resolvable->Resolve();
    if (!what.empty() && said.insert(what).second) missing += (missing.empty() ? "" : "; ") + what;
  }
  if (!missing.empty()) {
    TVM_FFI_THROW(RuntimeError) << "the loaded TVM lacks: " << missing;
  }
  resolved = true;
  for (auto* run : AllOnLoad()) run();
}

std::string Kind::Resolve() {
  const TVMFFITypeInfo* info = FindType(type_key_);
  if (info == nullptr) return std::string("type `") + type_key_ + "`";
  type_index_ = info->type_index;
  depth_ = info->type_depth;
  return "";
}

std::atomic<const TVMFFITypeInfo*> known_types[4096];  // all null

const TVMFFITypeInfo* FindTypeInfo(int32_t type_index) {
  const TVMFFITypeInfo* info = TVMFFIGetTypeInfo(type_index);
  if (static_cast<size_t>(type_index) < std::size(known_types))
    known_types[type_index].store(info, std::memory_order_release);
  return info;
}

std::string FieldOffset::Resolve() {
  const TVMFFITypeInfo* type = FindType(type_key_);
  if (type == nullptr) return std::string("type `") + type_key_ + "`";
  const TVMFFIFieldInfo* field = FindField(type, name_);
  if (field == nullptr) return MissingField(type_key_, name_);
  if (field->size != size_) return MissingField(type_key_, name_) + " (its size has changed)";
  offset_ = field->offset;
  return "";
}

void FieldOffset::ThrowNull() const {
  TVM_FFI_THROW(InternalError) << "the field `" << name_ << "` of " << type_key_
                               << " is read where there is none; please report the program";
}

std::string AttrField::Resolve() {
  const TVMFFITypeInfo* type = FindType(type_key_);
  if (type == nullptr) return std::string("type `") + type_key_ + "`";
  type_index_ = type->type_index;
  info_ = FindField(type, name_);
  return info_ == nullptr ? MissingField(type_key_, name_) : "";
}

ffi::Any AttrField::operator()(const ffi::ObjectRef& attrs) const {
  if (!attrs.defined() || attrs->type_index() != type_index_) return ffi::Any();
  return ffi::reflection::FieldGetter(static_cast<const TVMFFIFieldInfo*>(info_))(attrs.get());
}

int64_t AttrField::Int(const ffi::ObjectRef& attrs, int64_t fallback) const {
  return (*this)(attrs).as<int64_t>().value_or(fallback);
}

bool AttrField::Bool(const ffi::ObjectRef& attrs) const {
  ffi::Any value = (*this)(attrs);
  return value.as<int64_t>().value_or(0) != 0 || value.as<bool>().value_or(false);
}

std::string AttrField::Text(const ffi::ObjectRef& attrs) const {
  auto text = (*this)(attrs).as<ffi::String>();
  return text.has_value() ? std::string(*text) : std::string();
}

std::vector<ffi::Any> ListFields(const ffi::ObjectRef& object) {
  std::vector<ffi::Any> fields;
  ffi::reflection::ForEachFieldInfo(
      TVMFFIGetTypeInfo(object->type_index()), [&](const TVMFFIFieldInfo* field) {
        fields.push_back(ffi::String(field->name.data, field->name.size));
        fields.push_back(ffi::reflection::FieldGetter(field)(object.get()));
      });
  return fields;
}

ffi::Any GlobalFunction::Apply(const std::vector<ffi::Any>& arguments) const {
  std::vector<ffi::AnyView> views(arguments.begin(), arguments.end());
  ffi::Any result;
  function_.CallPacked(ffi::PackedArgs(views.data(), static_cast<int32_t>(views.size())), &result);
  return result;
}

std::string GlobalFunction::Resolve() {
  auto found = ffi::Function::GetGlobal(name_);
  if (!found.has_value()) return std::string("function `") + name_ + "`";
  function_ = *found;
  return "";
}

namespace {

/*! \brief The fields of a type that TVM's JSON has as they are, not as numbers of other nodes; null
 * for a type that does not exist. */
ffi::Any PlainFields(const ffi::String& type_key) {
  const TVMFFITypeInfo* type = FindType(type_key.c_str());
  if (type == nullptr) return ffi::Any();
  ffi::Array<ffi::String> names;
  ffi::reflection::ForEachFieldInfo(type, [&](const TVMFFIFieldInfo* field) {
    switch (field->field_static_type_index) {
      case TVMFFITypeIndex::kTVMFFINone:
      case TVMFFITypeIndex::kTVMFFIInt:
      case TVMFFITypeIndex::kTVMFFIBool:
      case TVMFFITypeIndex::kTVMFFIFloat:
      case TVMFFITypeIndex::kTVMFFIDataType:
        names.push_back(ffi::String(field->name.data, field->name.size));
        break;
      default:
        break;
    }
  });
  return names;
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  support::Functions()
      .def("distir.ir.Resolve", ResolveAll)
      .def("distir.ir.PlainFields", PlainFields);
}

}  // namespace distir::ir
