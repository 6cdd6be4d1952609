// A run of logits in global memory, and how a block visits it.
#pragma once
#include <topk_lab/order_key.hpp>

namespace topk_lab {

struct RowSlice {
  const float* logits;  // (length,)
  int32_t length;
};

// 16-byte loads that a thread has under way while it visits logits that have arrived. A block walks its
// slice alone, so that without them each step of the walk would take the latency of memory.
inline constexpr int loads_ahead = 2;

// Calls visit(bits, position) once for every logit of the slice, in no stated order, by the threads
// of a block. Body in 16-byte loads; at most three logits before and after it by the first threads, so
// that any 4-byte aligned slice is legal. Before the four logits of a load are visited, look(bits) is
// called with the first of them.
template <LogitSource Source, int BlockSize, class Visit, class Look>
__device__ __forceinline__ void for_each_logit(const RowSlice& slice, Visit visit, Look look) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  const uint32_t misplaced = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(slice.logits) >> 2);
  int32_t head = static_cast<int32_t>((0u - misplaced) & 3u);
  head = head < slice.length ? head : slice.length;
  const int32_t quads = (slice.length - head) >> 2;
  const float4* body = reinterpret_cast<const float4*>(slice.logits + head);
  float4 arriving[loads_ahead];
#pragma unroll
  for (int ahead = 0; ahead < loads_ahead; ++ahead) {
    const int32_t quad = thread + ahead * BlockSize;
    if (quad < quads) arriving[ahead] = body[quad];
  }
#pragma unroll 1
  for (int32_t quad = thread; quad < quads; quad += BlockSize) {
    const float4 four = arriving[0];
#pragma unroll
    for (int ahead = 1; ahead < loads_ahead; ++ahead) arriving[ahead - 1] = arriving[ahead];
    const int32_t later = quad + loads_ahead * BlockSize;
    if (later < quads) arriving[loads_ahead - 1] = body[later];
    const int32_t position = head + 4 * quad;
    look(canonical_bits<Source>(four.x));
    visit(canonical_bits<Source>(four.x), position);
    visit(canonical_bits<Source>(four.y), position + 1);
    visit(canonical_bits<Source>(four.z), position + 2);
    visit(canonical_bits<Source>(four.w), position + 3);
  }
  const int32_t tail = head + 4 * quads;
  const int32_t rest = head + (slice.length - tail);
  if (thread < rest) {
    const int32_t position = thread < head ? thread : tail + thread - head;
    visit(canonical_bits<Source>(slice.logits[position]), position);
  }
}

template <LogitSource Source, int BlockSize, class Visit>
__device__ __forceinline__ void for_each_logit(const RowSlice& slice, Visit visit) {
  for_each_logit<Source, BlockSize>(slice, visit, [](uint32_t) {});
}

// A slice in fours that lie on 16 bytes each, for who walks it in order. The first may begin before the
// slice and the last may end behind it; what lies outside is not read. Positions are counted modulo
// 2^32: one is live if it is below the length.
struct QuadsInOrder {
  const float* logits;
  uint32_t length;
  uint32_t lead;   // logits of the first quad that lie before the slice
  uint32_t count;  // quads that hold a logit of the slice

  __device__ __forceinline__ explicit QuadsInOrder(const RowSlice& slice)
      : logits(slice.logits),
        length(static_cast<uint32_t>(slice.length)),
        lead(static_cast<uint32_t>(reinterpret_cast<uintptr_t>(slice.logits) >> 2) & 3u),
        count((lead + length + 3u) >> 2) {}

  // Position of a quad's first logit.
  __device__ __forceinline__ uint32_t position(uint32_t quad) const { return 4u * quad - lead; }

  __device__ __forceinline__ float4 load(uint32_t quad) const {
    const uint32_t first = position(quad);
    float4 four{};
    if (quad >= count) return four;
    if (first < length && first + 3u < length) {
      return *reinterpret_cast<const float4*>(logits + first);
    }
    if (first < length) four.x = logits[first];
    if (first + 1u < length) four.y = logits[first + 1u];
    if (first + 2u < length) four.z = logits[first + 2u];
    if (first + 3u < length) four.w = logits[first + 3u];
    return four;
  }
};

}  // namespace topk_lab
