/*!
 * \file ir/tir_node.h
 * \brief Views of TIR objects, and edits that resize kernels.
 *
 * A buffer is an ordinary variable whose type is a BufferType; loads are expressions, stores are
 * statements. Objects without a view here are opaque to this library.
 */
#ifndef DISTIR_IR_TIR_NODE_H_
#define DISTIR_IR_TIR_NODE_H_

#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "ir/node.h"

namespace distir::ir {

// ---- functions and buffers

class BufferType : public Type {
  DISTIR_VIEW(BufferType, Type)
  const NodeArray<Expr>& shape() const;
  DLDataType element_type() const;
  /*! \brief Row-major from offset 0, without a layout: what every Relax tensor is. */
  bool IsCompact() const;
};

class Stmt : public Node {
  DISTIR_VIEW(Stmt, Node)
};

class PrimFunc : public BaseFunc {
  DISTIR_VIEW(PrimFunc, BaseFunc)
  const NodeArray<Var>& params() const;
  const Stmt& body() const;
};

class Range : public Node {
  DISTIR_VIEW(Range, Node)
  const Expr& min() const;
  const Expr& extent() const;
};

// ---- statements

class For : public Stmt {
  DISTIR_VIEW(For, Stmt)
  const Var& loop_var() const;
  const Expr& min() const;
  const Expr& extent() const;
  const Stmt& body() const;
  /*! \brief Counts 0, 1, .., extent - 1, and is not bound to a thread. */
  bool IsPlain() const;
  /*! \brief Thread axis, as "blockIdx.x", if it counts 0, 1, .., extent - 1; else empty.
   */
  std::string ThreadTag() const;
};

enum class IteratorKind { kSpatial, kReduction, kOther };

class IterVar : public Node {
  DISTIR_VIEW(IterVar, Node)
  const Range& dom() const;
  const Var& var() const;
  IteratorKind kind() const;
};

class TensorRegion : public Expr {
  DISTIR_VIEW(TensorRegion, Expr)
  const Var& source() const;
  const NodeArray<Range>& region() const;
};

class SBlock : public Stmt {
  DISTIR_VIEW(SBlock, Stmt)
  const NodeArray<IterVar>& iter_vars() const;
  const NodeArray<TensorRegion>& reads() const;
  const NodeArray<TensorRegion>& writes() const;
  const NodeArray<Var>& alloc_buffers() const;
  const NodeArray<Node>& match_buffers() const;
  /*! \brief Null when there is none. */
  const Stmt& init() const;
  const Stmt& body() const;
};

class SBlockRealize : public Stmt {
  DISTIR_VIEW(SBlockRealize, Stmt)
  const NodeArray<Expr>& iter_values() const;
  const Expr& predicate() const;
  const SBlock& block() const;
};

/*! \brief A buffer that is a region of another one, within a block. */
class MatchBuffer : public Node {
  DISTIR_VIEW(MatchBuffer, Node)
  const Var& buffer() const;
  const TensorRegion& source() const;
};

class AttrStmt : public Stmt {
  DISTIR_VIEW(AttrStmt, Stmt)
  const Stmt& body() const;
};

/*! \brief True if a statement only declares a buffer, or states what holds. */
bool IsDeclaration(const Stmt& stmt);

class SeqStmt : public Stmt {
  DISTIR_VIEW(SeqStmt, Stmt)
  const NodeArray<Stmt>& seq() const;
};

class IfThenElse : public Stmt {
  DISTIR_VIEW(IfThenElse, Stmt)
  const Expr& condition() const;
  const Stmt& then_case() const;
  const Stmt& else_case() const;
};

class BufferStore : public Stmt {
  DISTIR_VIEW(BufferStore, Stmt)
  const Var& buffer() const;
  const Expr& value() const;
  const NodeArray<Expr>& indices() const;
};

class BindStmt : public Stmt {
  DISTIR_VIEW(BindStmt, Stmt)
  const Expr& value() const;
};

class Evaluate : public Stmt {
  DISTIR_VIEW(Evaluate, Stmt)
  const Expr& value() const;
};

// ---- expressions

class TensorLoad : public Expr {
  DISTIR_VIEW(TensorLoad, Expr)
  const Expr& source() const;
  const NodeArray<Expr>& indices() const;
};

class FloatImm : public Expr {
  DISTIR_VIEW(FloatImm, Expr)
  double value() const;
};

enum class BinaryKind {
  kAdd,
  kSub,
  kMul,
  kDiv,
  kMod,
  kFloorDiv,
  kFloorMod,
  kMin,
  kMax,
  kLessEqual,
  kOther
};

/*! \brief A node of two operands: arithmetic, comparison or logic. */
class BinaryExpr {
 public:
  static BinaryExpr Cast(const Expr& expr);
  bool defined() const { return kind_index_ >= 0; }
  BinaryKind kind() const;
  const Expr& a() const;
  const Expr& b() const;

 private:
  Expr expr_;
  int kind_index_ = -1;
};

class CastExpr : public Expr {
  DISTIR_VIEW(CastExpr, Expr)
  const Expr& value() const;
};

/*!
 * \brief Calls `visit` for each operand of an expression other than a load, whose parts are not
 * operands but an access.
 * \return True if the expression is of a known kind without side effects; a leaf has no operands.
 */
bool VisitOperands(const Expr& expr, const std::function<void(const Expr&)>& visit);

/*! \brief The variables that a statement uses and does not define: buffers, sizes. */
ffi::Array<Var> UsedVars(const Stmt& stmt);

/*! \brief The element type of a scalar expression. */
DLDataType ScalarType(const Expr& expr);
/*! \brief An integer of the same type as `like`. */
Expr MakeIntLike(int64_t value, const Expr& like);
Expr AddIndices(const Expr& a, const Expr& b);
/*! \brief The quotient, rounded down. */
Expr QuotientOf(const Expr& index, int64_t divisor);
/*! \brief The remainder of that. */
Expr RemainderOf(const Expr& index, int64_t divisor);
Expr MultiplyExtent(const Expr& extent, int64_t factor);
/*! \brief An extent in `shards` equal parts. */
Expr DivideExtent(const Expr& extent, int64_t shards);

// ---- edits

struct KernelEdit {
  /*! \brief Replacements of variables: resized buffers, symbolic sizes in terms of others. */
  std::unordered_map<const ffi::Object*, Expr> variables;
  /*! \brief New extents of loops and block iterators, by their variable. */
  std::unordered_map<const ffi::Object*, Expr> extents;
  /*! \brief Other ways to write expressions of arithmetic. */
  std::unordered_map<const ffi::Object*, Expr> arithmetic;
  /*! \brief Resized dimensions of each resized buffer, by its new variable. */
  std::unordered_map<const ffi::Object*, std::vector<bool>> resized;
  /*! \brief Gives a buffer this shape. */
  void Reshape(const Var& buffer, const NodeArray<Expr>& shape, std::vector<bool> resized_dims);
};

/*!
 * \brief A copy of a kernel with the edit applied; what the edit does not replace is still the same
 * object. Regions that spanned a whole dimension of a buffer span its new size.
 */
PrimFunc EditKernel(const PrimFunc& function, const KernelEdit& edit, const Node& attrs);
/*!
 * \brief A kernel of some of the statements of another one, of the same objects.
 * \param like A kernel of one block without iterators, of which everything else is kept.
 * \param buffers Those that the statements use, and that are no parameters.
 */
PrimFunc MakeSection(const PrimFunc& like, const NodeArray<Var>& params,
                     const NodeArray<Var>& buffers, const std::vector<Stmt>& statements,
                     const Node& attrs);
/*! \brief The function with all definitions fresh, so that it can stand beside the one that it was
 * made from. */
PrimFunc RenewDefinitions(const PrimFunc& function);

}  // namespace distir::ir
#endif  // DISTIR_IR_TIR_NODE_H_
