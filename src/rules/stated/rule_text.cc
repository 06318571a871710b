// Parses rules that users write, and applies them to the sizes of a call.
#include "rules/stated/rule_text.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <cctype>

#include "support/counted.h"
#include "support/error.h"

namespace distir::rules {

namespace {

[[noreturn]] void Refuse(const RuleText& rule, const std::string& what) {
  TVM_FFI_THROW(ValueError) << "rule \"" << rule.text << "\" of " << rule.owner << ": " << what;
}

constexpr mesh::Reduction kKinds[] = {mesh::Reduction::kSum, mesh::Reduction::kMax,
                                      mesh::Reduction::kMin, mesh::Reduction::kProd,
                                      mesh::Reduction::kMean};

mesh::Reduction KindOf(const std::string& word) {
  for (mesh::Reduction kind : kKinds) {
    if (word == mesh::ReductionName(kind)) return kind;
  }
  return mesh::Reduction::kNone;
}

class Parser {
 public:
  Parser(const std::string& owner, const std::string& text) {
    rule_.owner = owner;
    rule_.text = text;
    Split();
  }

  RuleText Run() {
    if (tokens_.empty()) Fail("it is empty");
    if (Peek() != "->") ReadTensors(&rule_.operands);
    if (Next() != "->") Fail("`->` expected behind the operands");
    ReadTensors(&rule_.results);
    while (Peek() == ";") {
      Next();
      if (!Peek().empty()) ReadClause();
    }
    if (!Peek().empty()) Fail("`" + Peek() + "` is not expected here");
    Check();
    return std::move(rule_);
  }

 private:
  [[noreturn]] void Fail(const std::string& what) const { Refuse(rule_, what); }

  // Tokens: names, integers, "->", and single signs.
  void Split() {
    const std::string& text = rule_.text;
    for (size_t i = 0; i < text.size();) {
      auto at = [&text](size_t k) { return static_cast<unsigned char>(text[k]); };
      size_t end = i + 1;
      if (std::isspace(at(i))) {
        i = end;
        continue;
      }
      if (std::isalnum(at(i))) {
        while (end < text.size() && (std::isalnum(at(end)) || text[end] == '_')) ++end;
      } else if (text.compare(i, 2, "->") == 0) {
        end = i + 2;
      } else if (std::string("(),;=_").find(text[i]) == std::string::npos) {
        // All bytes of a character that is not ASCII: a part of it is no text.
        while (end < text.size() && (at(end) & 0xC0) == 0x80) ++end;
        Fail("`" + text.substr(i, end - i) + "` is not expected");
      }
      tokens_.push_back(text.substr(i, end - i));
      i = end;
    }
  }

  std::string Peek() const { return next_ < tokens_.size() ? tokens_[next_] : ""; }
  std::string Next() { return next_ < tokens_.size() ? tokens_[next_++] : ""; }
  static bool IsName(const std::string& token) {
    return !token.empty() && std::isalpha(static_cast<unsigned char>(token[0])) != 0;
  }

  int Named(const std::string& name) {
    for (size_t i = 0; i < rule_.names.size(); ++i) {
      if (rule_.names[i].name == name) return static_cast<int>(i);
    }
    rule_.names.push_back({name});
    return static_cast<int>(rule_.names.size()) - 1;
  }

  int Known(const std::string& name) {
    size_t before = rule_.names.size();
    int index = Named(name);
    if (rule_.names.size() > before) Fail("`" + name + "` is no dimension of any tensor");
    return index;
  }

  void ReadTensors(std::vector<TensorFactors>* out) {
    do {
      out->push_back(ReadTensor());
    } while (Peek() == "," && !Next().empty());
  }

  TensorFactors ReadTensor() {
    TensorFactors dims;
    bool is_scalar = false;
    while (IsName(Peek()) || Peek() == "_" || Peek() == "(") {
      std::string token = Next();
      FactorList factors;
      if (IsName(token)) factors.push_back(Named(token));
      if (token == "(") {
        while (IsName(Peek())) factors.push_back(Named(Next()));
        if (Next() != ")") Fail("`)` expected behind the names of a dimension");
        if (factors.empty()) {
          is_scalar = true;
          continue;
        }
      }
      dims.push_back(std::move(factors));
    }
    if (is_scalar && !dims.empty()) Fail("`()` is a tensor without dimensions");
    if (!is_scalar && dims.empty())
      Fail("a tensor is missing; write `()` for one without dimensions");
    return dims;
  }

  void ReadClause() {
    std::string word = Next();
    if (Peek() == "=") {
      Next();
      std::string number = Next();
      bool is_number =
          !number.empty() && number.size() < 18 &&
          std::all_of(
              number.begin(), number.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
      if (!is_number || std::stoll(number) == 0) Fail("`" + word + "=` needs a positive integer");
      int64_t& size = rule_.names[Known(word)].size;
      if (size >= 0 && size != std::stoll(number))
        Fail("`" + word + "` is stated as " + std::to_string(size) + " and as " + number);
      size = std::stoll(number);
      return;
    }
    mesh::Reduction kind = KindOf(word);
    if (kind == mesh::Reduction::kNone)
      Fail("`" + word + "` is neither a reduction (sum, max, min, prod, mean) nor a size (name=8)");
    if (!IsName(Peek())) Fail("`" + word + "` needs the names of dimensions");
    while (IsName(Peek())) {
      RuleText::Name& name = rule_.names[Known(Next())];
      if (name.reduction != mesh::Reduction::kNone && name.reduction != kind)
        Fail("`" + name.name + "` is reduced by " + mesh::ReductionName(name.reduction) +
             " and by " + word);
      name.reduction = kind;
    }
  }

  static bool Has(const std::vector<TensorFactors>& tensors, int name) {
    for (const TensorFactors& tensor : tensors) {
      for (const FactorList& dim : tensor) {
        if (std::find(dim.begin(), dim.end(), name) != dim.end()) return true;
      }
    }
    return false;
  }

  void CheckNoDiagonal(const std::vector<TensorFactors>& tensors, const char* what) const {
    for (size_t i = 0; i < tensors.size(); ++i) {
      std::vector<int> seen;
      for (const FactorList& dim : tensors[i]) {
        for (int name : dim) {
          if (std::find(seen.begin(), seen.end(), name) != seen.end()) {
            Fail("`" + rule_.names[name].name + "` stands twice in " + what + " " +
                 std::to_string(i));
          }
          seen.push_back(name);
        }
      }
    }
  }

  void Check() const {
    CheckNoDiagonal(rule_.operands, "operand");
    CheckNoDiagonal(rule_.results, "result");
    mesh::Reduction kind = mesh::Reduction::kNone;
    for (size_t i = 0; i < rule_.names.size(); ++i) {
      const RuleText::Name& name = rule_.names[i];
      if (name.reduction == mesh::Reduction::kNone) continue;
      if (Has(rule_.results, static_cast<int>(i)))
        Fail("`" + name.name + "` is reduced but a dimension of a result");
      if (kind != mesh::Reduction::kNone && kind != name.reduction)
        Fail("all reductions of a rule must be of one kind");
      kind = name.reduction;
    }
    if (kind != mesh::Reduction::kNone && rule_.results.size() > 1)
      Fail("a rule with a reduction has one result");
  }

  RuleText rule_;
  std::vector<std::string> tokens_;
  size_t next_ = 0;
};

/*! \brief Finds the sizes of names in the shapes of a call. */
class SizeReader {
 public:
  SizeReader(const RuleText& rule, const OpView& view) : rule_(rule) {
    for (const RuleText::Name& name : rule.names) {
      sizes_.push_back(name.size);
      origins_.push_back("its clause");
    }
    Match(rule.operands, view.operands, "operand");
    Match(rule.results, view.results, "result");
  }

  std::vector<int64_t> Run() {
    for (const Dim& dim : dims_) {
      if (dim.factors->size() == 1) Take((*dim.factors)[0], dim.size, dim.place);
    }
    // The one unknown size of a merged dimension follows from the others, which may need rounds.
    bool changed = true;
    while (changed) {
      changed = false;
      for (const Dim& dim : dims_) changed = Divide(dim) || changed;
    }
    for (const Dim& dim : dims_) CheckProduct(dim);
    return sizes_;
  }

 private:
  struct Dim {
    const FactorList* factors;
    int64_t size;  // -1: symbolic
    std::string place;
  };

  void Match(const std::vector<TensorFactors>& stated, const std::vector<ir::TensorType>& types,
             const std::string& what) {
    if (stated.size() != types.size()) {
      Refuse(rule_, "it has " +
                        support::Counted(stated.size(), what.c_str(), (what + "s").c_str()) +
                        ", the call " + std::to_string(types.size()));
    }
    for (size_t i = 0; i < types.size(); ++i) {
      Sizes sizes = StaticSizes(types[i]);
      std::string tensor = what + " " + std::to_string(i);
      if (sizes.size() != stated[i].size()) {
        Refuse(rule_, tensor + " has " +
                          support::Counted(stated[i].size(), "dimension", "dimensions") +
                          " there, but " + std::to_string(sizes.size()) + " in the call");
      }
      for (size_t d = 0; d < sizes.size(); ++d) {
        if (stated[i][d].empty()) continue;
        dims_.push_back(
            {&stated[i][d], sizes[d], "dimension " + std::to_string(d) + " of " + tensor});
      }
    }
  }

  void Take(int name, int64_t size, const std::string& place) {
    if (size < 0) return;
    if (sizes_[name] >= 0 && sizes_[name] != size) {
      Refuse(rule_, "`" + rule_.names[name].name + "` is " + std::to_string(sizes_[name]) + " by " +
                        origins_[name] + " and " + std::to_string(size) + " by " + place);
    }
    sizes_[name] = size;
    origins_[name] = place;
  }

  bool Divide(const Dim& dim) {
    if (dim.size < 0) return false;
    int unknown = -1;
    int64_t known = 1;
    for (int name : *dim.factors) {
      if (sizes_[name] >= 0) {
        known *= sizes_[name];
      } else if (unknown >= 0) {
        return false;
      } else {
        unknown = name;
      }
    }
    if (unknown < 0 || known == 0 || dim.size % known != 0) return false;
    Take(unknown, dim.size / known, dim.place);
    return true;
  }

  void CheckProduct(const Dim& dim) const {
    if (dim.size < 0) return;
    int64_t product = 1;
    std::string text;
    for (int name : *dim.factors) {
      const std::string& spelled = rule_.names[name].name;
      if (sizes_[name] < 0) {
        Refuse(rule_, "the size of `" + spelled + "` in " + dim.place +
                          " is not known; state it (" + spelled + "=8)");
      }
      product *= sizes_[name];
      text +=
          (text.empty() ? "`" : " times `") + spelled + "` (" + std::to_string(sizes_[name]) + ")";
    }
    if (product != dim.size) {
      Refuse(rule_, dim.place + " is " + std::to_string(dim.size) + ", which is not " + text);
    }
  }

  const RuleText& rule_;
  std::vector<Dim> dims_;
  std::vector<int64_t> sizes_;        // by name
  std::vector<std::string> origins_;  // where a size is from
};

}  // namespace

RuleText ParseRule(const std::string& owner, const std::string& text) {
  return Parser(owner, text).Run();
}

FactorRule ApplyRule(const RuleText& rule, const OpView& view) {
  std::vector<int64_t> sizes = SizeReader(rule, view).Run();
  std::vector<bool> in_operands(sizes.size()), in_results(sizes.size());
  auto mark = [](const std::vector<TensorFactors>& tensors, std::vector<bool>* seen) {
    for (const TensorFactors& tensor : tensors) {
      for (const FactorList& dim : tensor) {
        for (int name : dim) (*seen)[name] = true;
      }
    }
  };
  mark(rule.operands, &in_operands);
  mark(rule.results, &in_results);
  RuleBuilder builder(view);
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (rule.names[i].reduction != mesh::Reduction::kNone) {
      builder.Reduce(sizes[i], rule.names[i].reduction);
    } else if (in_operands[i] && in_results[i]) {
      builder.Parallel(sizes[i]);
    } else {
      builder.NeedsReplication(sizes[i]);
    }
  }
  for (size_t t = 0; t < rule.operands.size(); ++t) {
    for (size_t d = 0; d < rule.operands[t].size(); ++d) {
      for (int name : rule.operands[t][d]) builder.Operand(t, static_cast<int>(d), name);
    }
  }
  for (size_t t = 0; t < rule.results.size(); ++t) {
    for (size_t d = 0; d < rule.results[t].size(); ++d) {
      for (int name : rule.results[t][d]) builder.Result(t, static_cast<int>(d), name);
    }
  }
  return builder.Finish();
}

}  // namespace distir::rules
