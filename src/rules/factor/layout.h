/*!
 * \file rules/factor/layout.h
 * \brief Finds dimensions by their letters in a layout such as "NCHW", "OHWI" or "NCHW4c".
 */
#ifndef DISTIR_RULES_FACTOR_LAYOUT_H_
#define DISTIR_RULES_FACTOR_LAYOUT_H_

#include <string>

namespace distir::rules {

/*! \brief Letters of spatial dimensions, in the order in which attributes list these. */
constexpr char kSpatialLetters[] = {'D', 'H', 'W'};

/*! \brief A layout without the sizes of its blocks: one letter per dimension, "NCHW4c" gives
 * "NCHWc". */
std::string LayoutLetters(const std::string& layout);
/*! \brief The dimension of a letter, or -1. */
int DimOf(const std::string& letters, char letter);
/*! \brief True if some dimension is split into blocks, whose minor part has a small letter. */
bool IsBlocked(const std::string& letters);

}  // namespace distir::rules
#endif  // DISTIR_RULES_FACTOR_LAYOUT_H_
