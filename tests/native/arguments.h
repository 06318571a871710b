/*!
 * \file tests/native/arguments.h
 * \brief Functions that only tests call, as global functions over plain data
 * (plain_shardings.h) and TVM's objects.
 *
 * A mesh is the two arguments (shape, device_ids). What is absent is None. Arguments are read one
 * after the other, each in a statement of its own. Example:
 * \code
 *   {"CommonPrefix", [](Arguments& in) -> Any {
 *      const AxisList a = in.Axes(), b = in.Axes();
 *      return FromAxes(CommonPrefix(a, b));
 *    }},
 * \endcode
 * All functions have one C++ type: as many types would take twice as long to compile.
 */
#ifndef TESTS_NATIVE_ARGUMENTS_H_
#define TESTS_NATIVE_ARGUMENTS_H_

#include <tvm/ffi/any.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "plain_shardings.h"

namespace distir::test {

namespace ffi = tvm::ffi;
using ffi::Any;

/*! \brief The arguments of one call. */
class Arguments {
 public:
  explicit Arguments(const ffi::PackedArgs& args) : args_(args) {}

  template <typename T>
  T Next() {
    return args_[next_++].template cast<T>();
  }
  Any NextAny() { return Any(args_[next_++]); }
  mesh::Ints Integers() { return Next<mesh::Ints>(); }
  mesh::Mesh Mesh() {
    const mesh::Ints shape = Integers(), ids = Integers();
    return mesh::ToMesh(shape, ids);
  }
  mesh::AxisList Axes() { return ToAxes(Next<AxisData>()); }
  mesh::AxisList AxesOn(const mesh::Mesh& mesh) { return ToAxesOn(mesh, Next<AxisData>()); }
  mesh::Sharding Sharding() { return ToSharding(Next<ShardingData>()); }
  mesh::Sharding ShardingOn(const mesh::Mesh& mesh) {
    return ToShardingOn(mesh, Next<ShardingData>());
  }

 private:
  const ffi::PackedArgs& args_;
  int next_ = 0;
};

using TestFunction = Any (*)(Arguments&);

/*! \brief Registers functions as distir.test.<name>; the result lets a static initialise from it.
 */
inline bool Register(std::initializer_list<std::pair<const char*, TestFunction>> functions) {
  for (const auto& [name, function] : functions) {
    ffi::Function::SetGlobal(
        std::string("distir.test.") + name,
        ffi::Function::FromPacked([function = function](ffi::PackedArgs args, Any* result) {
          Arguments arguments(args);
          *result = function(arguments);
        }));
  }
  return true;
}

/*! \brief The items as an array of what `convert` makes of each. */
template <typename Items, typename Convert>
ffi::Array<Any> ArrayOf(const Items& items, const Convert& convert) {
  ffi::Array<Any> array;
  for (const auto& item : items) array.push_back(convert(item));
  return array;
}

}  // namespace distir::test

#endif  // TESTS_NATIVE_ARGUMENTS_H_
