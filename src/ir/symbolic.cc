// Integer arithmetic and proofs on symbolic dimensions, by TVM's analyzer.
#include "ir/symbolic.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>

#include "ir/build.h"
#include "ir/leaves.h"
#include "ir/size_arithmetic.h"

namespace distir::ir {

namespace {

const GlobalFunction kAdd("prim._OpAdd");
const GlobalFunction kSub("prim._OpSub");
const GlobalFunction kMul("prim._OpMul");
const GlobalFunction kFloorDiv("prim._OpFloorDiv");
const GlobalFunction kFloorMod("prim._OpFloorMod");
const GlobalFunction kAnalyzer("sym.Analyzer");
const GlobalFunction kSimplify("sym.AnalyzerSimplify");
const GlobalFunction kCanProveEqual("sym.AnalyzerCanProveEqual");
const GlobalFunction kCanProve("sym.AnalyzerCanProve");
const GlobalFunction kBind("sym.AnalyzerBind");
const GlobalFunction kRange("ir.Range_from_min_extent");
const GlobalFunction kLess("prim._OpLT");
const GlobalFunction kGreaterOrEqual("prim._OpGE");
const GlobalFunction kBoundUpdate("sym.AnalyzerConstIntBoundUpdate");
const GlobalFunction kConstIntBound("sym.ConstIntBound");
// ProofStrength of TVM: the second one takes longer.
constexpr int kStrengths[] = {0, 1};

// Sizes are read so often that counting references to what holds them shows.
const Field<NodeArray<Expr>> kShapeValues("relax.expr.ShapeExpr", "values");
const Field<ffi::Any> kIntImmValue("ir.IntImm", "value");

/*! \brief A binary node of index arithmetic and the function that makes it. */
struct BinaryNode {
  BinaryNode(const char* type_key)
      : kind(type_key), a(type_key, "a"), b(type_key, "b"), make(type_key) {}
  Kind kind;
  Field<Expr> a;
  Field<Expr> b;
  GlobalFunction make;
};

// Operators of dimensions; any other expression is kept as it is.
const BinaryNode kBinaryNodes[] = {{"prim.Add"},      {"prim.Sub"}, {"prim.Mul"},
                                   {"prim.Div"},      {"prim.Mod"}, {"prim.FloorDiv"},
                                   {"prim.FloorMod"}, {"prim.Min"}, {"prim.Max"}};
constexpr int kAddIndex = 0, kSubIndex = 1, kMulIndex = 2;
constexpr int kFloorDivIndex = 5;
constexpr int kFloorModIndex = 6;

const Node kNoSpan;

const ffi::Any& Analyzer() {
  // Never bound to variables, so it may be shared by all calls of a thread.
  static thread_local ffi::Any analyzer = kAnalyzer();
  return analyzer;
}

const BinaryNode* FindBinary(const Expr& expr) {
  for (const BinaryNode& node : kBinaryNodes) {
    if (node.kind.Matches(expr.get())) return &node;
  }
  return nullptr;
}

Expr Substitute(const Expr& dim, const std::function<Expr(const Var&)>& replace) {
  if (Var var = Var::Cast(dim); var.defined()) {
    Expr replacement = replace(var);
    return replacement.defined() ? replacement : dim;
  }
  const BinaryNode* node = FindBinary(dim);
  if (node == nullptr) return dim;
  Expr a = Substitute(node->a(dim), replace);
  Expr b = Substitute(node->b(dim), replace);
  if (a.same_as(node->a(dim)) && b.same_as(node->b(dim))) return dim;
  return node->make(a, b, kNoSpan).cast<Expr>();
}

}  // namespace

int64_t StaticDim(const Expr& dim) {
  return IntImm::Is(dim) ? kIntImmValue(dim).as<int64_t>().value_or(0) : -1;
}

bool HasKnownShape(const TensorType& type) { return ShapeExpr::Is(type.shape()); }

TensorType WithKnownShape(const TensorType& type) {
  if (!Var::Is(type.shape())) return type;
  ShapeType shape = ShapeType::Cast(type.shape().ty());
  if (!shape.defined() || !shape.values().has_value()) return type;
  return MakeTensorType(*shape.values(), type);
}

const NodeArray<Expr>& ShapeOf(const TensorType& type) {
  static const NodeArray<Expr> none;
  return HasKnownShape(type) ? kShapeValues(type.shape()) : none;
}

double BytesPerElement(const TensorType& type) {
  constexpr double kAssumedBytes = 4;
  const DLDataType dtype = type.dtype();
  return type.has_dtype() ? static_cast<double>(dtype.bits) * dtype.lanes / 8 : kAssumedBytes;
}

Expr Multiply(const Expr& dim, int64_t factor) {
  if (factor == 1) return dim;
  int64_t size = StaticDim(dim);
  if (size >= 0) return MakeInt(size * factor);
  return Simplify(kMul(dim, MakeInt(factor), kNoSpan).cast<Expr>());
}

Expr FloorDivide(const Expr& dim, int64_t divisor) {
  if (divisor == 1) return dim;
  int64_t size = StaticDim(dim);
  if (size >= 0) return MakeInt(size / divisor);
  return Simplify(kFloorDiv(dim, MakeInt(divisor), kNoSpan).cast<Expr>());
}

bool NeverDivides(const Expr& dim, int64_t divisor) {
  if (divisor == 1) return false;
  int64_t size = StaticDim(dim);
  if (size >= 0) return size % divisor != 0;
  return StaticDim(Simplify(kFloorMod(dim, MakeInt(divisor), kNoSpan).cast<Expr>())) > 0;
}

bool AlwaysDivides(const Expr& dim, int64_t divisor) {
  if (divisor == 1) return true;
  const int64_t size = StaticDim(dim);
  if (size >= 0) return size % divisor == 0;
  return StaticDim(Simplify(kFloorMod(dim, MakeInt(divisor), kNoSpan).cast<Expr>())) == 0;
}

Expr Add(const Expr& a, int64_t b) {
  const int64_t size = StaticDim(a);
  if (size >= 0) return MakeInt(size + b);
  return Simplify(kAdd(a, MakeInt(b), kNoSpan).cast<Expr>());
}

Expr Subtract(const Expr& a, const Expr& b) { return Simplify(kSub(a, b, kNoSpan).cast<Expr>()); }

Expr Simplify(const Expr& dim) { return kSimplify(Analyzer(), dim, 2).cast<Expr>(); }

bool SameDim(const Expr& a, const Expr& b) {
  if (a.same_as(b)) return true;
  int64_t a_size = StaticDim(a);
  int64_t b_size = StaticDim(b);
  if (a_size >= 0 && b_size >= 0) return a_size == b_size;
  return kCanProveEqual(Analyzer(), a, b).cast<bool>();
}

Expr Product(const std::vector<Expr>& dims) {
  int64_t constant = 1;
  Expr product;
  for (const Expr& dim : dims) {
    int64_t size = StaticDim(dim);
    if (size >= 0) {
      constant *= size;
    } else {
      product = product.defined() ? kMul(product, dim, kNoSpan).cast<Expr>() : dim;
    }
  }
  return product.defined() ? Multiply(product, constant) : MakeInt(constant);
}

namespace {

/*! \brief The integer by which all terms of a sum divide. */
int64_t CommonFactor(const Expr& dim) {
  const int64_t size = StaticDim(dim);
  if (size >= 0) return size;
  const BinaryNode* node = FindBinary(dim);
  if (node == &kBinaryNodes[kMulIndex])
    return CommonFactor(node->a(dim)) * CommonFactor(node->b(dim));
  if (node != &kBinaryNodes[kAddIndex] && node != &kBinaryNodes[kSubIndex]) return 1;
  return std::gcd(CommonFactor(node->a(dim)), CommonFactor(node->b(dim)));
}

}  // namespace

int64_t CollectFactors(const Expr& dim, std::vector<Expr>* others) {
  const int64_t size = StaticDim(dim);
  if (size >= 0) return size;
  const BinaryNode* node = FindBinary(dim);
  if (node == &kBinaryNodes[kMulIndex])
    return CollectFactors(node->a(dim), others) * CollectFactors(node->b(dim), others);
  const int64_t common = std::max<int64_t>(CommonFactor(dim), 1);
  others->push_back(FloorDivide(dim, common));
  return common;
}

IndexProofs::IndexProofs() : analyzer_(kAnalyzer()) {}

void IndexProofs::BindSize(const Var& var) {
  kBoundUpdate(analyzer_, var, kConstIntBound(1, std::numeric_limits<int64_t>::max()),
               /*allow_override=*/true);
}

void IndexProofs::Bind(const Var& var, const Expr& min, const Expr& extent) {
  kBind(analyzer_, var, kRange(min, extent, kNoSpan), /*allow_override=*/true);
}

bool IndexProofs::Holds(const Expr& claim) {
  return std::any_of(std::begin(kStrengths), std::end(kStrengths), [&](int strength) {
    return kCanProve(analyzer_, claim, strength).cast<bool>();
  });
}

bool IndexProofs::IsWithin(const Expr& index, const Expr& size) {
  return Holds(kGreaterOrEqual(index, MakeInt(0), kNoSpan).cast<Expr>()) && IsBelow(index, size);
}

// TVM's analysis knows little of quotients and remainders by symbolic sizes.
bool IndexProofs::IsBelow(const Expr& index, const Expr& size) {
  if (Holds(kLess(index, size, kNoSpan).cast<Expr>())) return true;
  const Expr simple = kSimplify(analyzer_, index, 2).cast<Expr>();
  const BinaryNode* node = FindBinary(simple);
  if (node != &kBinaryNodes[kFloorDivIndex] && node != &kBinaryNodes[kFloorModIndex]) return false;
  const Expr& a = node->a(simple);
  const Expr& b = node->b(simple);
  if (!Holds(kLess(MakeInt(0), b, kNoSpan).cast<Expr>())) return false;
  if (node == &kBinaryNodes[kFloorDivIndex]) return IsBelow(a, kMul(size, b, kNoSpan).cast<Expr>());
  // 0 <= a % b <= a.
  return IsWithin(a, size);
}

Expr SubstituteVars(const Expr& dim, const std::function<Expr(const Var&)>& replace) {
  if (StaticDim(dim) >= 0) return dim;
  Expr result = Substitute(dim, replace);
  return result.same_as(dim) ? dim : Simplify(result);
}

namespace {

// Null where nothing changes.
ffi::Optional<ffi::Array<Expr>> MapAll(const NodeArray<Expr>& dims,
                                       const std::function<Expr(const Expr&)>& map) {
  ffi::Array<Expr> mapped;
  bool changed = false;
  for (const Expr& dim : dims) {
    mapped.push_back(map(dim));
    changed = changed || !mapped.back().same_as(dim);
  }
  if (!changed) return std::nullopt;
  return mapped;
}

}  // namespace

Type MapDims(const Type& type, const std::function<Expr(const Expr&)>& map) {
  if (TupleType::Is(type))
    return MapLeaves(type, [&map](const Type& leaf) { return MapDims(leaf, map); });
  if (DTensorType dtensor = DTensorType::Cast(type); dtensor.defined()) {
    Type tensor = MapDims(dtensor.tensor_ty(), map);
    if (tensor.same_as(dtensor.tensor_ty())) return type;
    return MakeDTensorType(TensorType::Cast(tensor), dtensor.device_mesh(), dtensor.placement());
  }
  if (TensorType tensor = TensorType::Cast(type); tensor.defined() && HasKnownShape(tensor)) {
    auto dims = MapAll(ShapeOf(tensor), map);
    return dims.has_value() ? Type(MakeTensorType(*dims, tensor)) : type;
  }
  if (ShapeType shape = ShapeType::Cast(type); shape.defined() && shape.values().has_value()) {
    auto dims = MapAll(*shape.values(), map);
    return dims.has_value() ? Type(MakeShapeType(*dims)) : type;
  }
  return type;
}

void VisitVars(const Expr& dim, const std::function<void(const Var&)>& visit) {
  if (Var var = Var::Cast(dim); var.defined()) {
    visit(var);
  } else if (const BinaryNode* node = FindBinary(dim)) {
    VisitVars(node->a(dim), visit);
    VisitVars(node->b(dim), visit);
  }
}

}  // namespace distir::ir
