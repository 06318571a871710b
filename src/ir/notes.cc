// Registers the notes that take no part in structural comparison.
#include "ir/notes.h"

#include "ir/node.h"
#include "ir/rewriter.h"
#include "ir/tvm/reflection.h"

namespace distir::ir {

namespace {

constexpr const char* kNotes[] = {kStatedAttr, kOpenAttr, kTakenBackAttr, kMadeAttr,
                                  kShardingsAttr};

/*! \brief The attributes without notes; the same map where there are none. */
AttrMap Compared(const ffi::ObjectRef& attrs) {
  AttrMap dict = DictAttrs::Cast(attrs).dict();
  for (const char* note : kNotes) {
    if (dict.count(note) > 0) dict.erase(note);
  }
  return dict;
}

bool AreEqual(const ffi::ObjectRef& left, const ffi::ObjectRef& right, const ffi::Function& equal) {
  return equal(Compared(left), Compared(right), false, "__dict__").cast<bool>();
}

int64_t Hash(const ffi::ObjectRef& attrs, int64_t so_far, const ffi::Function& hash) {
  return hash(Compared(attrs), so_far, false).cast<int64_t>();
}

void Register(int32_t type_index, const char* name, const ffi::Function& function) {
  const TVMFFIByteArray key{name, std::char_traits<char>::length(name)};
  const ffi::AnyView value = function;
  const TVMFFIAny raw = value.CopyToTVMFFIAny();
  TVM_FFI_CHECK_SAFE_CALL(TVMFFITypeRegisterAttr(type_index, &key, &raw));
}

const Kind kDictAttrs("ir.DictAttrs");

// TVM states nothing of its own for this type, so its comparison by fields is what is replaced.
const OnLoad kRegister([] {
  Register(kDictAttrs.type_index(), "__s_equal__", ffi::Function::FromTyped(AreEqual));
  Register(kDictAttrs.type_index(), "__s_hash__", ffi::Function::FromTyped(Hash));
});

}  // namespace

}  // namespace distir::ir
