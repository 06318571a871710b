// Prints symbolic sizes and shapes as Python arithmetic, for messages and signatures.
#include "ir/size_text.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <vector>

#include "ir/build.h"
#include "ir/symbolic.h"
#include "support/functions.h"

namespace distir::ir {

namespace {

// As in Python.
enum Precedence { kOfSum = 1, kOfProduct = 2, kOfWord = 3 };

/*! \brief An operation of index arithmetic and how it is written: between its operands, or as a
 * function of them. */
struct Operation {
  Operation(const char* type_key, const char* written, Precedence binds)
      : kind(type_key), a(type_key, "a"), b(type_key, "b"), symbol(written), precedence(binds) {}
  Kind kind;
  Field<Expr> a;
  Field<Expr> b;
  std::string symbol;
  Precedence precedence;
};

const Operation kOperations[] = {
    {"prim.Add", " + ", kOfSum},          {"prim.Sub", " - ", kOfSum},
    {"prim.Mul", " * ", kOfProduct},      {"prim.FloorDiv", " // ", kOfProduct},
    {"prim.FloorMod", " % ", kOfProduct}, {"prim.Div", "truncdiv", kOfWord},
    {"prim.Mod", "truncmod", kOfWord},    {"prim.Min", "min", kOfWord},
    {"prim.Max", "max", kOfWord}};

const Field<int32_t> kShapeNdim("relax.ShapeType", "ndim");

constexpr char kQuote = '"';  // around a name that is no word

bool IsWord(const std::string& name) {
  return !name.empty() && std::isdigit(static_cast<unsigned char>(name[0])) == 0 &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return c < 0x80 && (std::isalnum(c) != 0 || c == '_');
         });
}

std::string Written(const Expr& size, Precedence least) {
  if (IntImm::Is(size)) {
    const int64_t value = IntImm::Cast(size).value();
    return value < 0 && least > kOfSum ? "(" + std::to_string(value) + ")" : std::to_string(value);
  }
  if (auto var = Var::Cast(size); var.defined()) {
    const std::string name = var.name();
    return IsWord(name) ? name : kQuote + Word(name) + kQuote;
  }
  for (const Operation& operation : kOperations) {
    if (!operation.kind.Matches(size.get())) continue;
    const Expr& a = operation.a(size);
    const Expr& b = operation.b(size);
    if (operation.precedence == kOfWord)
      return operation.symbol + "(" + Written(a, kOfSum) + ", " + Written(b, kOfSum) + ")";
    // Operations are computed from the left, so the right operand has to bind more.
    const auto tighter = static_cast<Precedence>(operation.precedence + 1);
    const std::string text =
        Written(a, operation.precedence) + operation.symbol + Written(b, tighter);
    return operation.precedence < least ? "(" + text + ")" : text;
  }
  return least > kOfSum ? "(" + Print(size) + ")" : Print(size);
}

}  // namespace

std::string SizeText(const Expr& size) { return Written(size, kOfSum); }

std::string ReadableSize(const Expr& size) {
  const std::string text = SizeText(size);
  std::string readable;
  size_t quotes = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    quotes += text[i] == kQuote;
    if (quotes % 2 == 1 && text[i] == '%') {
      readable += static_cast<char>(std::stoi(text.substr(i + 1, 2), nullptr, 16));
      i += 2;
    } else {
      readable += text[i];
    }
  }
  const bool is_name = quotes == 2 && text.front() == kQuote && text.back() == kQuote;
  return is_name ? readable.substr(1, readable.size() - 2) : readable;
}

std::string ShapeText(const ShapeType& type) {
  const int ndim = kShapeNdim(type);
  const ffi::Optional<ffi::Array<Expr>> values = type.values();
  std::vector<std::string> sizes(std::max(ndim, 0), "?");
  if (values.has_value()) {
    sizes.clear();
    for (const Expr& value : *values) sizes.push_back(SizeText(value));
  } else if (ndim < 0) {
    return "shape";
  }
  std::string text;
  for (const std::string& size : sizes) text += (text.empty() ? "" : ", ") + size;
  return "shape[" + text + "]";
}

std::string Word(const std::string& name) {
  std::string text;
  for (char c : name) {
    char escaped[4];
    std::snprintf(escaped, sizeof(escaped), "%%%02X", static_cast<unsigned>(c) & 0xFF);
    const bool is_plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.';
    text += is_plain ? std::string(1, c) : escaped;
  }
  return text;
}

namespace {

TVM_FFI_STATIC_INIT_BLOCK() {
  // For reports, which are in Python.
  support::Functions().def("distir.ir.ReadableSize",
                           [](const Expr& size) { return ffi::String(ReadableSize(size)); });
}

}  // namespace

}  // namespace distir::ir
