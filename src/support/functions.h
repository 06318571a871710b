/*!
 * \file support/functions.h
 * \brief Registers functions whose arguments are checked before they are called.
 *
 * Python finds a registered function by its name and calls it with anything. tvm-ffi takes None for
 * every handle, and every object for a view of TVM's (ir/node.h), which then reads fields that are
 * not there. A function that is registered here, or made by Typed, is called only with what its
 * signature says: a parameter `ir::IRModule mod` is an IRModule, never null; what may be null is an
 * `ffi::Optional`. Elements of arrays are checked in the same way. Anything else is a TypeError.
 *
 *     support::Functions().def("distir.phases.PhaseOf", [](ir::IRModule mod) { .. });
 */
#ifndef DISTIR_SUPPORT_FUNCTIONS_H_
#define DISTIR_SUPPORT_FUNCTIONS_H_

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>
#include <tvm/ffi/reflection/registry.h>

#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

namespace distir::support {

namespace ffi = tvm::ffi;

/*! \brief True if a handle holds what its type says; other types than handles always do. */
template <typename T, typename = void>
struct Fits {
  static constexpr bool kIsChecked = std::is_base_of_v<ffi::ObjectRef, T>;
  static std::string Name() { return ffi::TypeTraits<T>::TypeStr(); }
  static bool Check([[maybe_unused]] const T& value) {
    if constexpr (kIsChecked) return value.defined();
    return true;
  }
};

/*! \brief A view of TVM's objects, which knows its type. */
template <typename T>
struct Fits<T, std::void_t<decltype(T::GetKind())>> {
  static constexpr bool kIsChecked = true;
  static std::string Name() { return T::GetKind().type_key(); }
  static bool Check(const T& value) { return T::Is(value); }
};

template <typename T>
struct Fits<ffi::Optional<T>> {
  static constexpr bool kIsChecked = Fits<T>::kIsChecked;
  static std::string Name() { return "Optional<" + Fits<T>::Name() + ">"; }
  static bool Check(const ffi::Optional<T>& value) {
    return !value.has_value() || Fits<T>::Check(*value);
  }
};

template <typename T>
struct Fits<ffi::Array<T>> {
  static constexpr bool kIsChecked = true;
  static std::string Name() { return "Array<" + Fits<T>::Name() + ">"; }
  static bool Check(const ffi::Array<T>& values) {
    if (!values.defined()) return false;
    if constexpr (Fits<T>::kIsChecked) {
      for (const ffi::Any& value : *values.GetArrayObj()) {
        if (!Fits<T>::Check(value.cast<T>())) return false;
      }
    }
    return true;
  }
};

template <>
struct Fits<ffi::Any> {
  static constexpr bool kIsChecked = false;
  static std::string Name() { return "Any"; }
  static bool Check(const ffi::Any&) { return true; }
};

/*! \brief An argument that fits. */
template <typename T>
struct Given {
  T value;
};

namespace detail {

template <typename T>
using Parameter = std::conditional_t<Fits<std::decay_t<T>>::kIsChecked, Given<std::decay_t<T>>, T>;

template <typename T>
T&& ValueOf(T&& value) {
  return std::forward<T>(value);
}
template <typename T>
T ValueOf(Given<T>&& given) {
  return std::move(given.value);
}

template <typename Function, typename Result, typename... Args>
auto Checking(Function function, std::tuple<Args...>*) {
  return [function = std::move(function)](Parameter<Args>... args) -> Result {
    return function(ValueOf(std::move(args))...);
  };
}

template <typename Function>
auto Checking(Function function) {
  using Info = ffi::details::FunctionInfo<Function>;
  return Checking<Function, typename Info::RetType>(std::move(function),
                                                    static_cast<typename Info::ArgType*>(nullptr));
}

}  // namespace detail

/*! \brief A function for Python; see the file's comment. */
template <typename Function>
ffi::Function Typed(Function function) {
  return ffi::Function::FromTyped(detail::Checking(std::move(function)));
}

/*! \brief Registers functions under their names; see the file's comment. */
class Functions {
 public:
  template <typename Function>
  Functions& def(const char* name, Function function) {
    definitions_.def(name, detail::Checking(std::move(function)));
    return *this;
  }
  /*! \brief One that takes any number of arguments, and checks them itself. */
  template <typename Function>
  Functions& def_packed(const char* name, Function function) {
    definitions_.def_packed(name, std::move(function));
    return *this;
  }

 private:
  ffi::reflection::GlobalDef definitions_;
};

}  // namespace distir::support

namespace tvm {
namespace ffi {

template <typename T>
struct TypeTraits<distir::support::Given<T>> : public TypeTraitsBase {
  using Given = distir::support::Given<T>;
  static constexpr bool convert_enabled = true;
  static constexpr bool storage_enabled = false;
  static std::optional<Given> TryCastFromAnyView(const TVMFFIAny* source) {
    std::optional<T> value = TypeTraits<T>::TryCastFromAnyView(source);
    if (!value.has_value() || !distir::support::Fits<T>::Check(*value)) return std::nullopt;
    return Given{*std::move(value)};
  }
  static std::string GetMismatchTypeInfo(const TVMFFIAny* source) {
    // For an array, this finds an element that cannot be converted.
    if (!TypeTraits<T>::TryCastFromAnyView(source).has_value())
      return TypeTraits<T>::GetMismatchTypeInfo(source);
    return TypeTraitsBase::GetMismatchTypeInfo(source);
  }
  static std::string TypeStr() { return distir::support::Fits<T>::Name(); }
  static std::string TypeSchema() { return TypeTraits<T>::TypeSchema(); }
};

}  // namespace ffi
}  // namespace tvm
#endif  // DISTIR_SUPPORT_FUNCTIONS_H_
