#include "runtime/communicators/cpu/packed_collective.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <utility>

#include "runtime/communicators/cpu/chunks.h"
#include "runtime/kernels/strided_copy.h"

namespace distir::runtime::cpu {

namespace {

// The larger side of a piece, which is packed and unpacked in the cache, and how many are on their
// way at a time, so that one is packed while another is sent.
constexpr int64_t kPieceBytes = 1 << 20;
constexpr size_t kPiecesAtATime = 2;

struct Piece {
  Chunk chunk;
  std::shared_ptr<char> operand, result;
  std::unique_ptr<StartedCollective> started;
};

std::shared_ptr<char> NewBuffer(int64_t num_bytes) {
  return std::shared_ptr<char>(new char[num_bytes], std::default_delete<char[]>());
}

}  // namespace

int64_t PackedCollective::LeastBytes(int num_members) const {
  const int64_t block = NumElements(extent) * ElementBytes(call.dtype);
  if (call.operation == LibraryOperation::kAllReduce)
    return 2 * block * (num_members - 1) / num_members;
  return block * (num_members - 1);
}

void PackedCollective::Run(LibraryCollectives* library, const std::vector<int>& ranks,
                           const WaitUntil& wait,
                           const std::function<std::string()>& describe) const {
  const int64_t element_bytes = ElementBytes(call.dtype);
  const int64_t sides = static_cast<int64_t>(std::max(sources.size(), targets.size()));
  const int64_t most = std::max<int64_t>(1, kPieceBytes / sides / element_bytes);
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
      unpack.Run(block, target + piece.chunk.Offset(target_strides));
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
      piece.operand = NewBuffer(buffer_bytes * static_cast<int64_t>(sources.size()));
      piece.result = NewBuffer(buffer_bytes * static_cast<int64_t>(targets.size()));
    }
    piece.chunk = chunk;
    const int64_t count = NumElements(chunk.extent);
    const BoxCopy pack(chunk.extent, source_strides, RowMajorStrides(chunk.extent, element_bytes),
                       element_bytes);
    char* block = piece.operand.get();
    for (const char* source : sources) {
      pack.Run(source + chunk.Offset(source_strides), block);
      block += count * element_bytes;
    }
    piece.started = library->Start(ranks, call, piece.operand, piece.result, count);
    under_way.push_back(std::move(piece));
  });
  for (; !under_way.empty(); under_way.pop_front()) finish_first();
}

}  // namespace distir::runtime::cpu
