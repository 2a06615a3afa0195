// AllReduce of small messages in one step: every rank writes its contribution into the mailboxes of
// all others and combines what arrives in its own, in order of rank, so that all get the same bits.
//
// A *line* of 16 bytes carries a unit: {low half, flag, high half, flag}. Hardware keeps eight bytes
// together, so data that stands beside the flag of this call is data of this call, and nobody
// waits for anything but the data. Flags are compared for equality: a line of an earlier call that
// arrives again is not taken for a new one.
//
// A line belongs to a block, however many there are: that of unit u to block u / most_threads, modulo most_blocks. So
// blocks need not meet, and all that follows is said of a block of every rank.
//
// There are two boxes, used in turn. A rank that is two calls ahead cannot exist: to finish a call it
// needs lines that this rank sends only after it has finished the one before.
//
// A flag returns after 2^32 - 1 calls. Lines that only large calls use could still hold it then, so
// each box is emptied once in that time, by the calls with the last two flags: when such a call ends,
// nobody has begun the next call that uses its box.

namespace r2ccl {

const u32 LINE_BYTES = 16;
const u32 LAST_FLAG = 0xffffffffu;

R2CCL_FN u32 next_flag(u32 flag) { return flag == LAST_FLAG ? 1 : flag + 1; }

// `bytes` of up to eight, at any address; those that are missing are zero.
R2CCL_FN u64 load_unit(const u8 *at, u64 bytes)
{
    if (bytes == 8) return load_bytes<8>(at);
    u64 unit = 0;
    R2CCL_KEEP_LOOP for (u32 k = 0; k < bytes; k++) unit |= load_aligned<1>(at + k) << 8 * k;
    return unit;
}

R2CCL_FN void store_unit(u8 *at, u64 unit, u64 bytes)
{
    if (bytes == 8) return store_bytes<8>(at, unit);
    R2CCL_KEEP_LOOP for (u32 k = 0; k < bytes; k++) store_aligned<1>(at + k, unit >> 8 * k & 0xff);
}

// Waits for the unit in this line. False if it gave up.
R2CCL_FN bool receive(const u8 *line, u32 flag, const u32 *abort, u64 &unit)
{
    Patience patience{abort};
    for (;;) {
        u32 first, second;
        unit = load_line(line, first, second);
        if (first == flag && second == flag) return true;
        if (!patience.goes_on()) return false;
    }
}

// Unit `index` of the call: sends this rank's, and combines those of all. False if it gave up.
template <class T, class Op>
R2CCL_FN bool exchange_unit(const LowLatencyParameters &p, u64 box, u32 flag, u64 index)
{
    typedef Fold<T, Op> F;
    const u64 offset = index * 8, rest = p.count * Lanes<T>::BYTES - offset;
    const u64 bytes = rest < 8 ? rest : 8, line = index * LINE_BYTES;
    const u64 own = F::contribution(load_unit(p.input + offset, bytes), p.rank, p.arithmetic);
    R2CCL_KEEP_LOOP for (u32 k = 1; k < p.ranks; k++) {
        u8 *mailbox = p.mailboxes[(p.rank + k) % p.ranks];
        store_line(mailbox + box + p.rank * p.slot_bytes + line, own, flag);
    }
    F fold;
    const u8 *mailbox = p.mailboxes[p.rank] + box + line;
    R2CCL_KEEP_LOOP for (u32 rank = 0; rank < p.ranks; rank++) {
        u64 unit = own;
        const bool is_here =
            rank == p.rank || receive(mailbox + rank * p.slot_bytes, flag, p.abort, unit);
        if (!is_here) return false;
        if (rank == 0) fold.begin(unit);
        else fold.extend(unit);
    }
    store_unit(p.output + offset, fold.end(p.arithmetic), bytes);
    return true;
}

// Forgets all flags of this block in a box of this rank.
R2CCL_FN void empty_box(const LowLatencyParameters &p, u64 box)
{
    const u64 units = p.slot_bytes / LINE_BYTES;
    R2CCL_KEEP_LOOP for (u64 line = 0; line < p.ranks * units; line++) {
        const bool is_own = line % units / p.most_threads % p.most_blocks == block();
        if (is_own) store_line(p.mailboxes[p.rank] + box + line * LINE_BYTES, 0, 0);
    }
}

template <class T, class Op> R2CCL_FN void low_latency(const LowLatencyParameters &p)
{
    State *const state = p.state + block();
    const u64 calls = state->calls;
    const u32 flag = next_flag(state->flag);
    if (thread() == 0) state->awaited = flag;
    const u64 box = calls % 2 * p.ranks * p.slot_bytes;
    const u64 units = (p.count * Lanes<T>::BYTES + 7) / 8;
    const u64 grid = static_cast<u64>(blocks()) * threads();
    const u64 self = static_cast<u64>(block()) * threads() + thread();
    R2CCL_KEEP_LOOP for (u64 unit = self; unit < units; unit += grid)
        if (!exchange_unit<T, Op>(p, box, flag, unit)) break;
    // All threads have looked at the state, and have what the lines said.
    meet_block(false);
    if (thread() != 0) return;
    if (flag >= LAST_FLAG - 1) empty_box(p, box);
    state->flag = flag;
    state->calls = calls + 1;
    state->awaited = 0;
}

}  // namespace r2ccl
