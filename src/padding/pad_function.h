/*!
 * \file padding/pad_function.h
 * \brief Pads every dimension of one function that its shards do not divide.
 *
 * Worked example, rows of x on 4 devices:
 *
 *     x: R.DTensor((10, 8), "S[0]")                x: R.DTensor((12, 8), "S[0]")
 *     m = R.mean(x, axis=[0])                  ->  x_1 = R.where(..inside.., x, 0)
 *                                                  m_1 = R.sum(x_1, axis=[0])
 *                                                  m = R.divide(m_1, 10)
 *
 * Fills are left out where the tail is known to be zeros already: of parameters of functions that
 * others of the module call, and of what moves such a value.
 */
#ifndef DISTIR_PADDING_PAD_FUNCTION_H_
#define DISTIR_PADDING_PAD_FUNCTION_H_

#include <string>
#include <unordered_map>

#include "ir/node.h"
#include "padding/grains.h"
#include "rules/tir/resized_kernels.h"
#include "rules/tir/rule.h"

namespace distir::padding {

/*! \brief A function of the module before it is padded, and what is called then. */
struct PaddedFunction {
  ir::Function function;
  /*! \brief Another name than before if parameters or results are padded: it has a new type. */
  ir::GlobalVar name;
  /*! \brief Symbolic sizes that no padded parameter states: a last parameter, a shape, does. */
  ffi::Array<ir::Expr> sizes;
};
/*! \brief Padded functions by the name before. */
using PaddedFunctions = std::unordered_map<const ffi::Object*, PaddedFunction>;

/*! \brief State that the functions of a module share. */
struct PaddedModule {
  dialect::MeshTable* meshes;
  const Grains* grains;
  rules::KernelTable* kernels;
  rules::ResizedKernels* padded_kernels;
  const PaddedFunctions* functions;
};

/*!
 * \param is_called True if a function of the module calls it: then its results have tails of zeros.
 * \throws ValueError naming a variable whose operator cannot be padded along an uneven dimension.
 */
ir::Function PadFunction(const ir::Function& function, const ir::GlobalVar& name, bool is_called,
                         const PaddedModule& module);

}  // namespace distir::padding
#endif  // DISTIR_PADDING_PAD_FUNCTION_H_
