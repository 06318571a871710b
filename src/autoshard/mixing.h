/*!
 * \file autoshard/mixing.h
 * \brief Mixes two choices where a limit of memory lies between them: the nodes before some place
 * have the one, those behind it the other.
 *
 * Worked example: 40 equal layers, each with a fast plan that needs 2 GB and a slow one that needs
 * 1 GB, and 60 GB: 20 layers have the fast one. What joins two layers costs once more.
 */
#ifndef DISTIR_AUTOSHARD_MIXING_H_
#define DISTIR_AUTOSHARD_MIXING_H_

#include <cstdint>

#include "autoshard/problem.h"

namespace distir::autoshard {

/*!
 * \brief The best of the mixtures that fit, with either of both in front.
 * \param fitting A choice within all limits.
 * \param other A choice that may exceed limits.
 * \param below Only mixtures that cost less are looked at.
 * \return A choice within all limits, or an empty one.
 */
Choice Mix(const Problem& problem, const Choice& fitting, const Choice& other, int64_t below);

}  // namespace distir::autoshard

#endif  // DISTIR_AUTOSHARD_MIXING_H_
