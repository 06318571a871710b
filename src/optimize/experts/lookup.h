/*!
 * \file optimize/experts/lookup.h
 * \brief Recognises lookups by row in a table that has an entry for each expert.
 *
 * Once collectives are written, programs have them in two forms. Either the table is gathered, or
 * every device looks up its own entries and the results are summed, which is how DecomposeSharded
 * writes it:
 *
 *     all = R.dist.all_gather(table, ..)        parts = R.reshape(table, (8, 8, 1024, 2048))
 *     w = R.take(all, ids, axis=0)              own = R.take(parts, ids % 8, axis=1)
 *                                               s = R.sum(R.where(ids // 8 == device, own, 0), 0)
 *                                               w = R.dist.all_reduce(s, ..)
 */
#ifndef DISTIR_OPTIMIZE_EXPERTS_LOOKUP_H_
#define DISTIR_OPTIMIZE_EXPERTS_LOOKUP_H_

#include <optional>
#include <vector>

#include "dialect/mesh_table.h"
#include "ir/node.h"
#include "optimize/program/editable_function.h"

namespace distir::optimize {

struct Lookup {
  ir::Expr table;  // with an entry for each expert along dimension 0, maybe for padding, too
  ir::Expr ids;    // of one dimension; one outside of the table means the nearest entry, or any
  /*! \brief Axes of the mesh along which the entries lie; none where all devices have them. */
  std::vector<int> axes;
  double sent_bytes = 0;  // for the lookup

  int64_t num_entries() const;
};

/*! \brief The lookup that a value is the result of; nullopt for others. */
std::optional<Lookup> ReadLookup(const ir::Expr& value, const EditableFunction& editable,
                                 dialect::MeshTable* meshes);
/*! \brief The binding of a value by a call of an operator; null for others. */
EditableBinding* DefinitionBy(const char* op, const ir::Expr& value,
                              const EditableFunction& editable);

}  // namespace distir::optimize
#endif  // DISTIR_OPTIMIZE_EXPERTS_LOOKUP_H_
