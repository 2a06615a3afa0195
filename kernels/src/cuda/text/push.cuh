// Collectives on buffers that ranks have mapped: every rank combines a part of the inputs and stores the
// result in the outputs. Nothing is staged, and an output may be an input. In an AllReduce, rank r
// takes slice r of all inputs; in a ReduceScatter it stores it in its own output only; in an AllGather it takes
// its own input alone.
//
// Block b of every rank meets block b of all others before, when all inputs are ready, and after,
// when all outputs are written and no input is needed. All ranks launch equally many blocks, and all
// blocks of all ranks must be able to run together.
//
// Where the others read and write is said by those whose memory it is, when they come: a rank need not know
// before which buffers its peers use. Nobody says it anew before all have come to the second meeting, and
// they look before. A rank that has given up says nothing any more: a peer that has not may still be in the call that
// it has left, and would find there what is said of a later one.
//
// A call that is too large for staging memory is cut into pieces, with a kernel for each. Every rank whose own inputs and outputs
// are mapped says so with the first piece. If all say it, that kernel does all pieces between its two meetings, and the kernels
// of the others, which are launched already, have nothing to do: they count themselves, and end. If one does not, they do their pieces.

namespace r2ccl {

// Says that this block has come to `ticket`; the first time, also where things are.
R2CCL_FN void announce(const PushParameters &p, u32 peer, u64 ticket, bool says_where)
{
    Arrival *arrival = p.arrivals[peer] + block() * MOST_RANKS + p.rank;
    if (says_where) {
        store_aligned<8>(reinterpret_cast<u8 *>(&arrival->source), p.sources[peer]);
        store_aligned<8>(reinterpret_cast<u8 *>(&arrival->destination), p.destinations[peer]);
        store_aligned<8>(reinterpret_cast<u8 *>(&arrival->scalar), p.arithmetic.scalars[p.rank]);
        store_aligned<8>(reinterpret_cast<u8 *>(&arrival->pieces), p.pieces);
    }
    fence_system();
    store_release(&arrival->ticket, ticket);
}

// Tells this block of all ranks that it has come to `ticket`, and waits for them. Tickets grow, and a
// counter of 64 bits never returns. False, in all threads, if one gave up.
R2CCL_FN bool meet_ranks(const PushParameters &p, u64 ticket, bool says_where)
{
    bool gave_up = false;
    meet_block(false);
    const u32 peer = thread();
    if (peer < p.ranks && peer != p.rank) {
        announce(p, peer, ticket, says_where);
        const Arrival *arrival = p.arrivals[p.rank] + block() * MOST_RANKS + peer;
        gave_up = !wait_for(&arrival->ticket, ticket, p.abort);
    }
    return !meet_block(gave_up);
}

// What this rank combines, in order of rank, and where the result goes, after all have said it.
R2CCL_FN Operands announced(const PushParameters &p)
{
    Operands operands;
    operands.source_count = 0;
    operands.destination_count = 0;
    operands.arithmetic.scaled = 0;
    operands.arithmetic.divisor = p.arithmetic.divisor;
    operands.arithmetic.reciprocal = p.arithmetic.reciprocal;
    const Arrival *row = p.arrivals[p.rank] + block() * MOST_RANKS;
    R2CCL_KEEP_LOOP for (u32 rank = 0; rank < p.ranks; rank++) {
        u64 source = p.sources[rank], destination = p.destinations[rank];
        u64 scalar = p.arithmetic.scalars[rank];
        if (rank != p.rank) {
            source = load_aligned<8>(reinterpret_cast<const u8 *>(&row[rank].source));
            destination = load_aligned<8>(reinterpret_cast<const u8 *>(&row[rank].destination));
            scalar = load_aligned<8>(reinterpret_cast<const u8 *>(&row[rank].scalar));
        }
        if (source) {
            const u32 place = operands.source_count++;
            operands.sources[place] = reinterpret_cast<const u8 *>(source);
            operands.arithmetic.scalars[place] = scalar;
            operands.arithmetic.scaled |= (p.arithmetic.scaled >> rank & 1) << place;
        }
        if (destination)
            operands.destinations[operands.destination_count++] =
                reinterpret_cast<u8 *>(destination);
    }
    return operands;
}

// How many pieces this kernel does, after all have said what they have.
R2CCL_FN u32 agreed_pieces(const PushParameters &p)
{
    const Arrival *row = p.arrivals[p.rank] + block() * MOST_RANKS;
    bool all = true;
    R2CCL_KEEP_LOOP for (u32 rank = 0; rank < p.ranks; rank++) {
        const u8 *said = reinterpret_cast<const u8 *>(&row[rank].pieces);
        all = all && (rank == p.rank || load_aligned<8>(said) == p.pieces);
    }
    return all ? p.pieces : 1;
}

// Combines this rank's part of so many pieces; the last ones may be shorter, or empty.
template <class T, class Op> R2CCL_FN void reduce_pieces(const PushParameters &p, u32 pieces)
{
    const Operands operands = announced(p);
    // Who has nothing to combine, or nobody to combine it for.
    if (operands.source_count == 0 || operands.destination_count == 0) return;
    u64 first = 0;
    R2CCL_KEEP_LOOP for (u32 piece = 0; piece < pieces && first < p.reach; piece++) {
        const u64 rest = p.reach - first;
        reduce_range<T, Op>(operands, first, rest < p.count ? rest : p.count);
        first += p.stride;
    }
}

// In place of the number of calls, once a block of one has given up.
constexpr u64 GIVEN_UP = ~0ull;

template <class T, class Op> R2CCL_FN void push(const PushParameters &p)
{
    const u64 calls = p.state->calls;
    // Of the kernels that follow, so many have nothing to do.
    u32 idle = p.state->flag;
    // A block of this call may give up while threads of another one look.
    bool goes_on = !meet_block(calls == GIVEN_UP);
    if (goes_on && idle > 0) {
        idle--;
    } else if (goes_on) {
        goes_on = meet_ranks(p, 2 * calls + 1, true);
        if (goes_on) {
            const u32 pieces = agreed_pieces(p);
            if (pieces > 1) idle = p.followers;
            reduce_pieces<T, Op>(p, pieces);
            goes_on = meet_ranks(p, 2 * calls + 2, false);
        }
    }
    if (!goes_on && thread() == 0) p.state->calls = GIVEN_UP;
    if (is_last_of_grid(p.state) && p.state->calls != GIVEN_UP) {
        p.state->flag = idle;
        p.state->calls = calls + 1;
    }
}

}  // namespace r2ccl
