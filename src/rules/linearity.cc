#include "rules/linearity.h"

#include <tvm/ffi/reflection/registry.h>

#include <algorithm>
#include <unordered_map>

#include "rules/factor_rule.h"

namespace distir {
namespace rules {

namespace {

using mesh::Reduction;

/*! \brief The operands in which an operator commutes with a reduction, the others being whole. */
enum class In {
  kNone,   // it does not commute
  kAll,    // all of them together
  kOne,    // exactly one, whichever
  kFirst,  // the first one alone
  kAny,    // any of them, one or more
};

using Condition = bool (*)(const OpView& view);

struct Entry {
  const char* op;
  In sum;
  In mean;
  In max;
  In min;
  In prod;
  Condition condition = nullptr;  // null: always
};

bool IsFloat(const ir::TensorType& type) {
  if (!type.dtype().defined()) return false;
  uint8_t code = type.dtype().dtype().code;
  return code == kDLFloat || code == kDLBfloat;
}

// Division of integers truncates.
bool OnFloats(const OpView& view) { return IsFloat(view.operands[0]); }

// Rounding to fewer bits keeps order, but not sums; only float to float.
bool BetweenFloats(const OpView& view) {
  return IsFloat(view.operands[0]) && IsFloat(view.results[0]);
}

// A whole value is also the mean, maximum or minimum of equal ones, so what moves several operands
// to one result may have whole ones among them where the reduction is one of these.
#define DISTIR_MOVES(op) {op, In::kAll, In::kAny, In::kAny, In::kAny, In::kAll}
#define DISTIR_MOVES_FIRST(op) {op, In::kFirst, In::kFirst, In::kFirst, In::kFirst, In::kFirst}
#define DISTIR_INCREASES(op) {op, In::kNone, In::kNone, In::kFirst, In::kFirst, In::kNone}

// clang-format off
const Entry kEntries[] = {
    //                          sum         mean        max         min         prod
    {"relax.add",               In::kAll,   In::kAny,   In::kOne,   In::kOne,   In::kNone},
    {"relax.subtract",          In::kAll,   In::kAny,   In::kFirst, In::kFirst, In::kNone},
    {"relax.negative",          In::kAll,   In::kAll,   In::kNone,  In::kNone,  In::kNone},
    {"relax.multiply",          In::kOne,   In::kOne,   In::kNone,  In::kNone,  In::kAll},
    {"relax.divide",            In::kFirst, In::kFirst, In::kNone,  In::kNone,  In::kNone, OnFloats},
    {"relax.maximum",           In::kNone,  In::kNone,  In::kAny,   In::kOne,   In::kNone},
    {"relax.minimum",           In::kNone,  In::kNone,  In::kOne,   In::kAny,   In::kNone},
    {"relax.matmul",            In::kOne,   In::kOne,   In::kNone,  In::kNone,  In::kNone},
    {"relax.sum",               In::kAll,   In::kAll,   In::kNone,  In::kNone,  In::kNone},
    {"relax.mean",              In::kAll,   In::kAll,   In::kNone,  In::kNone,  In::kNone, OnFloats},
    {"relax.max",               In::kNone,  In::kNone,  In::kAll,   In::kNone,  In::kNone},
    {"relax.min",               In::kNone,  In::kNone,  In::kNone,  In::kAll,   In::kNone},
    {"relax.cumsum",            In::kAll,   In::kAll,   In::kNone,  In::kNone,  In::kNone},
    {"relax.astype",            In::kNone,  In::kNone,  In::kAll,   In::kAll,   In::kNone, BetweenFloats},
    // Increasing functions, defined everywhere.
    DISTIR_INCREASES("relax.nn.relu"),
    DISTIR_INCREASES("relax.exp"),
    DISTIR_INCREASES("relax.sigmoid"),
    DISTIR_INCREASES("relax.tanh"),
    DISTIR_INCREASES("relax.floor"),
    DISTIR_INCREASES("relax.ceil"),
    DISTIR_INCREASES("relax.round"),
    // What only moves elements.
    DISTIR_MOVES("relax.broadcast_to"),
    DISTIR_MOVES("relax.builtin.stop_lift_params"),
    DISTIR_MOVES("relax.concat"),
    DISTIR_MOVES("relax.expand_dims"),
    DISTIR_MOVES("relax.flip"),
    DISTIR_MOVES("relax.permute_dims"),
    DISTIR_MOVES("relax.repeat"),
    DISTIR_MOVES("relax.reshape"),
    DISTIR_MOVES("relax.split"),
    DISTIR_MOVES("relax.squeeze"),
    DISTIR_MOVES("relax.stack"),
    DISTIR_MOVES("relax.tile"),
    DISTIR_MOVES_FIRST("relax.gather_elements"),
    DISTIR_MOVES_FIRST("relax.strided_slice"),
    DISTIR_MOVES_FIRST("relax.take"),
};
// clang-format on

#undef DISTIR_MOVES
#undef DISTIR_MOVES_FIRST
#undef DISTIR_INCREASES

const Entry* Find(const ir::Expr& op) {
  if (!ir::Op::Is(op)) return nullptr;
  // Operators are unique objects, never freed, so the pointer is a key.
  static thread_local std::unordered_map<const ffi::Object*, const Entry*> cache;
  auto it = cache.find(op.get());
  if (it == cache.end()) {
    std::string name = ir::Op::Cast(op).name();
    auto found = std::find_if(std::begin(kEntries), std::end(kEntries),
                              [&](const Entry& entry) { return name == entry.op; });
    it = cache.emplace(op.get(), found == std::end(kEntries) ? nullptr : found).first;
  }
  return it->second;
}

In OperandsFor(const Entry& entry, Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum:
      return entry.sum;
    case Reduction::kMean:
      return entry.mean;
    case Reduction::kMax:
      return entry.max;
    case Reduction::kMin:
      return entry.min;
    case Reduction::kProd:
      return entry.prod;
    case Reduction::kNone:
      break;
  }
  return In::kNone;
}

}  // namespace

bool MayCommute(const ir::Expr& op) { return Find(op) != nullptr; }

bool CommutesWith(const ir::Call& call, const std::vector<bool>& partial, Reduction reduction) {
  const Entry* entry = Find(call.op());
  if (entry == nullptr || partial.empty()) return false;
  auto count = std::count(partial.begin(), partial.end(), true);
  bool fits = false;
  switch (OperandsFor(*entry, reduction)) {
    case In::kNone:
      break;
    case In::kAll:
      fits = count == static_cast<int64_t>(partial.size());
      break;
    case In::kOne:
      fits = count == 1;
      break;
    case In::kFirst:
      fits = partial[0] && count == 1;
      break;
    case In::kAny:
      fits = count > 0;
      break;
  }
  if (!fits || entry->condition == nullptr) return fits;
  return entry->condition(ViewCall(call, call.ty()));
}

namespace {

TVM_FFI_STATIC_INIT_BLOCK() {
  ffi::reflection::GlobalDef()
      .def("distir.rules.CommutingOperators",
           [] {
             ffi::Array<ffi::String> names;
             for (const Entry& entry : kEntries) names.push_back(entry.op);
             return names;
           })
      .def("distir.rules.CommutesWith",
           [](ir::Call call, ffi::Array<bool> partial, ffi::String reduction) {
             return CommutesWith(call, {partial.begin(), partial.end()},
                                 mesh::ReductionFromName(reduction));
           });
}

}  // namespace

}  // namespace rules
}  // namespace distir
