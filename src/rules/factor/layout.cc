// Finds dimensions by their letters in a layout.
#include "rules/factor/layout.h"

#include <algorithm>
#include <cctype>

namespace distir::rules {

std::string LayoutLetters(const std::string& layout) {
  std::string letters;
  std::copy_if(layout.begin(), layout.end(), std::back_inserter(letters),
               [](unsigned char c) { return std::isalpha(c) != 0; });
  return letters;
}

int DimOf(const std::string& letters, char letter) {
  size_t position = letters.find(letter);
  return position == std::string::npos ? -1 : static_cast<int>(position);
}

bool IsBlocked(const std::string& letters) {
  return std::any_of(letters.begin(), letters.end(),
                     [](unsigned char c) { return std::islower(c) != 0; });
}

}  // namespace distir::rules
