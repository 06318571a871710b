/*!
 * \file ir/tvm/pass.h
 * \brief Registers C++ functions over modules as ordinary TVM passes.
 */
#ifndef DISTIR_IR_TVM_PASS_H_
#define DISTIR_IR_TVM_PASS_H_

#include <functional>
#include <string>

#include "ir/node.h"

namespace distir::ir {

/*! \brief A tvm.transform.Pass of this name that applies `transform`. */
ffi::ObjectRef MakeModulePass(const std::string& name, std::function<IRModule(IRModule)> transform);

/*! \brief Writes one line at warning level to TVM's Python logging, once per distinct message and
 * pass. */
void Warn(const std::string& message);

}  // namespace distir::ir
#endif  // DISTIR_IR_TVM_PASS_H_
