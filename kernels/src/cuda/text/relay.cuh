// One end of a path over the host: takes tiles from a ring of staging slots, combines them with this
// rank's contribution, and puts the result into the output and into the next ring, in one pass.
// Each of the four may be missing, so this receives, sends, reduces and forwards.
//
// One block serves a ring. Counters only grow, and those of a ring are the host's too: it lets a
// network card read filled slots and fill free ones.

namespace r2ccl {

// Waits, in all threads, until a tile has come and there is room for what it becomes.
R2CCL_FN bool meet_rings(const RelayParameters &p, u64 tile)
{
    bool is_ready = true;
    if (thread() == 0) {
        if (p.incoming.slots) is_ready = wait_for(p.incoming.tail, tile + 1, p.abort);
        if (p.outgoing.slots && is_ready && tile >= p.slots)
            is_ready = wait_for(p.outgoing.head, tile + 1 - p.slots, p.abort);
    }
    return !meet_block(!is_ready);
}

// The operands of a tile that begins `offset` bytes into the contribution and the output.
R2CCL_FN Operands tile_operands(const RelayParameters &p, u64 tile, u64 offset, u64 slot_bytes)
{
    Operands operands;
    operands.source_count = 0;
    operands.destination_count = 0;
    operands.arithmetic = p.arithmetic;
    const u64 slot = tile % p.slots * slot_bytes;
    if (p.local) operands.sources[operands.source_count++] = p.local + offset;
    else operands.arithmetic.scaled = 0;
    if (p.incoming.slots) operands.sources[operands.source_count++] = p.incoming.slots + slot;
    if (p.output) operands.destinations[operands.destination_count++] = p.output + offset;
    if (p.outgoing.slots)
        operands.destinations[operands.destination_count++] = p.outgoing.slots + slot;
    return operands;
}

template <class T, class Op> R2CCL_FN void relay(const RelayParameters &p)
{
    const u64 before = p.state->calls, size = Lanes<T>::BYTES;
    u64 tile = before;
    R2CCL_KEEP_LOOP for (u64 done = 0; done < p.count; done += p.tile_count, tile++) {
        if (!meet_rings(p, tile)) break;
        const u64 rest = p.count - done;
        const Operands operands = tile_operands(p, tile, done * size, p.tile_count * size);
        reduce_range<T, Op>(operands, 0, rest < p.tile_count ? rest : p.tile_count);
        meet_block(false);
        if (thread() == 0) {
            fence_system();
            if (p.incoming.slots) store_release(p.incoming.head, tile + 1);
            if (p.outgoing.slots) store_release(p.outgoing.tail, tile + 1);
        }
    }
    // All threads have met since they have looked at it, if there was a tile.
    if (thread() == 0) p.state->calls = tile;
}

}  // namespace r2ccl
