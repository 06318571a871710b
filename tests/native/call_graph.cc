// Test hooks: queries of the call graph (callers, callees, orders), with functions as names.
#include "ir/module/call_graph.h"

#include "arguments.h"

namespace distir::test {

namespace {

using ir::CallGraph;

ffi::String NameOf(const CallGraph& calls, size_t function) { return calls[function].name.name(); }

ffi::Array<Any> Names(const CallGraph& calls, const std::vector<size_t>& functions) {
  return ArrayOf(functions, [&calls](size_t function) { return NameOf(calls, function); });
}

/*! \brief The functions that are marked after marks on one have spread. */
Any Spread(Arguments& in,
           std::vector<bool> (*spread)(const CallGraph& calls, std::vector<bool> marks)) {
  const CallGraph calls(in.Next<ir::IRModule>());
  const std::string from = in.Next<ffi::String>();
  std::vector<bool> marks(calls.size());
  for (size_t i = 0; i < calls.size(); ++i) marks[i] = NameOf(calls, i) == from;
  const std::vector<bool> reached = spread(calls, std::move(marks));
  ffi::Array<Any> names;
  for (size_t i = 0; i < calls.size(); ++i) {
    if (reached[i]) names.push_back(NameOf(calls, i));
  }
  return names;
}

const bool kCallGraph = Register({
    {"CallGraph",  // for every function: name, callees, callers, whether it is a value
     [](Arguments& in) -> Any {
       const CallGraph calls(in.Next<ir::IRModule>());
       ffi::Array<Any> entries;
       for (size_t i = 0; i < calls.size(); ++i) {
         entries.push_back(ffi::Array<Any>{NameOf(calls, i), Names(calls, calls[i].callees),
                                           Names(calls, calls[i].callers), calls[i].is_value});
       }
       return entries;
     }},
    {"CalleesFirst",
     [](Arguments& in) -> Any {
       const CallGraph calls(in.Next<ir::IRModule>());
       return Names(calls, calls.CalleesFirst());
     }},
    {"WithCallers",
     [](Arguments& in) {
       return Spread(in, [](const CallGraph& calls, std::vector<bool> marks) {
         return calls.WithCallers(std::move(marks));
       });
     }},
    {"WithCallees",
     [](Arguments& in) {
       return Spread(in, [](const CallGraph& calls, std::vector<bool> marks) {
         return calls.WithCallees(std::move(marks));
       });
     }},
    {"SpreadToCallers",  // for every function: the functions that it reaches, itself among them
     [](Arguments& in) -> Any {
       const CallGraph calls(in.Next<ir::IRModule>());
       std::vector<std::vector<bool>> reached(calls.size(), std::vector<bool>(calls.size()));
       for (size_t i = 0; i < calls.size(); ++i) reached[i][i] = true;
       calls.SpreadToCallers([&reached](size_t caller, size_t callee) {
         const std::vector<bool> before = reached[caller];
         for (size_t i = 0; i < before.size(); ++i) {
           if (reached[callee][i]) reached[caller][i] = true;
         }
         return reached[caller] != before;
       });
       ffi::Array<Any> entries;
       for (const std::vector<bool>& each : reached) {
         ffi::Array<Any> names;
         for (size_t i = 0; i < each.size(); ++i) {
           if (each[i]) names.push_back(NameOf(calls, i));
         }
         entries.push_back(names);
       }
       return entries;
     }},
});

}  // namespace

}  // namespace distir::test
