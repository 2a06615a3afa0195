// Collectives on buffers that ranks have mapped: every rank combines a part of the inputs and stores the
// result in the outputs. Nothing is staged, and an output may be an input. In an AllReduce, rank r
// takes slice r of all inputs; in a ReduceScatter it stores it in its own output only; in an AllGather it takes
// its own input alone.
//
// Block b of every rank meets block b of all others before, when all inputs are ready, and after,
// when all outputs are written and no input is needed; blocks of a rank do not meet. All ranks launch equally many blocks, and all
// blocks of all ranks must be able to run together.
//
// Where the others read and write is said by those whose memory it is, when they come: a rank need not know
// before which buffers its peers use. Nobody says it anew before all have come to the second meeting, and
// they look before. A block that has given up says nothing any more: one of a peer that has not may still be in the call that
// it has left, and would find there what is said of a later one.
//
// A call that is too large for staging memory is cut into *steps*: pieces, and turns of each. A rank whose own inputs and outputs are
// mapped does all of them with one kernel, and says so in the first step; a rank that stages has a kernel for each. If all have said so, all
// pieces of a turn are done between its two meetings.

namespace r2ccl {

// What is done between two meetings: pieces from `piece` on, in this turn.
struct Step {
    u32 piece, pieces, turn;
};

// In turns everybody takes from one rank, and nobody from the same.
R2CCL_FN bool is_taken(const PushParameters &p, const Step &step, u32 peer)
{
    return p.turns == 1 || (peer + step.turn) % p.ranks == p.rank;
}

// Where this piece of something begins, if it is somewhere.
R2CCL_FN u64 from_piece(const PushParameters &p, const Step &step, u64 start)
{
    return start ? start + step.piece * p.stride_bytes : 0;
}

// Says that this block has come to `ticket`; the first time of a step, also where things are.
R2CCL_FN void announce(const PushParameters &p, u32 peer, u64 ticket, const Step *step)
{
    Arrival *arrival = p.arrivals[peer] + block() * MOST_RANKS + p.rank;
    if (step) {
        const u64 source = is_taken(p, *step, peer) ? p.sources[peer] : 0;
        const u64 destination = p.turns == 1 ? p.destinations[peer] : 0;
        store_aligned<8>(reinterpret_cast<u8 *>(&arrival->source), from_piece(p, *step, source));
        store_aligned<8>(reinterpret_cast<u8 *>(&arrival->destination),
                         from_piece(p, *step, destination));
        store_aligned<8>(reinterpret_cast<u8 *>(&arrival->scalar), p.arithmetic.scalars[p.rank]);
        store_aligned<8>(reinterpret_cast<u8 *>(&arrival->pieces), p.pieces);
    }
    fence_system();
    store_release(&arrival->ticket, ticket);
}

// Tells this block of all ranks that it has come to `ticket`, and waits for them. Tickets grow, and a
// counter of 64 bits never returns. False, in all threads, if one gave up.
R2CCL_FN bool meet_ranks(const PushParameters &p, u64 ticket, const Step *step)
{
    bool gave_up = false;
    meet_block(false);
    const u32 peer = thread();
    if (peer == 0) p.state[block()].awaited = ticket;
    if (peer < p.ranks && peer != p.rank) {
        announce(p, peer, ticket, step);
        const Arrival *arrival = p.arrivals[p.rank] + block() * MOST_RANKS + peer;
        gave_up = !wait_for(&arrival->ticket, ticket, p.abort);
    }
    return !meet_block(gave_up);
}

// What this rank combines, in order of rank, and where the result goes, after all have said it.
R2CCL_FN Operands announced(const PushParameters &p, const Step &step)
{
    Operands operands;
    operands.source_count = 0;
    operands.destination_count = 0;
    operands.arithmetic.scaled = 0;
    operands.arithmetic.divisor = p.arithmetic.divisor;
    operands.arithmetic.reciprocal = p.arithmetic.reciprocal;
    const Arrival *row = p.arrivals[p.rank] + block() * MOST_RANKS;
    R2CCL_KEEP_LOOP for (u32 rank = 0; rank < p.ranks; rank++) {
        const u32 place = p.turns == 1 ? rank : (rank + step.turn) % p.ranks;
        u64 source = from_piece(p, step, is_taken(p, step, rank) ? p.sources[rank] : 0);
        u64 destination = from_piece(p, step, p.destinations[place]);
        u64 scalar = p.arithmetic.scalars[rank];
        if (rank != p.rank) {
            source = load_aligned<8>(reinterpret_cast<const u8 *>(&row[rank].source));
            destination = load_aligned<8>(reinterpret_cast<const u8 *>(&row[rank].destination));
            scalar = load_aligned<8>(reinterpret_cast<const u8 *>(&row[rank].scalar));
        }
        if (source) {
            const u32 slot = operands.source_count++;
            operands.sources[slot] = reinterpret_cast<const u8 *>(source);
            operands.arithmetic.scalars[slot] = scalar;
            operands.arithmetic.scaled |= (p.arithmetic.scaled >> rank & 1) << slot;
        }
        if (destination)
            operands.destinations[operands.destination_count++] =
                reinterpret_cast<u8 *>(destination);
    }
    return operands;
}

// How many pieces are done between two meetings, after all have said what they have.
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

// Combines this rank's part; the last pieces may be shorter, or empty.
template <class T, class Op> R2CCL_FN void reduce_step(const PushParameters &p, const Step &step)
{
    const Operands operands = announced(p, step);
    // Who has nothing to combine, or nobody to combine it for.
    if (operands.source_count == 0 || operands.destination_count == 0) return;
    const u64 stride = p.stride_bytes / Lanes<T>::BYTES, done = step.piece * stride;
    u64 rest = p.reach > done ? p.reach - done : 0, first = 0;
    R2CCL_KEEP_LOOP for (u32 piece = 0; piece < step.pieces && rest > 0; piece++) {
        reduce_range<T, Op>(operands, first, rest < p.count ? rest : p.count);
        first += stride;
        rest = rest > stride ? rest - stride : 0;
    }
}

// In place of the number of calls, once the block has given up.
constexpr u64 GIVEN_UP = ~0ull;

template <class T, class Op> R2CCL_FN void push(const PushParameters &p)
{
    State *const state = p.state + block();
    u64 calls = state->calls;
    bool goes_on = calls != GIVEN_UP;
    Step step{0, 0, 0};
    R2CCL_KEEP_LOOP while (goes_on && step.piece < p.pieces)
    {
        goes_on = meet_ranks(p, 2 * calls + 1, &step);
        if (!goes_on) break;
        if (step.pieces == 0) step.pieces = agreed_pieces(p);
        reduce_step<T, Op>(p, step);
        goes_on = meet_ranks(p, 2 * calls + 2, nullptr);
        calls++;
        step.turn = step.turn + 1 < p.turns ? step.turn + 1 : 0;
        if (step.turn == 0) step.piece += step.pieces;
    }
    // All threads have met since they have looked at it.
    if (thread() != 0) return;
    state->calls = goes_on ? calls : GIVEN_UP;
    state->awaited = 0;
}

}  // namespace r2ccl
