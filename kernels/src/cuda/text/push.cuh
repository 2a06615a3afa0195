// AllReduce of large messages on buffers that every rank has mapped: rank r reduces slice r of all
// inputs and stores the result in all outputs. Nothing is staged, and an output may be an input.
//
// Block b of every rank meets block b of all others before, when all inputs are ready, and after,
// when all outputs are written and no input is needed. All ranks launch equally many blocks, and all
// blocks of all ranks must be able to run together.

namespace r2ccl {

// Tells this block of all ranks that it has come to `ticket`, and waits for them. Tickets grow, and a
// counter of 64 bits never returns. False, in all threads, if one gave up.
R2CCL_FN bool meet_ranks(const PushParameters &p, u64 ticket)
{
    bool gave_up = false;
    meet_block(false);
    const u32 peer = thread();
    if (peer < p.operands.source_count && peer != p.rank) {
        const u64 row = block() * MOST_RANKS;
        fence_system();
        store_release(p.arrivals[peer] + row + p.rank, ticket);
        gave_up = !wait_for(p.arrivals[p.rank] + row + peer, ticket, p.abort);
    }
    return !meet_block(gave_up);
}

// Elements of one rank's slice: whole vectors, so that slices of aligned buffers are aligned.
template <class T> R2CCL_FN u64 slice_count(const PushParameters &p)
{
    const u64 per_vector = VECTOR_BYTES / Lanes<T>::BYTES, ranks = p.operands.source_count;
    return (p.count + ranks * per_vector - 1) / (ranks * per_vector) * per_vector;
}

template <class T, class Op> R2CCL_FN void push(const PushParameters &p)
{
    const u64 calls = p.state->calls;
    if (meet_ranks(p, 2 * calls + 1)) {
        const u64 slice = slice_count<T>(p), first = slice * p.rank;
        const u64 rest = p.count > first ? p.count - first : 0;
        reduce_range<T, Op>(p.operands, first, rest < slice ? rest : slice);
        meet_ranks(p, 2 * calls + 2);
    }
    if (is_last_of_grid(p.state)) p.state->calls = calls + 1;
}

}  // namespace r2ccl
