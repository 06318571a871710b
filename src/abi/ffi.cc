/*!
 * \file abi/ffi.cc
 * \brief Global functions that read groups and plans, for analysis in Python.
 */
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/optional.h>
#include <tvm/ffi/string.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "abi/collective.h"
#include "abi/plan_moves.h"
#include "support/functions.h"

namespace distir::abi {

namespace ffi = tvm::ffi;

namespace {

using Ints = ffi::Array<int64_t>;
using Texts = ffi::Array<ffi::String>;

Collective Find(const ffi::String& name) {
  const CollectiveRecord* record = FindCollective({name.data(), name.size()});
  if (record == nullptr)
    TVM_FFI_THROW(ValueError) << "unknown collective " << static_cast<std::string>(name);
  return record->collective;
}

/*! \brief The devices that take part, and the bytes that the busiest one sends. */
ffi::Array<ffi::Any> SentByPlan(const ffi::String& name, const ffi::String& plan,
                                const ffi::Optional<Ints>& among, double bytes) {
  std::optional<std::vector<int64_t>> devices;
  if (among.has_value()) devices.emplace(among.value().begin(), among.value().end());
  const PlanTraffic traffic = TrafficOf(Find(name), plan, devices, bytes);
  return {traffic.devices, traffic.bytes};
}

Texts ToData(const std::vector<std::string>& names) {
  Texts texts;
  for (const std::string& name : names) texts.push_back(ffi::String(name));
  return texts;
}

TVM_FFI_STATIC_INIT_BLOCK() {
  support::Functions()
      .def("distir.abi.SentByPlan", SentByPlan)
      // Two functions, of groups and of plans -> names of axes; see plan_moves.h.
      .def("distir.abi.MeshAxes", [](const ffi::Array<ffi::Array<ffi::Any>>& meshes) {
        auto axes = std::make_shared<MeshAxes>(ReadNamedMeshes(meshes));
        return ffi::Array<ffi::Any>{support::Typed([axes](Ints group) {
                                      return ToData(axes->OfGroup({group.begin(), group.end()}));
                                    }),
                                    support::Typed([axes](ffi::String name, ffi::String plan) {
                                      return ToData(axes->OfPlan(Find(name), plan));
                                    })};
      });
}

}  // namespace

}  // namespace distir::abi
