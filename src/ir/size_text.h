/*!
 * \file ir/size_text.h
 * \brief Prints sizes as Python arithmetic, for messages and signatures.
 */
#ifndef DISTIR_IR_SIZE_TEXT_H_
#define DISTIR_IR_SIZE_TEXT_H_

#include <string>

#include "ir/node.h"

namespace distir::ir {

/*!
 * \brief The text of a size: `8`, `n`, `(n + 7) // 8`.
 *
 * Python computes it as TVM does: `//` and `%` round down, `truncdiv` and `truncmod` towards zero.
 * A name that is no word stands in quotes; its characters that are neither letters nor digits are
 * %XX, as in an address, since a file may name its sizes "2 * batch" or worse: `"2%20%2A%20batch"`.
 */
std::string SizeText(const Expr& size);

/*! \brief The text of a size for readers: as SizeText, but names are as the program has them. A
 * name that is no word stands in quotes within an expression: `2 * batch`, `"2 * batch" + 1`. */
std::string ReadableSize(const Expr& size);

/*! \brief Text of a shape: `shape[n, 4]`, `shape[?]` where only its length is known, `shape`
 * where nothing is. */
std::string ShapeText(const ShapeType& type);

/*! \brief A name as one word: what is neither letter, digit, "_" nor "." is %XX. */
std::string Word(const std::string& name);

}  // namespace distir::ir
#endif  // DISTIR_IR_SIZE_TEXT_H_
