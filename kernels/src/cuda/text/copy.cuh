// Copies of one source to up to eight destinations, at any addresses.
//
// Destinations that start at the same place in a vector are written in one pass over the source;
// otherwise every destination gets its own, so that whole vectors are stored in each.

namespace r2ccl {

const u32 COPY_IN_FLIGHT = 4;

// `COUNT` vectors, `stride` bytes apart, at this offset, to destinations `first..end`.
template <u32 COUNT>
R2CCL_FN void copy_vectors(const CopyParameters &p, u32 first, u32 end, u64 offset, u64 stride)
{
    Vector vectors[COUNT];
    load_vectors<COUNT>(vectors, p.source + offset, stride);
    R2CCL_KEEP_LOOP for (u32 d = first; d < end; d++)
        R2CCL_UNROLL for (u32 u = 0; u < COUNT; u++)
            store_once(p.destinations[d] + offset + u * stride, vectors[u]);
}

// Copies to destinations `first..end`, which lie beside each other, by so many blocks, of which this is
// number `own`.
R2CCL_FN void copy_pass(const CopyParameters &p, u32 first, u32 end, u32 own, u32 all)
{
    const bool apart = !is_beside(p.destinations[first], p.source);
    const Split parts = split(p.destinations[first], p.bytes, 1, apart);
    const u64 stride = static_cast<u64>(threads()) * VECTOR_BYTES;
    const u64 per_block = static_cast<u64>(threads()) * COPY_IN_FLIGHT;
    const u64 rounds = whole_turns(parts.vectors / per_block, all);
    const u64 grid = static_cast<u64>(all) * threads();
    const u64 self = static_cast<u64>(own) * threads() + thread();
    R2CCL_KEEP_LOOP for (u64 round = own; round < rounds; round += all) {
        const u64 vector = round * per_block + thread();
        copy_vectors<COPY_IN_FLIGHT>(p, first, end, parts.head + vector * VECTOR_BYTES, stride);
    }
    R2CCL_KEEP_LOOP for (u64 v = rounds * per_block + self; v < parts.vectors; v += grid)
        copy_vectors<1>(p, first, end, parts.head + v * VECTOR_BYTES, 0);
    const u64 ends = p.bytes - parts.tail + parts.head;
    R2CCL_KEEP_LOOP for (u64 e = self; e < ends; e += grid) {
        const u64 byte = e < parts.head ? e : parts.tail + (e - parts.head);
        const u64 value = load_aligned<1>(p.source + byte);
        R2CCL_KEEP_LOOP for (u32 d = first; d < end; d++)
            store_aligned<1>(p.destinations[d] + byte, value);
    }
}

R2CCL_FN void copy(const CopyParameters &p)
{
    const u32 count = p.destination_count;
    bool together = true;
    for (u32 d = 1; d < count; d++)
        together = together && is_beside(p.destinations[0], p.destinations[d]);
    if (together) return copy_pass(p, 0, count, block(), blocks());
    R2CCL_KEEP_LOOP for (u32 d = 0; d < count; d++) copy_pass(p, d, d + 1, block(), blocks());
}

}  // namespace r2ccl
