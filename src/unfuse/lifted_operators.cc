// Replaces calls of kernels by the operators that they contain.
#include "unfuse/lifted_operators.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ir/build.h"
#include "ir/make_operators.h"
#include "ir/report.h"
#include "ir/rewriter.h"
#include "rules/call/infer_type.h"
#include "unfuse/kernel_pieces.h"
#include "unfuse/new_kernels.h"
#include "unfuse/pass.h"
#include "unfuse/statements.h"

namespace distir::unfuse {

namespace {

/*! \brief A piece, under the name by which it is called. */
struct NamedPiece {
  Piece piece;
  ir::GlobalVar name;         // of kKernel
  std::vector<SizeOf> shape;  // the same, of what it gives
};

/*! \brief The pieces of the kernels of a module, read on first use. */
class PieceTable {
 public:
  explicit PieceTable(const ir::IRModule& mod) : kernels_(mod) {}

  /*! \brief The pieces of what a call calls; null where it stays. */
  const std::vector<NamedPiece>* Find(const ir::Call& call) {
    const ir::PrimFunc kernel = KernelOf(call, kernels_);
    if (!kernel.defined()) return nullptr;
    auto [known, is_new] = known_.try_emplace(kernel.get());
    if (is_new) known->second = Make(ir::GlobalVar::Cast(call.args()[0]).name(), kernel);
    return known->second ? &*known->second : nullptr;
  }

  const NewKernels& kernels() const { return kernels_; }

 private:
  std::optional<std::vector<NamedPiece>> Make(const std::string& name, const ir::PrimFunc& kernel) {
    auto pieces = PiecesOf(name, kernel);
    if (!pieces) return std::nullopt;
    std::vector<NamedPiece> named;
    for (Piece& piece : *pieces) {
      NamedPiece each{std::move(piece), {}, {}};
      if (each.piece.kind == Piece::Kind::kKernel) {
        auto shape = SizesOf(each.piece.gives[0], kernel);
        if (!shape) return std::nullopt;
        each.shape = std::move(*shape);
      }
      named.push_back(std::move(each));
    }
    for (NamedPiece& each : named) {
      if (each.piece.kernel.defined()) each.name = kernels_.Add(name, each.piece.kernel);
    }
    return named;
  }

  NewKernels kernels_;
  std::unordered_map<const ffi::Object*, std::optional<std::vector<NamedPiece>>> known_;
};

class Lifter : public ir::FunctionRewriter {
 public:
  explicit Lifter(PieceTable* pieces) : pieces_(*pieces) {}

  /*! \brief The function; null where nothing in it is to be lifted. */
  ir::Function Run(const ir::Function& function) {
    bool any = false;
    ir::VisitBindings(function.body(), [&](const ir::Binding& binding) {
      const ir::Call call = ir::BoundCall(binding);
      any = any || (call.defined() && pieces_.Find(call) != nullptr);
    });
    return any ? RewriteFunction(function) : ir::Function();
  }

 private:
  void RewriteVarBinding(const ir::Var& var, const ir::Expr& value) override {
    auto call = ir::Call::Cast(value);
    const std::vector<NamedPiece>* pieces = call.defined() ? pieces_.Find(call) : nullptr;
    if (pieces == nullptr) return FunctionRewriter::RewriteVarBinding(var, value);
    CountOperators(*pieces);
    Credit(kPass, "relax.call_tir", var);
    const ir::PrimFunc kernel = KernelOf(call, pieces_.kernels());
    const ir::NodeArray<ir::Expr>& whole = ir::Tuple::Cast(call.args()[1]).fields();
    std::unordered_map<const ffi::Object*, ir::Expr> values;
    std::vector<ir::Var> results;
    for (size_t i = 0; i < kernel.params().size(); ++i) {
      if (i < whole.size()) {
        values.emplace(kernel.params()[i].get(), Rewrite(whole[i]));
      } else {
        results.push_back(kernel.params()[i]);
      }
    }
    for (const NamedPiece& each : *pieces) {
      const ir::Expr made = CallOf(each, call, var, values);
      const std::vector<ir::Var>& gives = each.piece.gives;
      const bool is_all =
          std::equal(gives.begin(), gives.end(), results.begin(), results.end(),
                     [](const ir::Var& a, const ir::Var& b) { return a.same_as(b); });
      if (is_all) return void(Bind(var, made, var.ty()));
      const ir::Expr bound = Emit(var.name(), made);
      for (size_t i = 0; i < gives.size(); ++i) {
        values[gives[i].get()] =
            each.piece.kind == Piece::Kind::kSplit
                ? ir::Expr(Emit(var.name(), ir::MakeTupleGetItem(bound, static_cast<int>(i))))
                : bound;
      }
    }
    ffi::Array<ir::Expr> all;
    for (const ir::Var& result : results) all.push_back(values.at(result.get()));
    if (ir::DataflowVar::Is(var)) {
      Replace(var, ir::MakeTuple(all));
    } else {
      Bind(var, ir::MakeTuple(all));
    }
  }

  ir::Expr CallOf(const NamedPiece& each, const ir::Call& whole, const ir::Var& var,
                  const std::unordered_map<const ffi::Object*, ir::Expr>& values) {
    ffi::Array<ir::Expr> operands;
    for (const ir::Var& taken : each.piece.takes) operands.push_back(values.at(taken.get()));
    if (each.piece.kind == Piece::Kind::kKernel) {
      const DLDataType dtype = ir::BufferType::Cast(each.piece.gives[0].ty()).element_type();
      return MakeKernelCall(whole, each.name, operands,
                            ir::MakeTensorType(ShapeIn(whole, var, each.shape), dtype));
    }
    const auto made = Make(each.piece, operands).cast<ir::Call>();
    return ir::MakeCall(rules::InferGlobalType(made), made.op(), made.args(), made.attrs(),
                        made.ty_args(), whole.span());
  }

  static ffi::Any Make(const Piece& piece, const ffi::Array<ir::Expr>& operands) {
    if (piece.kind == Piece::Kind::kOperator) return piece.make(operands);
    const auto axis = static_cast<int64_t>(piece.axis);
    if (piece.kind == Piece::Kind::kConcat)
      return ir::make::kConcat(ir::MakeTuple(operands), ffi::Optional<int64_t>(axis));
    ffi::Array<ffi::Any> points;
    for (int64_t point : piece.points) points.push_back(ir::MakeInt(point));
    return ir::make::kSplit(operands[0], points, axis);
  }

  /*! \brief Counts a call for each of the two kinds that it has. */
  static void CountOperators(const std::vector<NamedPiece>& pieces) {
    const auto has = [&pieces](auto&&... kinds) {
      return std::any_of(pieces.begin(), pieces.end(), [&](const NamedPiece& each) {
        return ((each.piece.kind == kinds) || ...);
      });
    };
    if (has(Piece::Kind::kConcat, Piece::Kind::kSplit)) ir::Count("movements");
    if (has(Piece::Kind::kOperator)) ir::Count("operators");
  }

  PieceTable& pieces_;
};

}  // namespace

ir::IRModule LiftOperators(const ir::IRModule& mod) {
  PieceTable pieces(mod);
  const ir::IRModule lifted = ir::RewriteFunctions(
      mod, [&pieces](const ir::Function& function) { return Lifter(&pieces).Run(function); });
  return pieces.kernels().AddedTo(lifted);
}

}  // namespace distir::unfuse
