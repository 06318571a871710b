/*!
 * \file unfuse/statements.h
 * \brief Lists the statements of a kernel as LegalizeOps and FuseTIR write them: in sequence in one
 * block.
 */
#ifndef DISTIR_UNFUSE_STATEMENTS_H_
#define DISTIR_UNFUSE_STATEMENTS_H_

#include <algorithm>
#include <optional>
#include <set>
#include <vector>

#include "ir/tir_node.h"

namespace distir::unfuse {

namespace ffi = tvm::ffi;

/*! \brief The statements of a kernel of one block around all; empty for any other. */
std::vector<ir::Stmt> StatementsOf(const ir::PrimFunc& kernel);

bool HasReduction(const ir::Stmt& stmt);

using Buffers = std::vector<ir::Var>;

inline const ir::NodeArray<ir::Expr>& ShapeOf(const ir::Var& buffer) {
  return ir::BufferType::Cast(buffer.ty()).shape();
}

/*! \brief True if a buffer is among others, such as the parameters of a kernel. */
template <typename List>
bool Contains(const List& buffers, const ir::Var& buffer) {
  return std::any_of(buffers.begin(), buffers.end(),
                     [&buffer](const ir::Var& each) { return each.same_as(buffer); });
}

/*! \brief Some of the statements of a kernel. */
struct Section {
  std::vector<ir::Stmt> statements;
  std::set<const ffi::Object*> uses;  // buffers and sizes

  void Add(const ir::Stmt& stmt);
  bool Uses(const ir::Var& var) const { return uses.count(var.get()) > 0; }
};

/*! \brief True if the sizes that a section uses, and that are sizes of parameters of its kernel,
 * are sizes of some of them. */
bool StatesSizes(const ir::NodeArray<ir::Var>& params, const Section& section,
                 const ir::PrimFunc& kernel);

/*! \brief A size of a buffer inside a kernel: a constant, or that of a dimension of a parameter. */
struct SizeOf {
  int64_t constant;  // -1: of a parameter
  size_t param = 0;
  size_t dim = 0;
};

/*! \brief Sources of a buffer's sizes that a caller sees; nullopt if it sees none. */
std::optional<std::vector<SizeOf>> SizesOf(const ir::Var& buffer, const ir::PrimFunc& kernel);

/*! \brief A kernel of a section, with all definitions fresh.
 * \param buffers Those that the section uses, and that are no parameters. */
ir::PrimFunc MakeKernel(const ir::PrimFunc& like, const ir::NodeArray<ir::Var>& params,
                        const ir::NodeArray<ir::Var>& buffers, const Section& section);

}  // namespace distir::unfuse
#endif  // DISTIR_UNFUSE_STATEMENTS_H_
