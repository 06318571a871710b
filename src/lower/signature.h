/*!
 * \file lower/signature.h
 * \brief What the runtime must know of a compiled program: global types of parameters and results,
 * who runs what. A padded dimension has its size from before it was padded.
 */
#ifndef DISTIR_LOWER_SIGNATURE_H_
#define DISTIR_LOWER_SIGNATURE_H_

#include <map>
#include <string>
#include <vector>

#include "ir/node.h"
#include "lower/device_classes.h"

namespace distir {
namespace lower {

/*! \brief The module attribute that LowerDistIR leaves the signature in, as JSON. */
constexpr const char* kSignatureAttr = "distir.signature";

/*! \brief What the devices of a class run of an entry function, in one round. */
struct WorkerVersion {
  std::string name;
  DeviceClass devices;
  int round;
  std::vector<int> params;         // positions among those that are on the class's meshes
  bool is_last;                    // of the rounds of its class: it returns the results
  std::vector<std::string> sizes;  // as in WorkerFunction
};

/*!
 * \brief JSON of one entry function.
 * \throws ValueError where its parameters or results are not those that were padded.
 */
std::string FunctionSignature(const ir::Function& function, const std::string& name,
                              const std::vector<WorkerVersion>& versions, op::MeshTable* meshes);
/*! \brief JSON of a function without DTensors, which each of these devices runs on all of its
 * arguments. */
std::string ReplicatedSignature(const ir::Function& function, const std::string& name,
                                const std::vector<int64_t>& device_ids);
/*! \brief JSON of the module. */
std::string ModuleSignature(const std::vector<int64_t>& device_ids,
                            const std::map<std::string, std::string>& function_signatures);

}  // namespace lower
}  // namespace distir
#endif  // DISTIR_LOWER_SIGNATURE_H_
