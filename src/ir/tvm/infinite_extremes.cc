// Lets TVM's schedules split maxima that begin at minus infinity, and minima at infinity. TVM
// itself knows only extremes that begin at the least and the greatest finite number.
#include <limits>

#include "ir/tir_node.h"
#include "ir/tvm/reflection.h"

namespace distir::ir {

namespace {

const GlobalFunction kRegisterReducer("s_tir.schedule.RegisterReducer");
const GlobalFunction kMaximum("prim.Max"), kMinimum("prim.Min");
const GlobalFunction kFloatImm("ir.FloatImm");

using Exprs = ffi::Array<Expr>;

void Register(const GlobalFunction& combine, double identity) {
  kRegisterReducer(1, ffi::Function::FromTyped([&combine](Exprs a, Exprs b) -> Exprs {
                     return {combine(a[0], b[0], Node()).cast<Expr>()};
                   }),
                   ffi::Function::FromTyped([identity](Exprs values) -> Exprs {
                     const DLDataType dtype = ScalarType(values[0]);
                     if (dtype.code == kDLInt || dtype.code == kDLUInt || dtype.code == kDLBool)
                       return values;  // nothing begins at its own result: these are not meant
                     return {kFloatImm(dtype, identity, Node()).cast<Expr>()};
                   }));
}

const OnLoad kRegister([] {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Register(kMaximum, -kInfinity);
  Register(kMinimum, kInfinity);
});

}  // namespace

}  // namespace distir::ir
