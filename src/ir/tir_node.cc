// Defines the views of TIR objects, and edits of loops, buffers and indices.
#include "ir/tir_node.h"

#include <algorithm>
#include <array>
#include <utility>

#include "ir/build.h"
#include "ir/kernel_in_place.h"
#include "ir/symbolic.h"
#include "ir/tvm/functions.h"
#include "ir/tvm/view_definition.h"

namespace distir::ir {

namespace {

const Node kNoSpan;

// IterVarType of TVM.
constexpr int kDataParallel = 0;
constexpr int kCommutativeReduce = 2;

// CallEffectKind of TVM: calls up to this one depend on their arguments only.
constexpr int64_t kPureEffect = 1;

const GlobalFunction kIntImm("ir.IntImm");
const GlobalFunction kAdd("prim._OpAdd");
const GlobalFunction kFloorDiv("prim._OpFloorDiv");
const GlobalFunction kFloorMod("prim._OpFloorMod");
const GlobalFunction kMul("prim._OpMul");
const GlobalFunction kVar("ir.Var");
const GlobalFunction kBufferType("tirx.BufferType");
const GlobalFunction kFor("tirx.For");
const GlobalFunction kIterVar("tirx.IterVar");
const GlobalFunction kRange("ir.Range_from_min_extent");
const GlobalFunction kBufferRegion("tirx.BufferRegion");
const GlobalFunction kPrimFunc("tirx.PrimFunc");
const GlobalFunction kRenewDefs("s_tir.RenewDefs");
const GlobalFunction kSBlock("s_tir.SBlock");
const GlobalFunction kSBlockRealize("s_tir.SBlockRealize");
const GlobalFunction kSeqStmt("tirx.SeqStmt");
const GlobalFunction kUndefinedVars("tirx.analysis.UndefinedVars");
const GlobalFunction kStructuralMap("ffi.StructuralMap");

constexpr int kPreorder = 0;

}  // namespace

DISTIR_KIND(BufferType, "tirx.BufferType")
DISTIR_KIND(Stmt, "tirx.Stmt")
DISTIR_KIND(PrimFunc, "tirx.PrimFunc")
DISTIR_KIND(Range, "ir.Range")
DISTIR_KIND(For, "tirx.For")
DISTIR_KIND(IterVar, "tirx.IterVar")
DISTIR_KIND(TensorRegion, "ir.TensorRegion")
DISTIR_KIND(SBlock, "s_tir.SBlock")
DISTIR_KIND(SBlockRealize, "s_tir.SBlockRealize")
DISTIR_KIND(MatchBuffer, "s_tir.MatchBufferRegion")
DISTIR_KIND(AttrStmt, "tirx.AttrStmt")
DISTIR_KIND(SeqStmt, "tirx.SeqStmt")
DISTIR_KIND(IfThenElse, "tirx.IfThenElse")
DISTIR_KIND(BufferStore, "tirx.BufferStore")
DISTIR_KIND(BindStmt, "tirx.Bind")
DISTIR_KIND(Evaluate, "tirx.Evaluate")
DISTIR_KIND(TensorLoad, "ir.TensorLoad")
DISTIR_KIND(FloatImm, "ir.FloatImm")
DISTIR_KIND(CastExpr, "prim.Cast")

DISTIR_FIELD(BufferType, NodeArray<Expr>, shape, "tirx.BufferType", "shape")
DISTIR_FIELD(PrimFunc, NodeArray<Var>, params, "tirx.PrimFunc", "params")
DISTIR_FIELD(PrimFunc, Stmt, body, "tirx.PrimFunc", "body")
DISTIR_FIELD(Range, Expr, min, "ir.Range", "min")
DISTIR_FIELD(Range, Expr, extent, "ir.Range", "extent")
DISTIR_FIELD(For, Var, loop_var, "tirx.For", "loop_var")
DISTIR_FIELD(For, Expr, min, "tirx.For", "min")
DISTIR_FIELD(For, Expr, extent, "tirx.For", "extent")
DISTIR_FIELD(For, Stmt, body, "tirx.For", "body")
DISTIR_FIELD(IterVar, Range, dom, "tirx.IterVar", "dom")
DISTIR_FIELD(IterVar, Var, var, "tirx.IterVar", "var")
DISTIR_FIELD(TensorRegion, Var, source, "ir.TensorRegion", "source")
DISTIR_FIELD(TensorRegion, NodeArray<Range>, region, "ir.TensorRegion", "region")
DISTIR_FIELD(SBlock, NodeArray<IterVar>, iter_vars, "s_tir.SBlock", "iter_vars")
DISTIR_FIELD(SBlock, NodeArray<TensorRegion>, reads, "s_tir.SBlock", "reads")
DISTIR_FIELD(SBlock, NodeArray<TensorRegion>, writes, "s_tir.SBlock", "writes")
DISTIR_FIELD(SBlock, NodeArray<Var>, alloc_buffers, "s_tir.SBlock", "alloc_buffers")
DISTIR_FIELD(SBlock, NodeArray<Node>, match_buffers, "s_tir.SBlock", "match_buffers")
DISTIR_FIELD(SBlock, Stmt, init, "s_tir.SBlock", "init")
DISTIR_FIELD(SBlock, Stmt, body, "s_tir.SBlock", "body")
DISTIR_FIELD(SBlockRealize, NodeArray<Expr>, iter_values, "s_tir.SBlockRealize", "iter_values")
DISTIR_FIELD(SBlockRealize, Expr, predicate, "s_tir.SBlockRealize", "predicate")
DISTIR_FIELD(SBlockRealize, SBlock, block, "s_tir.SBlockRealize", "block")
DISTIR_FIELD(MatchBuffer, Var, buffer, "s_tir.MatchBufferRegion", "buffer")
DISTIR_FIELD(MatchBuffer, TensorRegion, source, "s_tir.MatchBufferRegion", "source")
DISTIR_FIELD(AttrStmt, Stmt, body, "tirx.AttrStmt", "body")
DISTIR_FIELD(SeqStmt, NodeArray<Stmt>, seq, "tirx.SeqStmt", "seq")
DISTIR_FIELD(IfThenElse, Expr, condition, "tirx.IfThenElse", "condition")
DISTIR_FIELD(IfThenElse, Stmt, then_case, "tirx.IfThenElse", "then_case")
DISTIR_FIELD(IfThenElse, Stmt, else_case, "tirx.IfThenElse", "else_case")
DISTIR_FIELD(BufferStore, Var, buffer, "tirx.BufferStore", "buffer")
DISTIR_FIELD(BufferStore, Expr, value, "tirx.BufferStore", "value")
DISTIR_FIELD(BufferStore, NodeArray<Expr>, indices, "tirx.BufferStore", "indices")
DISTIR_FIELD(BindStmt, Expr, value, "tirx.Bind", "value")
DISTIR_FIELD(Evaluate, Expr, value, "tirx.Evaluate", "value")
DISTIR_FIELD(TensorLoad, Expr, source, "ir.TensorLoad", "source")
DISTIR_FIELD(TensorLoad, NodeArray<Expr>, indices, "ir.TensorLoad", "indices")
DISTIR_FIELD(CastExpr, Expr, value, "prim.Cast", "value")

namespace {

const Field<double> kFloatValue("ir.FloatImm", "value");
const Field<PrimType> kElementType("tirx.BufferType", "dtype");
const Field<ffi::String> kStorageScope("tirx.BufferType", "storage_scope");
const Field<NodeArray<Expr>> kStrides("tirx.BufferType", "strides");
const Field<Expr> kElemOffset("tirx.BufferType", "elem_offset");
const Field<int32_t> kDataAlignment("tirx.BufferType", "data_alignment");
const Field<int32_t> kOffsetFactor("tirx.BufferType", "offset_factor");
const Field<Node> kLayout("tirx.BufferType", "layout");
const Field<NodeArray<Expr>> kAllocatedAddr("tirx.BufferType", "allocated_addr");
const Field<int32_t> kForKind("tirx.For", "kind");
const Field<Node> kThreadBinding("tirx.For", "thread_binding");
const Field<Node> kAnnotations("tirx.For", "annotations");
const Field<Expr> kStep("tirx.For", "step");
const Field<int32_t> kIterType("tirx.IterVar", "iter_type");
const Field<ffi::String> kThreadTag("tirx.IterVar", "thread_tag");
const Field<Type> kReturnType("tirx.PrimFunc", "ret_type");
const Field<ffi::String> kBlockName("s_tir.SBlock", "name_hint");
const Field<Node> kBlockAnnotations("s_tir.SBlock", "annotations");

struct BinaryNode {
  BinaryNode(const char* key, BinaryKind kind) : node(key), a(key, "a"), b(key, "b"), kind(kind) {}
  Kind node;
  Field<Expr> a;
  Field<Expr> b;
  BinaryKind kind;
};

const BinaryNode kBinaryNodes[] = {
    {"prim.Add", BinaryKind::kAdd},           {"prim.Sub", BinaryKind::kSub},
    {"prim.Mul", BinaryKind::kMul},           {"prim.Div", BinaryKind::kDiv},
    {"prim.FloorDiv", BinaryKind::kFloorDiv}, {"prim.FloorMod", BinaryKind::kFloorMod},
    {"prim.Min", BinaryKind::kMin},           {"prim.Max", BinaryKind::kMax},
    {"prim.Mod", BinaryKind::kMod},           {"prim.EQ", BinaryKind::kOther},
    {"prim.NE", BinaryKind::kOther},          {"prim.LT", BinaryKind::kOther},
    {"prim.LE", BinaryKind::kLessEqual},      {"prim.GT", BinaryKind::kOther},
    {"prim.GE", BinaryKind::kOther},          {"prim.And", BinaryKind::kOther},
    {"prim.Or", BinaryKind::kOther},          {"prim.BitwiseAnd", BinaryKind::kOther},
    {"prim.BitwiseOr", BinaryKind::kOther},   {"prim.BitwiseXor", BinaryKind::kOther},
    {"prim.LShift", BinaryKind::kOther},      {"prim.RShift", BinaryKind::kOther}};
constexpr int kNumBinaryNodes = sizeof(kBinaryNodes) / sizeof(kBinaryNodes[0]);

/*! \brief Nodes of one operand. */
struct UnaryNode {
  UnaryNode(const char* key, const char* field) : node(key), operand(key, field) {}
  Kind node;
  Field<Expr> operand;
};
const UnaryNode kUnaryNodes[] = {
    {"prim.Not", "a"}, {"prim.BitwiseNot", "a"}, {"prim.Cast", "value"}};

const Kind kAllocBuffer("tirx.AllocBuffer");
const Kind kDeclBuffer("tirx.DeclBuffer");
const Kind kAssertStmt("tirx.AssertStmt");
const Kind kSelect("prim.Select");
const Field<Expr> kSelectCondition("prim.Select", "condition");
const Field<Expr> kSelectTrue("prim.Select", "true_value");
const Field<Expr> kSelectFalse("prim.Select", "false_value");
const Kind kLet("prim.Let");
const Field<Expr> kLetValue("prim.Let", "value");
const Field<Expr> kLetBody("prim.Let", "body");

bool IsPureOp(const Expr& op) {
  if (!Op::Is(op)) return false;
  // Operators are unique objects, never freed, so the pointer is a key.
  static thread_local std::unordered_map<const ffi::Object*, bool> cache;
  auto it = cache.find(op.get());
  if (it == cache.end()) {
    auto effect = functions::kOpGetAttr(op, "TCallEffectKind").as<int64_t>();
    it = cache.emplace(op.get(), effect.has_value() && *effect <= kPureEffect).first;
  }
  return it->second;
}

}  // namespace

DLDataType BufferType::element_type() const { return kElementType(*this).dtype(); }

bool IsDeclaration(const Stmt& stmt) {
  static const std::array kinds = {&kAllocBuffer, &kDeclBuffer, &kAssertStmt};
  return std::any_of(kinds.begin(), kinds.end(),
                     [&](const Kind* kind) { return kind->Matches(stmt.get()); });
}

bool BufferType::IsCompact() const {
  const Expr& offset = kElemOffset(*this);
  return kStrides(*this).empty() && !kLayout(*this).defined() &&
         (!offset.defined() || StaticDim(offset) == 0);
}

namespace {

bool CountsFromZero(const For& loop) {
  const Expr& step = kStep(loop);
  return StaticDim(loop.min()) == 0 && (!step.defined() || StaticDim(step) == 1);
}

}  // namespace

bool For::IsPlain() const { return CountsFromZero(*this) && !kThreadBinding(*this).defined(); }

std::string For::ThreadTag() const {
  auto thread = IterVar::Cast(kThreadBinding(*this));
  // An iterator with a range of its own would have to be divided with the loop.
  if (!CountsFromZero(*this) || !thread.defined() || thread.dom().defined()) return "";
  return kThreadTag(thread);
}

IteratorKind IterVar::kind() const {
  int type = kIterType(*this);
  if (type == kDataParallel) return IteratorKind::kSpatial;
  return type == kCommutativeReduce ? IteratorKind::kReduction : IteratorKind::kOther;
}

double FloatImm::value() const { return kFloatValue(*this); }

BinaryExpr BinaryExpr::Cast(const Expr& expr) {
  BinaryExpr binary;
  for (int i = 0; i < kNumBinaryNodes; ++i) {
    if (!kBinaryNodes[i].node.Matches(expr.get())) continue;
    binary.expr_ = expr;
    binary.kind_index_ = i;
    break;
  }
  return binary;
}
BinaryKind BinaryExpr::kind() const { return kBinaryNodes[kind_index_].kind; }
const Expr& BinaryExpr::a() const { return kBinaryNodes[kind_index_].a(expr_); }
const Expr& BinaryExpr::b() const { return kBinaryNodes[kind_index_].b(expr_); }

bool VisitOperands(const Expr& expr, const std::function<void(const Expr&)>& visit) {
  if (Var::Is(expr) || IntImm::Is(expr) || FloatImm::Is(expr) || StringImm::Is(expr)) return true;
  if (BinaryExpr binary = BinaryExpr::Cast(expr); binary.defined()) {
    visit(binary.a());
    visit(binary.b());
    return true;
  }
  if (Call call = Call::Cast(expr); call.defined()) {
    if (!IsPureOp(call.op())) return false;
    for (const Expr& arg : call.args()) visit(arg);
    return true;
  }
  for (const UnaryNode& unary : kUnaryNodes) {
    if (!unary.node.Matches(expr.get())) continue;
    visit(unary.operand(expr));
    return true;
  }
  if (kSelect.Matches(expr.get())) {
    visit(kSelectCondition(expr));
    visit(kSelectTrue(expr));
    visit(kSelectFalse(expr));
    return true;
  }
  if (kLet.Matches(expr.get())) {
    visit(kLetValue(expr));
    visit(kLetBody(expr));
    return true;
  }
  return false;
}

ffi::Array<Var> UsedVars(const Stmt& stmt) {
  return kUndefinedVars(stmt, ffi::Array<Var>()).cast<ffi::Array<Var>>();
}

DLDataType ScalarType(const Expr& expr) {
  PrimType type = PrimType::Cast(expr.ty());
  return type.defined() ? type.dtype() : kUnknownDtype;
}

Expr MakeIntLike(int64_t value, const Expr& like) {
  return kIntImm(ScalarType(like), value, kNoSpan).cast<Expr>();
}

Expr AddIndices(const Expr& a, const Expr& b) { return kAdd(a, b, kNoSpan).cast<Expr>(); }

Expr QuotientOf(const Expr& index, int64_t divisor) {
  return kFloorDiv(index, MakeIntLike(divisor, index), kNoSpan).cast<Expr>();
}

Expr RemainderOf(const Expr& index, int64_t divisor) {
  return kFloorMod(index, MakeIntLike(divisor, index), kNoSpan).cast<Expr>();
}

Expr MultiplyExtent(const Expr& extent, int64_t factor) {
  return kMul(extent, MakeIntLike(factor, extent), kNoSpan).cast<Expr>();
}

Expr DivideExtent(const Expr& extent, int64_t shards) {
  if (shards == 1) return extent;
  int64_t size = StaticDim(extent);
  if (size >= 0) return MakeIntLike(size / shards, extent);
  return Simplify(kFloorDiv(extent, MakeIntLike(shards, extent), kNoSpan).cast<Expr>());
}

void KernelEdit::Reshape(const Var& buffer, const NodeArray<Expr>& shape,
                         std::vector<bool> resized_dims) {
  const Type& type = buffer.ty();
  Type reshaped = kBufferType(kStorageScope(type), kElementType(type), shape, kStrides(type),
                              kElemOffset(type), kDataAlignment(type), kOffsetFactor(type),
                              kLayout(type), kAllocatedAddr(type), kNoSpan)
                      .cast<Type>();
  Var var = kVar(buffer.name(), reshaped, kNoSpan).cast<Var>();
  variables.emplace(buffer.get(), var);
  resized.emplace(var.get(), std::move(resized_dims));
}

namespace {

Range WithExtent(const Range& range, const Expr& extent) {
  return kRange(range.min(), extent, kNoSpan).cast<Range>();
}

For EditLoop(const For& loop, const KernelEdit& edit) {
  auto it = edit.extents.find(loop.loop_var().get());
  if (it == edit.extents.end()) return loop;
  return kFor(loop.loop_var(), loop.min(), it->second, kForKind(loop), loop.body(),
              kThreadBinding(loop), kAnnotations(loop), kStep(loop), kNoSpan)
      .cast<For>();
}

IterVar EditIterator(const IterVar& iterator, const KernelEdit& edit) {
  auto it = edit.extents.find(iterator.var().get());
  if (it == edit.extents.end()) return iterator;
  return kIterVar(WithExtent(iterator.dom(), it->second), iterator.var(), kIterType(iterator),
                  kThreadTag(iterator), kNoSpan)
      .cast<IterVar>();
}

TensorRegion EditRegion(const TensorRegion& region, const KernelEdit& edit) {
  auto it = edit.variables.find(region.source().get());
  if (it == edit.variables.end()) return region;
  BufferType from = BufferType::Cast(region.source().ty());
  BufferType to = BufferType::Cast(it->second.ty());
  ffi::Array<Range> ranges;
  bool changed = false;
  for (size_t d = 0; d < region.region().size(); ++d) {
    const Range& range = region.region()[d];
    bool is_whole = StaticDim(range.extent()) != 1 && StaticDim(range.min()) == 0 &&
                    SameDim(range.extent(), from.shape()[d]);
    ranges.push_back(is_whole ? WithExtent(range, to.shape()[d]) : range);
    changed = changed || is_whole;
  }
  return changed ? kBufferRegion(region.source(), ranges).cast<TensorRegion>() : region;
}

}  // namespace

PrimFunc EditKernel(const PrimFunc& function, const KernelEdit& edit, const Node& attrs) {
  auto entry = [](const Kind& kind, ffi::Function callback) {
    return ffi::Any(ffi::Array<ffi::Any>{kind.type_index(), callback});
  };
  ffi::Array<ffi::Any> callbacks{
      entry(Var::GetKind(), ffi::Function::FromTyped([&edit](Var var) -> Expr {
              auto it = edit.variables.find(var.get());
              return it == edit.variables.end() ? Expr(var) : it->second;
            })),
      entry(For::GetKind(),
            ffi::Function::FromTyped([&edit](For loop) -> For { return EditLoop(loop, edit); })),
      entry(IterVar::GetKind(), ffi::Function::FromTyped([&edit](IterVar iterator) -> IterVar {
              return EditIterator(iterator, edit);
            })),
      entry(TensorRegion::GetKind(),
            ffi::Function::FromTyped(
                [&edit](TensorRegion region) -> TensorRegion { return EditRegion(region, edit); })),
  };
  for (const BinaryNode& binary : kBinaryNodes) {
    if (edit.arithmetic.empty()) break;
    callbacks.push_back(entry(binary.node, ffi::Function::FromTyped([&edit](Expr expr) -> Expr {
                                auto it = edit.arithmetic.find(expr.get());
                                return it == edit.arithmetic.end() ? expr : it->second;
                              })));
  }
  PrimFunc edited =
      kStructuralMap(function, callbacks, ffi::Array<ffi::Any>(), kPreorder).cast<PrimFunc>();
  return kPrimFunc(edited.params(), edited.body(), kReturnType(edited), attrs, kNoSpan)
      .cast<PrimFunc>();
}

PrimFunc MakeSection(const PrimFunc& like, const NodeArray<Var>& params,
                     const NodeArray<Var>& buffers, const std::vector<Stmt>& statements,
                     const Node& attrs) {
  const SBlockRealize root = SBlockRealize::Cast(like.body());
  const SBlock& block = root.block();
  const Stmt body =
      statements.size() == 1
          ? statements[0]
          : kSeqStmt(ffi::Array<Stmt>(statements.begin(), statements.end()), kNoSpan).cast<Stmt>();
  const SBlock section = kSBlock(block.iter_vars(), ffi::Array<TensorRegion>(),
                                 ffi::Array<TensorRegion>(), kBlockName(block), body, Stmt(),
                                 buffers, block.match_buffers(), kBlockAnnotations(block), kNoSpan)
                             .cast<SBlock>();
  const SBlockRealize realize =
      kSBlockRealize(root.iter_values(), root.predicate(), section, kNoSpan).cast<SBlockRealize>();
  return kPrimFunc(params, realize, kReturnType(like), attrs, kNoSpan).cast<PrimFunc>();
}

PrimFunc WriteToOperand(const PrimFunc& function, size_t operand) {
  const NodeArray<Var>& params = function.params();
  KernelEdit edit;
  edit.variables.emplace(params[params.size() - 1].get(), params[operand]);
  const PrimFunc edited = EditKernel(function, edit, function.attrs());
  const NodeArray<Var> kept(edited.params().begin(), edited.params().end() - 1);
  return RenewDefinitions(
      kPrimFunc(kept, edited.body(), kReturnType(edited), edited.attrs(), kNoSpan)
          .cast<PrimFunc>());
}

PrimFunc RenewDefinitions(const PrimFunc& function) {
  return kRenewDefs(function).cast<PrimFunc>();
}

}  // namespace distir::ir
