// Runs a communication library's collective in pieces of bounded size: packs a piece into a
// buffer, starts the library on it, and unpacks the result.
#include "runtime/communicators/cpu/packed_collective.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <utility>

#include "runtime/communicators/cpu/chunks.h"

namespace distir::runtime::cpu {

namespace {

// Number of pieces in flight, so that one is packed while another is sent.
constexpr size_t kPiecesAtATime = 2;

struct Piece {
  Chunk chunk;
  std::shared_ptr<char> operand, result;
  std::unique_ptr<StartedCollective> started;
};

class HostPieces : public PieceMemory {
 public:
  // They are packed and unpacked in the cache.
  int64_t piece_bytes() const final { return 1 << 20; }
  std::shared_ptr<char> New(int64_t num_bytes) final {
    return std::shared_ptr<char>(new char[num_bytes], std::default_delete<char[]>());
  }
  void Copy(const BoxCopy& copy, const char* source, char* target) final {
    copy.Run(source, target);
  }
};

// Begins of equal blocks that lie in one tensor.
template <typename Char>
std::vector<Char*> Blocks(Char* first, int count, int64_t step) {
  std::vector<Char*> blocks;
  for (int i = 0; i < count; ++i) blocks.push_back(first + i * step);
  return blocks;
}

}  // namespace

int64_t PackedCollective::LeastBytes(int num_members) const {
  const int64_t block = NumElements(extent) * ElementBytes(call.dtype);
  if (call.operation == LibraryOperation::kAllReduce)
    return 2 * block * (num_members - 1) / num_members;
  return block * (num_members - 1);
}

void PackedCollective::Run(LibraryCollectives* library, const std::vector<int>& ranks,
                           const WaitUntil& wait, const std::function<std::string()>& describe,
                           PieceMemory* stated_memory) const {
  HostPieces host_pieces;
  PieceMemory* memory = stated_memory == nullptr ? &host_pieces : stated_memory;
  const int64_t element_bytes = ElementBytes(call.dtype);
  const int64_t sides = static_cast<int64_t>(std::max(sources.size(), targets.size()));
  const int64_t most = std::max<int64_t>(1, memory->piece_bytes() / sides / element_bytes);
  const int64_t buffer_bytes = std::min(NumElements(extent), most) * element_bytes;
  std::deque<Piece> under_way;
  auto finish_first = [&] {
    Piece& piece = under_way.front();
    wait(describe, [&piece] { return piece.started->Done(); });
    const int64_t num_bytes = NumElements(piece.chunk.extent) * element_bytes;
    const BoxCopy unpack(piece.chunk.extent, RowMajorStrides(piece.chunk.extent, element_bytes),
                         target_strides, element_bytes);
    const char* block = piece.result.get();
    for (char* target : targets) {
      memory->Copy(unpack, block, target + piece.chunk.Offset(target_strides));
      block += num_bytes;
    }
  };
  ForEachChunk(extent, most, [&](const Chunk& chunk) {
    Piece piece;
    if (under_way.size() == kPiecesAtATime) {
      finish_first();
      piece = std::move(under_way.front());  // its buffers do for this one
      under_way.pop_front();
    } else {
      piece.operand = memory->New(buffer_bytes * static_cast<int64_t>(sources.size()));
      piece.result = memory->New(buffer_bytes * static_cast<int64_t>(targets.size()));
    }
    piece.chunk = chunk;
    const int64_t count = NumElements(chunk.extent);
    const BoxCopy pack(chunk.extent, source_strides, RowMajorStrides(chunk.extent, element_bytes),
                       element_bytes);
    char* block = piece.operand.get();
    for (const char* source : sources) {
      memory->Copy(pack, source + chunk.Offset(source_strides), block);
      block += count * element_bytes;
    }
    memory->AwaitCopies();
    piece.started = library->Start(ranks, call, piece.operand, piece.result, count);
    under_way.push_back(std::move(piece));
  });
  for (; !under_way.empty(); under_way.pop_front()) finish_first();
}

PackedCollective PackedAllReduce(const LibraryCall& call, const tvm::ffi::TensorView& x,
                                 const tvm::ffi::TensorView& out) {
  const int64_t element_bytes = ElementBytes(x.dtype());
  return {call, {x.numel()}, {element_bytes}, {element_bytes}, {DataOf(x)}, {DataOf(out)}};
}

PackedCollective PackedAllGather(const LibraryCall& call, const tvm::ffi::TensorView& x, int dim,
                                 const tvm::ffi::TensorView& out, int n) {
  const int64_t element_bytes = ElementBytes(x.dtype());
  const std::vector<int64_t> extent = ShapeOf(x);
  const std::vector<int64_t> out_strides = RowMajorStrides(ShapeOf(out), element_bytes);
  return {call,        extent,      RowMajorStrides(extent, element_bytes),
          out_strides, {DataOf(x)}, Blocks(DataOf(out), n, extent[dim] * out_strides[dim])};
}

PackedCollective PackedReduceScatter(const LibraryCall& call, const tvm::ffi::TensorView& x,
                                     int dim, const tvm::ffi::TensorView& out, int n) {
  const int64_t element_bytes = ElementBytes(x.dtype());
  const std::vector<int64_t> x_strides = RowMajorStrides(ShapeOf(x), element_bytes);
  std::vector<int64_t> extent = ShapeOf(x);
  extent[dim] /= n;
  return {call,
          extent,
          x_strides,
          RowMajorStrides(extent, element_bytes),
          Blocks<const char>(DataOf(x), n, extent[dim] * x_strides[dim]),
          {DataOf(out)}};
}

PackedCollective PackedAllToAll(const LibraryCall& call, const tvm::ffi::TensorView& x,
                                int split_dim, int concat_dim, const tvm::ffi::TensorView& out,
                                int n) {
  const int64_t element_bytes = ElementBytes(x.dtype());
  const std::vector<int64_t> x_strides = RowMajorStrides(ShapeOf(x), element_bytes);
  const std::vector<int64_t> out_strides = RowMajorStrides(ShapeOf(out), element_bytes);
  std::vector<int64_t> piece = ShapeOf(x);
  piece[split_dim] /= n;
  return {call,
          piece,
          x_strides,
          out_strides,
          Blocks<const char>(DataOf(x), n, piece[split_dim] * x_strides[split_dim]),
          Blocks(DataOf(out), n, piece[concat_dim] * out_strides[concat_dim])};
}

}  // namespace distir::runtime::cpu
