// Splits a kernel into concat, split, known operators and smaller kernels.
#include "unfuse/kernel_pieces.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "ir/build.h"
#include "ir/symbolic.h"
#include "rules/stated/user_rules.h"
#include "unfuse/statements.h"

namespace distir::unfuse {

namespace {

bool IsSameType(const ir::Var& a, const ir::Var& b) {
  const DLDataType x = ir::BufferType::Cast(a.ty()).element_type();
  const DLDataType y = ir::BufferType::Cast(b.ty()).element_type();
  return x.code == y.code && x.bits == y.bits && x.lanes == y.lanes;
}

/*! \brief One assignment to each element of a buffer, out[i, j, ..] = value. */
struct Assignment {
  ir::Var buffer;
  ir::Expr value;
  std::vector<ir::Var> iterators;  // by dimension
};

/*! \brief The statement as an assignment to all elements of a buffer. */
std::optional<Assignment> ReadAssignment(const ir::Stmt& stmt) {
  std::unordered_map<const ffi::Object*, ir::Expr> extents;
  ir::Stmt inner = stmt;
  for (auto loop = ir::For::Cast(inner); loop.defined(); loop = ir::For::Cast(inner)) {
    if (!loop.IsPlain()) return std::nullopt;
    extents.emplace(loop.loop_var().get(), loop.extent());
    inner = loop.body();
  }
  auto realize = ir::SBlockRealize::Cast(inner);
  if (!realize.defined() || ir::StaticDim(realize.predicate()) != 1) return std::nullopt;
  const ir::SBlock& block = realize.block();
  auto store = ir::BufferStore::Cast(block.body());
  if (!store.defined() || block.init().defined() || !block.match_buffers().empty() ||
      !block.alloc_buffers().empty())
    return std::nullopt;
  Assignment found{store.buffer(), store.value(), {}};
  if (!ir::BufferType::Cast(found.buffer.ty()).IsCompact()) return std::nullopt;
  const ir::NodeArray<ir::Expr>& shape = ShapeOf(found.buffer);
  if (block.iter_vars().size() != shape.size() || extents.size() != shape.size())
    return std::nullopt;
  for (size_t d = 0; d < shape.size(); ++d) {
    const ir::IterVar& iterator = block.iter_vars()[d];
    auto loop = extents.find(realize.iter_values()[d].get());
    const bool is_all = loop != extents.end() && ir::SameDim(loop->second, shape[d]) &&
                        ir::StaticDim(iterator.dom().min()) == 0 &&
                        ir::SameDim(iterator.dom().extent(), shape[d]) &&
                        iterator.kind() == ir::IteratorKind::kSpatial &&
                        store.indices()[d].same_as(iterator.var());
    if (!is_all) return std::nullopt;
    extents.erase(loop);
    found.iterators.push_back(iterator.var());
  }
  return found;
}

/*! \brief The buffer that a statement writes; null where there are several. */
ir::Var WrittenBy(const ir::Stmt& stmt) {
  if (auto loop = ir::For::Cast(stmt); loop.defined()) return WrittenBy(loop.body());
  if (auto realize = ir::SBlockRealize::Cast(stmt); realize.defined())
    return WrittenBy(realize.block().body());
  auto store = ir::BufferStore::Cast(stmt);
  return store.defined() ? store.buffer() : ir::Var();
}

/*! \brief Load of a buffer in an assignment. */
struct Read {
  ir::Var buffer;
  std::vector<ir::Expr> indices;

  bool IsPlain(const Assignment& to, size_t d) const { return indices[d].same_as(to.iterators[d]); }
};

std::optional<Read> ReadLoad(const ir::Expr& value, const Assignment& to) {
  auto load = ir::TensorLoad::Cast(value);
  if (!load.defined() || load.indices().size() != to.iterators.size()) return std::nullopt;
  const ir::Var buffer = ir::Var::Cast(load.source());
  if (!buffer.defined() || !ir::BufferType::Cast(buffer.ty()).IsCompact() ||
      !IsSameType(buffer, to.buffer))
    return std::nullopt;
  return Read{buffer, {load.indices().begin(), load.indices().end()}};
}

bool IsPlainBut(const std::vector<Read>& reads, const Assignment& to, size_t dim) {
  for (const Read& read : reads) {
    for (size_t d = 0; d < to.iterators.size(); ++d) {
      if (d == dim) continue;
      if (!read.IsPlain(to, d) || !ir::SameDim(ShapeOf(read.buffer)[d], ShapeOf(to.buffer)[d]))
        return false;
    }
  }
  return true;
}

// out[j] = c[j - 6] if 6 <= j else (b[j - 4] if 4 <= j else a[j]), of sizes 4, 2, ..
std::optional<Piece> ReadConcat(const Assignment& to) {
  std::vector<Read> reads;
  std::vector<ir::BinaryExpr> conditions;
  ir::Expr rest = to.value;
  for (auto call = ir::Call::Cast(rest); call.defined(); call = ir::Call::Cast(rest)) {
    if (!ir::IsOp(call.op(), "prim.if_then_else")) return std::nullopt;
    conditions.push_back(ir::BinaryExpr::Cast(call.args()[0]));
    auto read = ReadLoad(call.args()[1], to);
    if (!read || !conditions.back().defined() ||
        conditions.back().kind() != ir::BinaryKind::kLessEqual)
      return std::nullopt;
    reads.push_back(std::move(*read));
    rest = call.args()[2];
  }
  auto first = ReadLoad(rest, to);
  if (!first || reads.empty()) return std::nullopt;
  reads.push_back(std::move(*first));
  std::reverse(reads.begin(), reads.end());
  std::reverse(conditions.begin(), conditions.end());
  const std::vector<ir::Expr>& second = reads[1].indices;
  size_t dim = 0;
  while (dim < second.size() && reads[1].IsPlain(to, dim)) ++dim;
  if (dim == second.size() || !reads[0].IsPlain(to, dim) || !IsPlainBut(reads, to, dim))
    return std::nullopt;
  const ir::Var& at = to.iterators[dim];
  ir::Expr offset = ir::MakeIntLike(0, at);
  Piece piece{Piece::Kind::kConcat, {}, {to.buffer}, static_cast<int>(dim)};
  for (size_t i = 0; i < reads.size(); ++i) {
    if (i > 0) {
      // The condition is offset <= at, and what is read at - offset.
      const ir::Expr& below = conditions[i - 1].a();
      const ir::Expr& above = conditions[i - 1].b();
      if (!ir::SameDim(ir::AddIndices(reads[i].indices[dim], offset), at) ||
          !ir::SameDim(ir::AddIndices(below, at), ir::AddIndices(above, offset)))
        return std::nullopt;
    }
    piece.takes.push_back(reads[i].buffer);
    offset = ir::AddIndices(offset, ShapeOf(reads[i].buffer)[dim]);
  }
  if (!ir::SameDim(offset, ShapeOf(to.buffer)[dim])) return std::nullopt;
  return piece;
}

class PieceReader {
 public:
  explicit PieceReader(const ir::PrimFunc& kernel)
      : kernel_(kernel), statements_(StatementsOf(kernel)) {}

  std::optional<std::vector<Piece>> Run() {
    if (statements_.empty()) return std::nullopt;
    for (const ir::Var& buffer : ir::SBlockRealize::Cast(kernel_.body()).block().alloc_buffers())
      inside_.push_back(buffer);
    for (const ir::Stmt& stmt : statements_) {
      assignments_.push_back(ReadAssignment(stmt));
      written_.push_back(WrittenBy(stmt));
    }
    size_t next = 0;
    bool any = false;
    while (next < statements_.size()) {
      const size_t begin = next;
      auto piece = ReadOperator(&next);
      if (!piece) {
        if (!written_[begin].defined()) return std::nullopt;
        rest_.push_back(begin);
        next = begin + 1;
        continue;
      }
      any = true;
      if (!GiveAll(piece->takes)) return std::nullopt;
      Add(std::move(*piece));
    }
    if (!any) return std::nullopt;
    // Buffers that no operator takes are results, of one statement after the other.
    Buffers results;
    for (const ir::Var& param : kernel_.params()) {
      const bool is_rest = std::any_of(rest_.begin(), rest_.end(),
                                       [&](size_t i) { return written_[i].same_as(param); });
      if (is_rest) results.push_back(param);
    }
    if (!GiveAll(results) || !rest_.empty()) return std::nullopt;
    return pieces_;
  }

 private:
  /*! \brief The operator that begins here; moves behind it. */
  std::optional<Piece> ReadOperator(size_t* next) {
    if (assignments_[*next]) {
      if (auto concat = ReadConcat(*assignments_[*next])) {
        ++*next;
        return concat;
      }
      if (auto split = ReadSplit(next)) return split;
    }
    auto found = OperatorAt(kernel_, statements_, *next);
    if (!found) return std::nullopt;
    *next += found->num_statements;
    Piece piece{Piece::Kind::kOperator, std::move(found->takes), {found->gives}};
    piece.make = std::move(found->make);
    return piece;
  }

  // a[j] = x[j], b[j] = x[j + 4], ..: until all of x is read.
  std::optional<Piece> ReadSplit(size_t* next) {
    const size_t begin = *next;
    std::vector<Read> reads;
    for (size_t i = begin; i < statements_.size() && assignments_[i]; ++i) {
      auto read = ReadLoad(assignments_[i]->value, *assignments_[i]);
      if (!read || (!reads.empty() && !read->buffer.same_as(reads[0].buffer))) break;
      reads.push_back(std::move(*read));
    }
    if (reads.size() < 2) return std::nullopt;
    size_t dim = 0;
    while (dim < reads[1].indices.size() && reads[1].IsPlain(*assignments_[begin + 1], dim)) ++dim;
    if (dim == reads[1].indices.size()) return std::nullopt;
    Piece piece{Piece::Kind::kSplit, {reads[0].buffer}, {}, static_cast<int>(dim)};
    const int64_t all = ir::StaticDim(ShapeOf(reads[0].buffer)[dim]);
    int64_t offset = 0;
    for (size_t i = 0; i < reads.size() && offset < all; ++i) {
      const Assignment& to = *assignments_[begin + i];
      const int64_t size = ir::StaticDim(ShapeOf(to.buffer)[dim]);
      const ir::Expr from =
          ir::AddIndices(to.iterators[dim], ir::MakeIntLike(offset, to.iterators[dim]));
      if (size <= 0 || !IsPlainBut({reads[i]}, to, dim) ||
          !ir::SameDim(reads[i].indices[dim], from))
        return std::nullopt;
      if (i > 0) piece.points.push_back(offset);
      piece.gives.push_back(to.buffer);
      offset += size;
    }
    if (offset != all) return std::nullopt;
    *next = begin + piece.gives.size();
    return piece;
  }

  bool IsInside(const ir::Var& buffer) const { return Contains(inside_, buffer); }

  void Add(Piece piece) {
    for (const ir::Var& buffer : piece.gives) given_.push_back(buffer);
    pieces_.push_back(std::move(piece));
  }

  /*! \brief Makes a kernel of what writes each of some buffers, where none has yet. */
  bool GiveAll(const Buffers& buffers) {
    return std::all_of(buffers.begin(), buffers.end(),
                       [this](const ir::Var& buffer) { return Give(buffer); });
  }

  bool Give(const ir::Var& buffer) {
    if (Contains(given_, buffer)) return true;
    // Backwards from what writes it to what writes what is read there.
    Section needed;
    needed.uses.insert(buffer.get());
    std::vector<size_t> chosen;
    for (auto i = rest_.rbegin(); i != rest_.rend(); ++i) {
      if (!needed.Uses(written_[*i])) continue;
      needed.Add(statements_[*i]);
      chosen.push_back(*i);
    }
    if (chosen.empty()) return !IsInside(buffer);  // an operand
    // A buffer that others read, too, is a piece of its own.
    for (size_t i : chosen) {
      if (written_[i].same_as(buffer) || !IsReadElsewhere(written_[i], chosen)) continue;
      return Give(written_[i]) && Give(buffer);
    }
    Section section;
    Buffers own;
    for (auto i = chosen.rbegin(); i != chosen.rend(); ++i) {
      section.Add(statements_[*i]);
      own.push_back(written_[*i]);
      rest_.erase(std::find(rest_.begin(), rest_.end(), *i));
    }
    Piece piece{Piece::Kind::kKernel, {}, {buffer}};
    ffi::Array<ir::Var> params, inside;
    const auto take = [&](const ir::Var& var) {
      if (!section.Uses(var) || var.same_as(buffer)) return;
      params.push_back(var);
      piece.takes.push_back(var);
    };
    for (const ir::Var& param : kernel_.params()) take(param);
    for (const ir::Var& each : inside_) {
      if (Contains(given_, each)) {
        take(each);
      } else if (section.Uses(each) && !each.same_as(buffer)) {
        // A value that another piece has computed for itself would be computed twice.
        if (!Contains(own, each)) return false;
        inside.push_back(each);
      }
    }
    params.push_back(buffer);
    if (!StatesSizes(params, section, kernel_)) return false;
    piece.kernel = MakeKernel(kernel_, params, inside, section);
    Add(std::move(piece));
    return true;
  }

  bool IsReadElsewhere(const ir::Var& buffer, const std::vector<size_t>& chosen) const {
    for (size_t i = 0; i < statements_.size(); ++i) {
      const bool is_chosen = std::find(chosen.begin(), chosen.end(), i) != chosen.end();
      if (is_chosen || written_[i].same_as(buffer)) continue;
      Section other;
      other.Add(statements_[i]);
      if (other.Uses(buffer)) return true;
    }
    return false;
  }

  const ir::PrimFunc& kernel_;
  const std::vector<ir::Stmt> statements_;
  std::vector<std::optional<Assignment>> assignments_;  // by statement
  Buffers written_;                                     // the same
  Buffers inside_;                                      // that the kernel allocates
  std::vector<size_t> rest_;                            // statements in no piece yet
  Buffers given_;                                       // by the pieces
  std::vector<Piece> pieces_;
};

}  // namespace

std::optional<std::vector<Piece>> PiecesOf(const std::string& name, const ir::PrimFunc& kernel) {
  // A user who states a rule knows what the kernel is to be.
  if (rules::StatedRule(name, kernel)) return std::nullopt;
  return PieceReader(kernel).Run();
}

}  // namespace distir::unfuse
