// Lists the collectives of lowered programs with bytes, axes and causes, and notes these at the
// calls.
#include "analysis/collective_calls.h"

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/string.h>

#include <algorithm>
#include <cctype>
#include <functional>
#include <optional>
#include <set>
#include <unordered_set>
#include <utility>

#include "abi/collective.h"
#include "abi/json_reader.h"
#include "abi/json_writer.h"
#include "dialect/operators/collective_note.h"
#include "dialect/operators/collective_record.h"
#include "ir/build.h"
#include "ir/rewriter.h"
#include "ir/size_arithmetic.h"
#include "ir/size_text.h"
#include "ir/symbolic.h"

namespace distir::analysis {

namespace {

using Groups = std::vector<std::vector<int64_t>>;
using Names = std::vector<std::string>;

constexpr size_t kChoices = 3;  // of what exchanges of rows take: x, the mask, groups, choices
const std::string kTimes = " * ";

/*! \brief One call of a collective, as an operator of R.ccl or as a call of the runtime. */
struct Called {
  const abi::CollectiveRecord* record;
  ir::Expr sent;  // the first tensor that it is given; null of a receive
  Groups groups;  // none where there is a plan
  std::string plan;
  /*! \brief Of exchanges of slots or pairs, the factors of the number of rows that a worker has or
   * asks for, its own included; empty of other collectives. */
  std::vector<ir::Expr> rows;
};

std::vector<ir::Expr> RowFactors(const abi::CollectiveRecord& record, const ir::Expr& mask,
                                 int64_t choices, const Groups& groups) {
  const ir::NodeArray<ir::Expr>& shape = ir::ShapeOf(ir::TensorType::Cast(mask.ty()));
  if (record.rows == abi::RowCount::kSlots) {
    const int64_t chosen = ir::StaticDim(shape[0]) * choices;
    return {ir::MakeInt(std::min(chosen, ir::StaticDim(shape[1])))};
  }
  // Of the tokens of all devices, those that have a choice on one of them; no more than there are.
  const auto members = static_cast<int64_t>(groups[0].size());
  const int64_t chosen = std::min(choices, members);
  const ir::Expr rows = ir::Simplify(ir::FloorDivide(ir::Multiply(shape[0], chosen), members));
  std::vector<ir::Expr> others;
  const int64_t factor = ir::CollectFactors(rows, &others);
  if (others.empty()) return {ir::MakeInt(factor)};
  return {ir::MakeInt(factor), ir::Product(others)};
}

Groups GroupsOf(const ir::Call& call) {
  Groups groups;
  const auto stated =
      ir::GetAttr(call.attrs(), "groups").try_cast<ffi::Array<ffi::Array<int64_t>>>();
  if (!stated.has_value()) return groups;
  for (const ffi::Array<int64_t>& group : *stated) groups.emplace_back(group.begin(), group.end());
  return groups;
}

Groups ParseGroups(const std::string& json) {
  Groups groups;
  const abi::JsonReader list = abi::JsonReader::Parse("groups", json);
  for (int64_t i = 0; i < list.Size(); ++i) groups.push_back(list.At(i).Integers());
  return groups;
}

/*! \brief A packed function that a call invokes, with its arguments; null for other calls. */
std::pair<ir::ExternFunc, ir::NodeArray<ir::Expr>> PackedCall(const ir::Call& call) {
  if (ir::IsOp(call.op(), "relax.call_dps_packed")) {
    const ir::Tuple args = ir::Tuple::Cast(call.args()[1]);
    return {ir::ExternFunc::Cast(call.args()[0]), args.fields()};
  }
  return {ir::ExternFunc::Cast(call.op()), call.args()};
}

Called ReadBuiltin(const abi::CollectiveRecord& record, const ir::NodeArray<ir::Expr>& args) {
  Called called{&record, {}, {}, {}, {}};
  std::vector<ir::Expr> tensors;
  std::string text;  // groups or plan, which come before the kind of a reduction
  for (const ir::Expr& arg : args) {
    if (auto string = ir::StringImm::Cast(arg); string.defined() && text.empty())
      text = string.value();
    if (ir::TensorType::Is(arg.ty())) tensors.push_back(arg);
  }
  if (!tensors.empty()) called.sent = tensors[0];
  if (!text.empty() && text[0] == '[') {
    called.groups = ParseGroups(text);
  } else {
    called.plan = text;
  }
  if (record.rows != abi::RowCount::kShape)
    called.rows = RowFactors(record, tensors[1], ir::StaticDim(args[kChoices]), called.groups);
  return called;
}

/*! \brief Reads a collective, or a slice; the record is null for any other value. */
Called ReadCollective(const ir::Expr& value) {
  const ir::Call call = ir::Call::Cast(value);
  if (!call.defined()) return {};
  if (const abi::CollectiveRecord* record = dialect::RecordOnTensors(call.op())) {
    Called called{record, {}, GroupsOf(call), {}, {}};
    if (!call.args().empty()) called.sent = call.args()[0];
    if (auto plan = ir::GetAttr(call.attrs(), "plan").as<ffi::String>())
      called.plan = std::string(*plan);
    if (record->rows != abi::RowCount::kShape) {
      called.rows = RowFactors(*record, call.args()[1],
                               ir::GetAttr(call.attrs(), "choices").cast<int64_t>(), called.groups);
    }
    return called;
  }
  const auto [packed, args] = PackedCall(call);
  const abi::CollectiveRecord* record =
      packed.defined() ? abi::FindBuiltin(packed.name()) : nullptr;
  // Kernels of experts compute.
  if (record == nullptr || record->family == abi::CollectiveFamily::kKernel) return {};
  return ReadBuiltin(*record, args);
}

/*! \brief The operator's name; of kernels, packed functions and functions of the module theirs. */
std::string OperatorOf(const ir::Call& call) {
  const std::string calls = "relax.call_";
  ir::Expr callee = call.op();
  if (auto op = ir::Op::Cast(callee); op.defined()) {
    const std::string name = std::string(op.name());
    if (name.compare(0, calls.size(), calls) != 0 || call.args().empty()) return name;
    callee = call.args()[0];
  }
  if (auto function = ir::GlobalVar::Cast(callee); function.defined()) return function.name();
  if (auto packed = ir::ExternFunc::Cast(callee); packed.defined()) return packed.name();
  if (auto op = ir::Op::Cast(callee); op.defined()) return std::string(op.name());
  return std::string(ir::Var::Cast(callee).name());
}

/*! \brief Calls `visit` for the variables that a value reads; of a branch those of the condition
 * and the results, since its bindings are read one by one. */
void VisitReads(const ir::Expr& value, const std::function<void(const ir::Var&)>& visit) {
  if (const ir::If* branch = ir::If::As(value)) {
    for (const ir::Expr& each :
         {branch->cond(), branch->true_branch().body(), branch->false_branch().body()}) {
      VisitReads(each, visit);
    }
  } else if (!ir::Function::Is(value)) {
    ir::VisitUses(value, visit);
  }
}

Names NamesIn(const ir::Expr& value) {
  Names names;
  VisitReads(value, [&names](const ir::Var& var) { names.emplace_back(var.name()); });
  return names;
}

Names EachOnce(const Names& names) {
  Names once;
  std::unordered_set<std::string> seen;
  for (const std::string& name : names) {
    if (seen.insert(name).second) once.push_back(name);
  }
  return once;
}

/*! \brief The text of a symbolic size as a factor. */
std::string FactorText(const ir::Expr& size) {
  const std::string text = ir::ReadableSize(size);
  const bool is_name = std::isdigit(static_cast<unsigned char>(text[0])) == 0 &&
                       std::all_of(text.begin(), text.end(), [](unsigned char c) {
                         return c >= 0x80 || std::isalnum(c) != 0 || c == '_';
                       });
  return is_name ? text : "(" + text + ")";
}

/*! \brief Bytes of a tensor of a dtype, whose size is the product of these. */
template <typename Sizes>
Amount AmountOf(const ir::TensorType& like, const Sizes& sizes) {
  Amount amount;
  Names symbols;
  if (like.has_dtype()) {
    amount.number = std::max<int>(like.dtype().bits, 8) / 8;
  } else {
    symbols.push_back("(bytes of an element of unknown dtype)");
  }
  for (const ir::Expr& size : sizes) {
    const int64_t known = ir::StaticDim(size);
    if (known >= 0) {
      amount.number *= static_cast<double>(known);
    } else {
      symbols.push_back(FactorText(size));
    }
  }
  if (!ir::ShapeExpr::Is(like.shape())) symbols.push_back("(elements of unknown shape)");
  for (const std::string& symbol : symbols)
    amount.unit += (amount.unit.empty() ? "" : kTimes) + symbol;
  return amount;
}

Amount AmountOf(const ir::Type& type) {
  if (auto tensor = ir::TensorType::Cast(type); tensor.defined()) {
    if (!ir::ShapeExpr::Is(tensor.shape())) return AmountOf(tensor, std::vector<ir::Expr>());
    return AmountOf(tensor, ir::ShapeOf(tensor));
  }
  Amount sum{0, ""};
  std::set<std::string> units;
  std::string text;
  for (const ir::Type& field : ir::TupleType::Cast(type).fields()) {
    const Amount amount = AmountOf(field);
    sum.number += amount.number;
    sum.unit = amount.unit;
    units.insert(amount.unit);
    text += text.empty() ? "" : " + ";
    text += std::to_string(static_cast<int64_t>(amount.number));
    if (!amount.unit.empty()) text += kTimes + amount.unit;
  }
  return units.size() == 1 ? sum : Amount{1, text};
}

}  // namespace

/*! \brief Reads one function. */
class CollectiveLister::FunctionLister {
 public:
  FunctionLister(const CollectiveLister& lister, const ir::Function& function,
                 const std::vector<int64_t>* devices)
      : lister_(lister), devices_(devices) {
    ir::VisitBindings(function.body(), [this](const ir::Binding& binding) {
      const ir::VarBinding* bound = ir::VarBinding::As(binding);
      if (bound == nullptr) return;
      made_.emplace(binding.var().get(), bound->value());
      VisitReads(bound->value(), [&](const ir::Var& used) {
        std::vector<ir::Var>& readers = read_[used.get()];
        if (readers.empty() || !readers.back().same_as(binding.var()))
          readers.push_back(binding.var());
      });
    });
    VisitReads(function.body().body(),
               [this](const ir::Var& result) { returned_.insert(result.get()); });
  }

  /*! \brief The collective that is bound to a variable; its kind is empty if there is none. */
  CollectiveCall Read(const ir::Var& var, const ir::Expr& value) const {
    CollectiveCall call;
    const Called called = ReadCollective(value);
    if (called.record == nullptr || called.record->sends == abi::Sends::kNothing) return call;
    const abi::CollectiveRecord& record = *called.record;
    const ir::Expr moved = called.sent.defined() ? called.sent : ir::Expr(var);
    call.variable = var;
    call.kind = record.name;
    call.tensors = NamesIn(moved);
    Names operators;
    if (record.reduces || !record.has_result) {
      AddMakers(moved, &operators);
    } else {
      AddReaders(var, &operators);
    }
    call.operators = EachOnce(operators);
    Count(called, var.ty(), &call);
    return call;
  }

 private:
  /*! \brief Adds what is sent, along which axes, and what that is priced by. */
  void Count(const Called& called, const ir::Type& given, CollectiveCall* call) const {
    const abi::CollectiveRecord& record = *called.record;
    const Amount moved = MovedBy(called, given);
    call->sent = moved;
    if (record.members == abi::Members::kGroups) {
      const std::vector<int64_t>& group = called.groups[0];
      call->devices = static_cast<int64_t>(group.size());
      call->axes = lister_.axes_.OfGroup(group);
      call->sent.number = abi::SentBy(record.collective, call->devices).Bytes(moved.number);
      std::vector<std::string> items;
      for (const std::vector<int64_t>& each : called.groups)
        items.push_back(abi::JsonIntegers(each));
      call->how = abi::JsonArray(items);
      call->priced = moved;
      return;
    }
    std::optional<std::vector<int64_t>> among;
    if (devices_ != nullptr) among = *devices_;
    const abi::PlanTraffic traffic =
        abi::TrafficOf(record.collective, called.plan, among, moved.number);
    call->devices = traffic.devices;
    call->sent.number = traffic.bytes;
    if (traffic.bytes == 0) call->sent.unit.clear();
    if (traffic.devices > 0) call->axes = lister_.axes_.OfPlan(record.collective, called.plan);
    call->how = called.plan;
    call->priced = AmountOf(given);
  }

  /*! \brief The tensor that a worker has to send, before it is divided. */
  static Amount MovedBy(const Called& called, const ir::Type& given) {
    // The operand of a combination has room for the rows of all devices.
    if (!called.sent.defined() || called.record->collective == abi::Collective::kCombineTokens)
      return AmountOf(given);
    if (called.rows.empty()) return AmountOf(called.sent.ty());
    const ir::TensorType type = ir::TensorType::Cast(called.sent.ty());
    std::vector<ir::Expr> sizes = called.rows;
    sizes.push_back(ir::ShapeOf(type)[1]);
    return AmountOf(type, sizes);
  }

  /*! \brief Adds the operators that give a value, seen through tuples and other collectives. */
  void AddMakers(ir::Expr value, Names* names) const {
    for (auto made = made_.find(value.get()); made != made_.end(); made = made_.find(value.get())) {
      value = made->second;
      if (auto item = ir::TupleGetItem::Cast(value); item.defined()) {
        value = item.tuple();
      } else if (const Called called = ReadCollective(value); called.sent.defined()) {
        value = called.sent;
      }
    }
    if (auto tuple = ir::Tuple::Cast(value); tuple.defined()) {
      for (const ir::Expr& field : tuple.fields()) AddMakers(field, names);
    } else if (auto call = ir::Call::Cast(value); call.defined()) {
      names->push_back(OperatorOf(call));
    }
  }

  /*! \brief Adds the operators that read a variable, seen through tuples and other collectives. */
  void AddReaders(const ir::Var& var, Names* names) const {
    if (returned_.count(var.get()) > 0) names->push_back("return");
    auto readers = read_.find(var.get());
    if (readers == read_.end()) return;
    for (const ir::Var& reader : readers->second) {
      const ir::Expr& value = made_.at(reader.get());
      const ir::Call call = ir::Call::Cast(value);
      if (call.defined() && ReadCollective(value).record == nullptr) {
        names->push_back(OperatorOf(call));
      } else {
        AddReaders(reader, names);
      }
    }
  }

  const CollectiveLister& lister_;
  const std::vector<int64_t>* devices_;                    // that run the function; null: not known
  std::unordered_map<const ffi::Object*, ir::Expr> made_;  // by variable
  std::unordered_map<const ffi::Object*, std::vector<ir::Var>> read_;  // by what they read
  std::unordered_set<const ffi::Object*> returned_;
};

CollectiveLister::CollectiveLister(const ir::IRModule& mod,
                                   const std::vector<ProgramOnDevices>& programs,
                                   abi::MeshAxes axes)
    : axes_(std::move(axes)) {
  std::unordered_map<std::string, ir::Function> functions;
  for (const auto& [name, base] : mod.functions()) {
    if (auto function = ir::Function::Cast(base); function.defined())
      functions.emplace(name.name(), function);
  }
  std::vector<ProgramOnDevices> pending = programs;
  while (!pending.empty()) {
    const ProgramOnDevices each = std::move(pending.back());
    pending.pop_back();
    auto function = functions.find(each.name);
    if (function == functions.end()) continue;
    std::vector<int64_t>& known = devices_[function->second.get()];
    std::set<int64_t> all(known.begin(), known.end());
    all.insert(each.device_ids.begin(), each.device_ids.end());
    if (all.size() == known.size()) continue;
    known.assign(all.begin(), all.end());
    ir::VisitBindings(function->second.body(), [&](const ir::Binding& binding) {
      const ir::Call call = ir::BoundCall(binding);
      const ir::GlobalVar callee =
          call.defined() ? ir::GlobalVar::Cast(call.op()) : ir::GlobalVar();
      if (callee.defined()) pending.push_back({callee.name(), each.device_ids});
    });
  }
}

std::vector<CommunicatingCall> CollectiveLister::CallsOf(const ir::Function& function) const {
  auto devices = devices_.find(function.get());
  const FunctionLister reader(*this, function,
                              devices == devices_.end() ? nullptr : &devices->second);
  std::vector<CommunicatingCall> calls;
  ir::VisitBindings(function.body(), [&](const ir::Binding& binding) {
    const ir::Call call = ir::BoundCall(binding);
    if (!call.defined()) return;
    if (auto callee = ir::GlobalVar::Cast(call.op()); callee.defined()) {
      calls.emplace_back(callee.name());
    } else if (CollectiveCall found = reader.Read(binding.var(), call); !found.kind.empty()) {
      calls.emplace_back(std::move(found));
    }
  });
  return calls;
}

namespace {

ffi::Array<ffi::String> Texts(const Names& names) {
  ffi::Array<ffi::String> texts;
  for (const std::string& name : names) texts.push_back(ffi::String(name));
  return texts;
}

/*! \brief Writes a note to each of the calls that one is given for. */
class NoteWriter : public ir::FunctionRewriter {
 public:
  explicit NoteWriter(const std::vector<CommunicatingCall>& calls) {
    for (const CommunicatingCall& each : calls) {
      if (auto call = std::get_if<CollectiveCall>(&each))
        notes_.emplace(call->variable.get(), call);
    }
  }

 private:
  bool KeepsUnchanged() const override { return true; }

  void RewriteVarBinding(const ir::Var& var, const ir::Expr& value) override {
    auto noted = notes_.find(var.get());
    if (noted == notes_.end()) return FunctionRewriter::RewriteVarBinding(var, value);
    const ffi::Any note = ToData(*noted->second);
    Bind(var, dialect::WithNote(ir::Call::Cast(Rewrite(value)), note));
  }

  std::unordered_map<const ffi::Object*, const CollectiveCall*> notes_;  // by variable
};

}  // namespace

ffi::Map<ffi::String, ffi::Any> ToData(const CollectiveCall& call) {
  ffi::Map<ffi::String, ffi::Any> data;
  data.Set("kind", ffi::String(call.kind));
  data.Set("variable", call.variable.name());
  data.Set("devices", call.devices);
  data.Set("axes", Texts(call.axes));
  data.Set("bytes", call.sent.number);
  data.Set("unit", ffi::String(call.sent.unit));
  data.Set("tensors", Texts(call.tensors));
  data.Set("operators", Texts(call.operators));
  data.Set("how", ffi::String(call.how));
  data.Set("priced_bytes", call.priced.number);
  data.Set("priced_unit", ffi::String(call.priced.unit));
  return data;
}

ir::IRModule WithNotes(const ir::IRModule& mod, const CollectiveLister& lister) {
  return ir::RewriteFunctions(mod, [&lister](const ir::Function& function) {
    const std::vector<CommunicatingCall> calls = lister.CallsOf(function);
    const bool has_any = std::any_of(calls.begin(), calls.end(), [](const auto& call) {
      return std::holds_alternative<CollectiveCall>(call);
    });
    return has_any ? NoteWriter(calls).RewriteFunction(function) : ir::Function();
  });
}

}  // namespace distir::analysis
