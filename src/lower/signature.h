/*!
 * \file lower/signature.h
 * \brief Signature of a compiled program for the runtime: global types of parameters and results,
 * and the programs of each device. A padded dimension has its size from before it was padded.
 */
#ifndef DISTIR_LOWER_SIGNATURE_H_
#define DISTIR_LOWER_SIGNATURE_H_

#include <tvm/ffi/container/map.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "dialect/mesh_table.h"
#include "ir/node.h"

namespace distir::lower {

/*! \brief The module attribute with the groups that communicate, which a session opens before the
 * program runs; LowerCCL writes it. */
constexpr const char* kPartitionsAttr = "distir.partitions";
/*! \brief The module attribute that LowerDistIR leaves the signature in; SignatureWriter says how.
 */
constexpr const char* kSignatureAttr = "distir.signature";
/*!
 * \brief The function attribute that says which parameters are blocks of one weight: by name of the
 * weight the dimension along which they are, and their names. `annotate` writes it; the signature
 * has it too. {"wqkv": [1, "wqkv_0", "wqkv_1", "wqkv_2"]}
 */
constexpr const char* kFusedParamsAttr = "distir.fused_params";

/*! \brief Program that an SPMD group of devices runs of an entry function, in one virtual stage. */
struct EntryProgram {
  std::string name;
  std::vector<int64_t> device_ids;
  int virtual_stage;
  std::vector<int> params;         // positions
  std::vector<int> results;        // positions of leaves; none but of the last virtual stage
  std::vector<std::string> sizes;  // as in SpmdProgram
};

/*!
 * \brief Writes the signature of a module, short enough to be printed with it. Executables carry
 * the same. One reader, in Python, reads both (`signature_form.py`). Of a layer norm, on one mesh:
 * \code
 *   {"version": 9,
 *    "meshes": [[[2, 2], "0..3"]],
 *    "functions": {"main": {
 *      "params": ["x: float32[8, 64] S[0], R", ["0..31", "layers.{}.norm: float32[64] R, R"]],
 *      "result": "float32[8, 64] S[0], R",
 *      "num_input": 1,
 *      "fused": {"wqkv": [1, "wqkv_0", "wqkv_1", "wqkv_2"]},   as kFusedParamsAttr; may be absent
 *      "donated": "0..1",   inputs whose memory results take; may be absent
 *      "dividing": {"n": "relax.nn.foo (`lv`)"},   as padding::kDividingAttr; may be absent
 *      "programs": [{"name": "main", "devices": "0..3", "params": "0..32", "results": "0"}]}}}
 * \endcode
 * A dimension cut in whole grains states the size of a shard: `1024:352` is 1024 columns, of which
 * a device has 352, or what is left of them. So does a symbolic one that is padded:
 * `n:(n + 1) // 2`. Other symbolic ones that are sharded have to divide; "dividing" says why, by
 * name. A type names its mesh, `float32[8] mesh[1] R`, if that is not the first one listed;
 * `(a; b)` is a tuple of types, `shape[n, 4]` a shape, `shape[?]` one of an unknown value, `shape`
 * one of an unknown length, `int64` a number, and `value` anything else. Sizes are written as
 * ir::SizeText does. Layers are folded as
 * `FoldNumbered` says. A program may have symbolic "sizes", and a "virtual_stage" other than 0.
 */
class SignatureWriter {
 public:
  explicit SignatureWriter(dialect::MeshTable* meshes) : meshes_(meshes) {}

  /*! \throws ValueError where parameters or results are not those that were padded. */
  void Add(const std::string& name, const ir::Function& function,
           const std::vector<EntryProgram>& versions);
  /*! \brief A function without DTensors, which each of these devices runs on all of its arguments.
   */
  void AddReplicated(const std::string& name, const ir::Function& function,
                     const std::vector<int64_t>& device_ids);
  tvm::ffi::Map<tvm::ffi::String, tvm::ffi::Any> Finish() const;

 private:
  class TrueExtents;
  std::string TypeText(const ir::Type& type, TrueExtents* extents);
  void Write(const std::string& name, const ir::Function& function,
             const std::vector<ir::Type>& params, const ir::Type& result, TrueExtents* extents,
             const std::vector<EntryProgram>& versions);
  int NumberOf(const ir::DeviceMesh& device_mesh);

  dialect::MeshTable* meshes_;
  tvm::ffi::Map<tvm::ffi::String, tvm::ffi::Any> functions_;
  std::vector<ir::DeviceMesh> listed_;
  ir::DeviceMesh all_devices_;
  std::unordered_map<const tvm::ffi::Object*, int> numbers_;  // in listed_
};

}  // namespace distir::lower
#endif  // DISTIR_LOWER_SIGNATURE_H_
