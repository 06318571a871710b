/*!
 * \file lower/local/local_view.h
 * \brief Checks that the kernel of a local view fits the shards of a device.
 *
 * Worked example: x is R.DTensor((8, 16), "S[0]") on 4 devices, of which each has (2, 16). A local
 * view whose kernel has a buffer (4, 16) for it does not fit.
 */
#ifndef DISTIR_LOWER_LOCAL_LOCAL_VIEW_H_
#define DISTIR_LOWER_LOCAL_LOCAL_VIEW_H_

#include <string>

#include "dialect/mesh_table.h"
#include "ir/node.h"

namespace distir::lower {

/*!
 * \brief Mismatch between the types of a local view and its kernel; empty if all known sizes agree.
 * \param functions Of the module.
 */
std::string MisfitOfLocalView(const ir::Call& local_view, const ir::FunctionMap& functions,
                              dialect::MeshTable* meshes);

}  // namespace distir::lower
#endif  // DISTIR_LOWER_LOCAL_LOCAL_VIEW_H_
