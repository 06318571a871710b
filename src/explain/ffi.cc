// Registers functions for Python: the lines of `distir_ext.explain`, which say why a variable is
// sharded as it is, and a function's moves for `distir_ext.analysis.reshards`.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/error.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "explain/explainer.h"
#include "explain/moves.h"
#include "explain/program.h"
#include "support/functions.h"

namespace distir::explain {

namespace {

ffi::Array<ffi::String> ToArray(const std::vector<std::string>& texts) {
  ffi::Array<ffi::String> array;
  for (const std::string& text : texts) array.push_back(text);
  return array;
}

/*! \brief Lines about a variable that a pass has replaced by others; empty if there is none. */
std::vector<std::string> ExplainReplaced(const FunctionView& view, const std::string& name) {
  std::string pass, op, last;
  for (const ir::Var& var : view.order) {
    auto made = view.made.find(var.name());
    if (made == view.made.end() || made->second.variable != name) continue;
    pass = made->second.pass;
    op = made->second.op;
    last = var.name();
  }
  if (last.empty()) return {};
  return {Quoted(name) + " in " + Quoted(view.name) + ": computed by " + pass + " (" + op +
          ") in steps, the last of which is " + Quoted(last)};
}

using Data = ffi::Map<ffi::String, ffi::Any>;

ffi::Array<ffi::Array<ffi::String>> ToArray(
    const std::vector<std::pair<std::string, std::string>>& pairs) {
  ffi::Array<ffi::Array<ffi::String>> array;
  for (const auto& [first, second] : pairs) array.push_back({first, second});
  return array;
}

Data ToData(const MovedTensor& move) {
  Data data;
  data.Set("origin", move.origin.name());
  data.Set("end", move.end.name());
  data.Set("variables", ToArray(move.variables));
  data.Set("readers", ToArray(move.readers));
  data.Set("maker", ffi::String(move.maker));
  data.Set("source", ffi::String(move.source));
  data.Set("target", ffi::String(move.target));
  data.Set("is_partial", move.is_partial);
  data.Set("disagrees", move.disagrees);
  data.Set("is_stated", move.is_stated);
  return data;
}

Data ToData(const MoveCause& cause) {
  Data data;
  data.Set("source", ToArray(cause.source));
  data.Set("target", ToArray(cause.target));
  data.Set("lines", ToArray(cause.conflict.lines));
  ffi::Array<ffi::Array<ffi::String>> advice;
  for (const Advice& each : cause.conflict.advice)
    advice.push_back({each.function, each.variable, each.dims});
  data.Set("advice", advice);
  return data;
}

std::vector<std::string> ShardingsOf(Program* program, const FunctionView& view,
                                     const ir::Var& var) {
  std::vector<std::string> texts;
  for (int slot : view.SlotsOf(var)) {
    const Fact& fact = view.facts[slot];
    const bool is_sharded = fact.is_known && fact.root >= 0;
    texts.push_back(is_sharded ? program->TextAmongMeshes(fact.root, fact.sharding) : "");
  }
  return texts;
}

TVM_FFI_STATIC_INIT_BLOCK() {
  // Reads a module once; gives functions of (function name) -> variable names, and of (function
  // name, variable: a name or a Var) -> lines, none if the function has no such variable.
  support::Functions().def("distir.explain.Program", [](ir::IRModule mod) {
    auto program = std::make_shared<Program>(mod);
    return ffi::Array<ffi::Function>{
        support::Typed([program](ffi::String function) {
          std::vector<std::string> names;
          for (const ir::Var& var : program->Function(function)->order) names.push_back(var.name());
          return ToArray(names);
        }),
        support::Typed([program](ffi::String function, ffi::Any which) {
          const FunctionView& view = *program->Function(function);
          std::vector<ir::Var> vars;
          if (auto name = which.as<ffi::String>()) {
            auto found = view.variables.find(*name);
            if (found == view.variables.end()) return ToArray(ExplainReplaced(view, *name));
            vars = found->second;
          } else {
            auto given = which.cast<ir::Expr>();
            std::copy_if(view.order.begin(), view.order.end(), std::back_inserter(vars),
                         [&given](const ir::Var& each) { return each.same_as(given); });
          }
          std::vector<std::string> lines;
          for (const ir::Var& var : vars) {
            for (std::string& line : Explainer(program.get(), view, var).Run())
              lines.push_back(std::move(line));
          }
          return ToArray(lines);
        })};
  });
  // Reads a module once; gives functions of (function name) -> its moves, of (function name, index
  // of a move) -> why there is such a move, of (function name) -> what passes made, by variable:
  // the operator and the variable that it was made for; and of (function name) -> how the tensors
  // of each variable are sharded, empty where that is not known.
  support::Functions().def("distir.explain.Moves", [](ir::IRModule mod) {
    using Listed = std::map<std::string, std::vector<MovedTensor>>;
    auto program = std::make_shared<Program>(mod);
    auto listed = std::make_shared<Listed>();
    return ffi::Array<ffi::Function>{
        support::Typed([program, listed](ffi::String function) {
          std::vector<MovedTensor>& moves = (*listed)[function];
          moves = ListMoves(program.get(), *program->Function(function));
          ffi::Array<Data> rows;
          for (const MovedTensor& move : moves) rows.push_back(ToData(move));
          return rows;
        }),
        support::Typed([program, listed](ffi::String function, int64_t index) {
          const MovedTensor& move = listed->at(function).at(index);
          return ToData(CauseOf(program.get(), *program->Function(function), move));
        }),
        support::Typed([program](ffi::String function) {
          Data made;
          for (const auto& [name, origin] : program->Function(function)->made)
            made.Set(name, ToArray({origin.op, origin.variable}));
          return made;
        }),
        support::Typed([program](ffi::String function) {
          const FunctionView& view = *program->Function(function);
          Data shardings;
          for (const ir::Var& var : view.order)
            shardings.Set(var.name(), ToArray(ShardingsOf(program.get(), view, var)));
          return shardings;
        })};
  });
}

}  // namespace

}  // namespace distir::explain
