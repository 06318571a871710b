/*!
 * \file ir/tvm/reflection.h
 * \brief Typed reads of TVM's IR objects through tvm-ffi reflection, resolved once at load.
 *
 * The TVM wheel ships no compiler headers, so the layout of an object is known only at run time.
 * Every type key, field and global function that this library uses is a static `Kind`, `Field`,
 * `AttrField` or `GlobalFunction` below; each enters itself in one list when the library is loaded,
 * and `ResolveAll` looks all of them up. Reads after that are a load at a fixed offset.
 */
#ifndef DISTIR_IR_TVM_REFLECTION_H_
#define DISTIR_IR_TVM_REFLECTION_H_

#include <tvm/ffi/any.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/object.h>
#include <tvm/ffi/optional.h>
#include <tvm/ffi/reflection/accessor.h>
#include <tvm/ffi/string.h>

#include <atomic>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

namespace distir::ir {

namespace ffi = tvm::ffi;

/*! \brief Something that must be looked up in the loaded TVM before use. */
class Resolvable {
 public:
  Resolvable();
  virtual ~Resolvable() = default;
  Resolvable(const Resolvable&) = delete;
  Resolvable& operator=(const Resolvable&) = delete;
  /*! \brief Looks itself up; returns an empty string, or what is missing ("field `op` of
   * `ir.Call`"). */
  virtual std::string Resolve() = 0;
};

/*!
 * \brief Resolves every Resolvable of the library.
 * \throws RuntimeError listing everything that is missing.
 */
void ResolveAll();

/*! \brief Runs a function once, after everything is resolved: registration of operators and the
 * like. */
class OnLoad {
 public:
  explicit OnLoad(void (*run)());
};

/*! \brief Caches TVMFFITypeInfo by type index, once asked for: it never moves. */
extern std::atomic<const TVMFFITypeInfo*> known_types[4096];
/*! \brief Asks for it. */
const TVMFFITypeInfo* FindTypeInfo(int32_t type_index);

/*! \brief An object type, by its type key. */
class Kind : public Resolvable {
 public:
  explicit Kind(const char* type_key) : type_key_(type_key) {}
  std::string Resolve() override;
  /*! \brief True if the object is of this type or derived from it; false for null. */
  bool Matches(const ffi::Object* object) const {
    if (object == nullptr) return false;
    const int32_t index = object->type_index();
    return index == type_index_ || IsBaseOf(index);
  }
  const char* type_key() const { return type_key_; }
  int32_t type_index() const { return type_index_; }

 private:
  bool IsBaseOf(int32_t index) const {
    const TVMFFITypeInfo* info = static_cast<size_t>(index) < std::size(known_types)
                                     ? known_types[index].load(std::memory_order_acquire)
                                     : nullptr;
    if (info == nullptr) info = FindTypeInfo(index);
    return info->type_depth > depth_ && info->type_ancestors[depth_]->type_index == type_index_;
  }

  const char* type_key_;
  int32_t type_index_ = -1;
  int32_t depth_ = 0;
};

/*! \brief A field read by a typed load; T must have exactly the size of the field. Of an object
 * that is null the read is an InternalError that names the field. */
class FieldOffset : public Resolvable {
 public:
  FieldOffset(const char* type_key, const char* name, int64_t size)
      : type_key_(type_key), name_(name), size_(size) {}
  std::string Resolve() override;

 protected:
  const void* Address(const ffi::Object* object) const {
    if (__builtin_expect(static_cast<int64_t>(object == nullptr), 0) != 0) ThrowNull();
    return reinterpret_cast<const char*>(object) + offset_;
  }

 private:
  [[noreturn]] void ThrowNull() const;

  const char* type_key_;
  const char* name_;
  int64_t size_;
  int64_t offset_ = 0;
};

template <typename T>
class Field : public FieldOffset {
 public:
  Field(const char* type_key, const char* name) : FieldOffset(type_key, name, sizeof(T)) {}
  const T& operator()(const ffi::ObjectRef& object) const {
    return *static_cast<const T*>(Address(object.get()));
  }
};

/*! \brief A field read through its getter: for operator attributes, whose storage types vary. */
class AttrField : public Resolvable {
 public:
  AttrField(const char* type_key, const char* name) : type_key_(type_key), name_(name) {}
  std::string Resolve() override;
  /*! \brief The value; None when the attribute object is null or of another type. */
  ffi::Any operator()(const ffi::ObjectRef& attrs) const;
  int64_t Int(const ffi::ObjectRef& attrs, int64_t fallback) const;
  bool Bool(const ffi::ObjectRef& attrs) const;
  /*! \brief The value of a text; empty when it is None. */
  std::string Text(const ffi::ObjectRef& attrs) const;

 private:
  const char* type_key_;
  const char* name_;
  int32_t type_index_ = -1;
  const void* info_ = nullptr;
};

/*! \brief Calls `visit` with the value of each field of an object, those of its base types too. */
template <typename Visit>
void ForEachField(const ffi::ObjectRef& object, const Visit& visit) {
  ffi::reflection::ForEachFieldInfo(TVMFFIGetTypeInfo(object->type_index()),
                                    [&](const TVMFFIFieldInfo* field) {
                                      visit(ffi::reflection::FieldGetter(field)(object.get()));
                                    });
}

/*! \brief All fields of an object, those of its base types too: name, value, name, value, .. */
std::vector<ffi::Any> ListFields(const ffi::ObjectRef& object);

/*! \brief A function of TVM's global registry. */
class GlobalFunction : public Resolvable {
 public:
  explicit GlobalFunction(const char* name) : name_(name) {}
  std::string Resolve() override;
  template <typename... Args>
  ffi::Any operator()(Args&&... args) const {
    return function_(std::forward<Args>(args)...);
  }
  /*! \brief Calls it with as many arguments as there are. */
  ffi::Any Apply(const std::vector<ffi::Any>& arguments) const;

 private:
  const char* name_;
  ffi::Function function_{nullptr};
};

}  // namespace distir::ir
#endif  // DISTIR_IR_TVM_REFLECTION_H_
