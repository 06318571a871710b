// Compares segments of bindings up to their leaves, and finds their inputs and outputs.
#include "outline/segment.h"

#include <map>
#include <utility>

#include "ir/build.h"
#include "ir/leaves.h"
#include "ir/symbolic.h"
#include "ir/tvm/functions.h"
#include "ir/tvm/registration.h"

namespace distir::outline {

namespace {

/*! \brief Constants of at most as many elements are compared; larger ones are inputs, unless they
 * are one object. */
constexpr double kMostComparedBytes = 256;

bool IsLeaf(const ir::Expr& expr) { return ir::Var::Is(expr) || ir::Constant::Is(expr); }

bool HasShapeVariable(const ir::Type& type) {
  return ir::AnyLeaf(type, [](const ir::Type& leaf) {
    ir::TensorType tensor = ir::TensorType::Cast(leaf);
    if (auto dtensor = ir::DTensorType::Cast(leaf); dtensor.defined()) tensor = dtensor.tensor_ty();
    return tensor.defined() && tensor.shape().defined() && !ir::ShapeExpr::Is(tensor.shape());
  });
}

/*! \brief Adds up what a binding consists of, variables and constants by their types. */
class Numbering {
 public:
  uint64_t Of(const ir::Expr& value, const ir::Type& type) {
    AddObject(type);
    Add(value);
    return number_;
  }

 private:
  void Mix(uint64_t part) {
    number_ ^= part + 0x9e3779b97f4a7c15ULL + (number_ << 6) + (number_ >> 2);
  }
  void AddObject(const ffi::ObjectRef& object) {
    Mix(object.defined() ? static_cast<uint64_t>(
                               ir::functions::kStructuralHash(object, false, false).cast<int64_t>())
                         : 0);
  }

  void Add(const ir::Expr& expr) {
    if (IsLeaf(expr)) {
      Mix(ir::Var::Is(expr) ? 1 : 2);
      AddObject(expr.ty());
    } else if (auto call = ir::Call::Cast(expr); call.defined()) {
      Mix(3 + call.args().size());
      AddCallee(call.op());
      AddObject(call.attrs());
      for (const ir::Type& type : call.ty_args()) AddObject(type);
      for (const ir::Expr& arg : call.args()) Add(arg);
    } else if (auto tuple = ir::Tuple::Cast(expr); tuple.defined()) {
      Mix(5 + tuple.fields().size());
      for (const ir::Expr& field : tuple.fields()) Add(field);
    } else if (auto item = ir::TupleGetItem::Cast(expr); item.defined()) {
      Mix(7 + item.index());
      Add(item.tuple());
    } else {
      AddCallee(expr);
    }
  }
  /*! \brief Operators and functions are the same if they are one object. */
  void AddCallee(const ir::Expr& expr) {
    if (ir::Op::Is(expr) || ir::GlobalVar::Is(expr) || ir::Var::Is(expr)) {
      Mix(reinterpret_cast<uintptr_t>(expr.get()));
    } else {
      AddObject(expr);
    }
  }

  uint64_t number_ = 0;
};

/*! \brief True if two values that have the same number are alike but for their leaves. */
bool SameButLeaves(const ir::Expr& a, const ir::Expr& b) {
  if (IsLeaf(a) || IsLeaf(b)) {
    return ir::Var::Is(a) == ir::Var::Is(b) && IsLeaf(a) == IsLeaf(b) &&
           ir::StructurallyEqual(a.ty(), b.ty());
  }
  const ir::Call call = ir::Call::Cast(a), other = ir::Call::Cast(b);
  if (call.defined() != other.defined()) return false;
  auto all_same = [](const ir::NodeArray<ir::Expr>& some, const ir::NodeArray<ir::Expr>& others) {
    if (some.size() != others.size()) return false;
    for (size_t i = 0; i < some.size(); ++i) {
      if (!SameButLeaves(some[i], others[i])) return false;
    }
    return true;
  };
  if (call.defined()) {
    const bool same_callee =
        call.op().same_as(other.op()) ||
        (ir::ExternFunc::Is(call.op()) && ir::StructurallyEqual(call.op(), other.op()));
    return same_callee && ir::StructurallyEqual(call.attrs(), other.attrs()) &&
           ir::StructurallyEqual(call.ty_args(), other.ty_args()) &&
           all_same(call.args(), other.args());
  }
  const ir::Tuple tuple = ir::Tuple::Cast(a), other_tuple = ir::Tuple::Cast(b);
  if (tuple.defined() && other_tuple.defined())
    return all_same(tuple.fields(), other_tuple.fields());
  const ir::TupleGetItem item = ir::TupleGetItem::Cast(a), other_item = ir::TupleGetItem::Cast(b);
  if (item.defined() && other_item.defined()) {
    return item.index() == other_item.index() && SameButLeaves(item.tuple(), other_item.tuple());
  }
  if (ir::GlobalVar::Is(a) || ir::Op::Is(a)) return a.same_as(b);
  return ir::StructurallyEqual(a, b);
}

bool SameConstant(const ir::Expr& a, const ir::Expr& b) {
  if (a.same_as(b)) return true;
  const ir::TensorType type = ir::TensorType::Cast(a.ty());
  if (type.defined()) {
    double bytes = type.has_dtype() ? ir::BytesPerElement(type) : kMostComparedBytes + 1;
    for (const ir::Expr& dim : ir::ShapeOf(type)) bytes *= static_cast<double>(ir::StaticDim(dim));
    if (bytes < 0 || bytes > kMostComparedBytes) return false;
  }
  return ir::StructurallyEqual(a, b);
}

void CollectLeaves(const ir::Expr& expr, std::vector<ir::Expr>* leaves) {
  if (IsLeaf(expr)) {
    leaves->push_back(expr);
  } else if (auto call = ir::Call::Cast(expr); call.defined()) {
    for (const ir::Expr& arg : call.args()) CollectLeaves(arg, leaves);
  } else if (auto tuple = ir::Tuple::Cast(expr); tuple.defined()) {
    for (const ir::Expr& field : tuple.fields()) CollectLeaves(field, leaves);
  } else if (auto item = ir::TupleGetItem::Cast(expr); item.defined()) {
    CollectLeaves(item.tuple(), leaves);
  }
}

const ir::Expr& ValueOf(const ir::Binding& binding) {
  return ir::VarBinding::Cast(binding).value();
}

/*! \brief The leaves of all bindings of a segment. */
std::vector<ir::Expr> LeavesOfSegment(const Segments& segments, size_t segment) {
  std::vector<ir::Expr> leaves;
  for (size_t place = 0; place < segments.length; ++place)
    CollectLeaves(ValueOf(segments.At(segment, place)), &leaves);
  return leaves;
}

/*! \brief The place of the binding of each variable that a segment binds. */
std::unordered_map<const ffi::Object*, size_t> PlacesIn(const Segments& segments, size_t segment) {
  std::unordered_map<const ffi::Object*, size_t> places;
  for (size_t place = 0; place < segments.length; ++place)
    places[segments.At(segment, place).var().get()] = place;
  return places;
}

}  // namespace

uint64_t NumberOf(const ir::Binding& binding, bool is_dataflow, uint64_t* unique) {
  const ir::VarBinding bound = ir::VarBinding::Cast(binding);
  auto is_fixed = [&] {
    if (!bound.defined() || ir::If::Is(bound.value()) || ir::Function::Is(bound.value()))
      return true;
    if (HasShapeVariable(binding.var().ty())) return true;
    const ir::Call call = ir::Call::Cast(bound.value());
    return call.defined() && (ir::Var::Is(call.op()) || (!is_dataflow && !ir::IsPureOp(call.op())));
  };
  if (is_fixed()) return (*unique)++;
  return Numbering().Of(bound.value(), binding.var().ty());
}

std::vector<ir::Expr> LeavesOf(const ir::Expr& value) {
  std::vector<ir::Expr> leaves;
  CollectLeaves(value, &leaves);
  return leaves;
}

ir::Expr WithLeaves(const ir::Expr& value, InOrder<std::vector<ir::Expr>>* leaves) {
  if (IsLeaf(value)) return leaves->Take();
  auto replaced = [leaves](const ir::NodeArray<ir::Expr>& exprs) {
    ffi::Array<ir::Expr> others;
    for (const ir::Expr& expr : exprs) others.push_back(WithLeaves(expr, leaves));
    return others;
  };
  if (auto call = ir::Call::Cast(value); call.defined()) {
    return ir::MakeCall(call.ty(), call.op(), replaced(call.args()), call.attrs(), call.ty_args(),
                        call.span());
  }
  if (auto tuple = ir::Tuple::Cast(value); tuple.defined())
    return ir::MakeTuple(replaced(tuple.fields()));
  if (auto item = ir::TupleGetItem::Cast(value); item.defined())
    return ir::MakeTupleGetItem(WithLeaves(item.tuple(), leaves), item.index());
  return value;
}

std::optional<Interface> FindInterface(
    const Segments& segments, const std::unordered_map<const ffi::Object*, int>& num_uses) {
  for (size_t segment = 1; segment < segments.count(); ++segment) {
    for (size_t place = 0; place < segments.length; ++place) {
      const ir::Binding& first = segments.At(0, place);
      const ir::Binding& other = segments.At(segment, place);
      if (!ir::StructurallyEqual(first.var().ty(), other.var().ty()) ||
          !SameButLeaves(ValueOf(first), ValueOf(other)))
        return std::nullopt;
    }
  }

  Interface interface;
  std::vector<std::vector<ir::Expr>> from_outside;  // by leaf; empty for those of the segment
  std::vector<bool> is_output(segments.length, false);
  for (size_t segment = 0; segment < segments.count(); ++segment) {
    const auto places = PlacesIn(segments, segment);
    const std::vector<ir::Expr> leaves = LeavesOfSegment(segments, segment);
    if (segment == 0) {
      interface.leaves.resize(leaves.size());
      from_outside.resize(leaves.size());
    }
    std::vector<int> own_uses(segments.length, 0);
    for (size_t i = 0; i < leaves.size(); ++i) {
      const auto place = places.find(leaves[i].get());
      const bool is_own = place != places.end();
      Leaf& leaf = interface.leaves[i];
      if (segment == 0)
        leaf = is_own ? Leaf{Leaf::Kind::kOwn, place->second} : Leaf{Leaf::Kind::kInput, 0};
      if (is_own != (leaf.kind == Leaf::Kind::kOwn) || (is_own && leaf.index != place->second))
        return std::nullopt;
      if (is_own) {
        ++own_uses[place->second];
      } else {
        from_outside[i].push_back(leaves[i]);
      }
    }
    for (const auto& [var, place] : places) {
      const auto uses = num_uses.find(var);
      if (uses != num_uses.end() && uses->second > own_uses[place]) is_output[place] = true;
    }
  }

  std::map<std::vector<const ffi::Object*>, size_t> inputs;
  for (size_t i = 0; i < from_outside.size(); ++i) {
    Leaf& leaf = interface.leaves[i];
    if (leaf.kind == Leaf::Kind::kOwn) continue;
    const std::vector<ir::Expr>& values = from_outside[i];
    bool is_constant = ir::Constant::Is(values[0]);
    for (const ir::Expr& value : values)
      is_constant = is_constant && SameConstant(values[0], value);
    if (is_constant) {
      leaf.kind = Leaf::Kind::kConstant;
      continue;
    }
    std::vector<const ffi::Object*> key;
    for (const ir::Expr& value : values) key.push_back(value.get());
    auto [known, is_new] = inputs.emplace(std::move(key), interface.inputs.size());
    if (is_new) interface.inputs.push_back(values);
    leaf.index = known->second;
  }
  for (size_t place = 0; place < segments.length; ++place) {
    if (is_output[place]) interface.outputs.push_back(place);
  }
  return interface;
}

}  // namespace distir::outline
