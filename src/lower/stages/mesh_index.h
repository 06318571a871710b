/*!
 * \file lower/stages/mesh_index.h
 * \brief Index of a function's bindings by mesh, from which the program of each SPMD group of
 * devices is made.
 *
 * A pipeline of n stages has n SPMD groups and n stages' worth of bindings; a walk over all
 * bindings for each group would take n * n steps. The index is made in one walk; the parts of all
 * groups together are as long as what they say.
 *
 * Worked example, meshes 0 and 1: in
 *
 *     a = f(x)             on 0
 *     b = g(transfer(a))   on 1
 *     s = R.shape([4])     on none
 *
 * the transfer is in the parts of both meshes, and so is s, which every device has.
 */
#ifndef DISTIR_LOWER_STAGES_MESH_INDEX_H_
#define DISTIR_LOWER_STAGES_MESH_INDEX_H_

#include <functional>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "dialect/mesh_table.h"
#include "ir/node.h"

namespace distir::lower {

/*! \brief The root meshes of each Relax function of a module. */
using FunctionRoots = std::map<const tvm::ffi::Object*, std::set<int>>;

/*! \brief Part of a function that the devices of some meshes have to look at. */
struct MeshPart {
  ir::Function function;                             // with these parameters and bindings only
  std::vector<int> params;                           // their positions
  std::vector<int> results;                          // leaves of the result
  std::unordered_set<const tvm::ffi::Object*> vars;  // the parameters and bound variables
};

class MeshIndex {
 public:
  /*! \param roots Of the functions that this one calls. */
  MeshIndex(const ir::Function& function, dialect::MeshTable* meshes, const FunctionRoots& roots);

  const ir::Function& function() const { return function_; }
  /*! \brief The part of devices that belong to these meshes. */
  MeshPart PartOf(const std::set<int>& roots) const;
  /*! \brief True if a variable is a parameter or bound in the body, on whichever mesh. */
  bool Defines(const ir::Var& var) const { return vars_.count(var.get()) > 0; }
  /*! \brief True if the type of a parameter mentions a symbolic dimension. */
  bool IsOfParams(const ir::Var& symbol) const { return symbols_.count(symbol.get()) > 0; }

 private:
  /*! \brief Positions by mesh. */
  class Places {
   public:
    void Add(int place, bool is_everywhere, const std::set<int>& roots);
    /*! \brief Sorted. */
    std::vector<int> Of(const std::set<int>& roots) const;

   private:
    std::vector<int> everywhere_;
    std::unordered_map<int, std::vector<int>> of_root_;
  };

  ir::Function function_;
  Places params_, bindings_, results_;
  Places fields_;  // of a body that ends in a tuple
  std::vector<ir::Binding> all_;
  std::unordered_set<const tvm::ffi::Object*> vars_, symbols_;
};

}  // namespace distir::lower
#endif  // DISTIR_LOWER_STAGES_MESH_INDEX_H_
