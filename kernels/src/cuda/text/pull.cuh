// Messages of every rank to every other one, each of its own length: a rank takes what the others have for it,
// and stores it in its own output only.
//
// Only the two ends of a message know its length. Both cut it into parts alike, of which block b moves part b;
// so block b of a rank meets block b of those others with whom it has such a part, and block 0 all others, also
// where there is nothing to move. Who sends says where his part is; who receives takes it, and says that it is
// taken. A part of memory that the other has not mapped goes in pieces through staging memory that it has: the
// next one is put there when the one before is taken.
//
// Nobody is waited for in vain: in every round a block puts its pieces there and says so, before it waits for
// those of others; and those wait for nothing but the rounds before. Blocks of a rank do not wait for each other. All
// blocks of all ranks must be able to run together.
//
// Lengths are compared before anything is stored. Ranks that do not agree wait to be told to give up, because what
// follows on their streams counts on what has not come.

namespace r2ccl {

// The bytes of a message that this block moves.
struct Share {
    u64 first, bytes;
};

// Whether it moves a part of the message, if only an empty one.
R2CCL_FN bool has_part(const PullParameters &p, u64 length)
{
    return block() < p.most_parts && (block() == 0 || block() * p.part_bytes < length);
}

// Of a message of which it has a part.
R2CCL_FN Share share(const PullParameters &p, u64 length)
{
    if (length <= p.part_bytes) return {0, length};
    const u64 wanted = (length + p.part_bytes - 1) / p.part_bytes;
    const u64 parts = wanted < p.most_parts ? wanted : p.most_parts;
    const u64 each = (length / parts / VECTOR_BYTES + 1) * VECTOR_BYTES;
    const u64 begin = each * block(), first = begin < length ? begin : length;
    const u64 rest = length - first;
    return {first, rest < each ? rest : each};
}

// The piece of a share that comes in this round; the first may be empty.
struct Piece {
    u64 offset, bytes;
    bool is_there, is_last;
};

R2CCL_FN Piece piece(const PullParameters &p, u32 peer, u64 round)
{
    if (!has_part(p, p.sent[peer])) return {0, 0, false, true};
    const Share own = share(p, p.sent[peer]);
    if (!p.staging[peer]) return {own.first, own.bytes, round == 0, true};
    const u64 most = p.staging_bytes / p.most_parts / VECTOR_BYTES * VECTOR_BYTES;
    const u64 begin = round * most;
    const u64 rest = begin < own.bytes ? own.bytes - begin : 0;
    return {own.first + begin, rest < most ? rest : most,
            round == 0 || rest > 0, rest <= most};
}

R2CCL_FN u64 slot(const PullParameters &p)
{
    return p.staging_bytes / p.most_parts / VECTOR_BYTES * VECTOR_BYTES * block();
}

// By this block alone.
R2CCL_FN void copy_alone(u8 *to, const u8 *from, u64 bytes)
{
    CopyParameters copy;
    copy.source = from;
    copy.destinations[0] = to;
    copy.bytes = bytes;
    copy_pass(copy, 0, 1, 0, 1);
}

// Puts this round's pieces into staging memory. True if there are others in later rounds.
R2CCL_FN bool put_pieces(const PullParameters &p, u64 round)
{
    bool has_more = false;
    R2CCL_KEEP_LOOP for (u32 peer = 0; peer < p.ranks; peer++) {
        if (!p.staging[peer]) continue;
        const Piece now = piece(p, peer, round);
        if (now.is_there)
            copy_alone(p.staging[peer] + slot(p), p.inputs[peer] + now.offset, now.bytes);
        has_more = has_more || (now.is_there && !now.is_last);
    }
    return has_more;
}

R2CCL_FN void put_number(u64 *at, u64 number) { store_aligned<8>(reinterpret_cast<u8 *>(at), number); }

R2CCL_FN u64 number_at(const u64 *at) { return load_aligned<8>(reinterpret_cast<const u8 *>(at)); }

// Tells a rank where a piece is.
R2CCL_FN void tell(const PullParameters &p, u32 peer, Piece now, u64 ticket, u64 call)
{
    Letter *letter = p.letters[peer] + block() * MOST_RANKS + p.rank;
    put_number(&letter->source, p.sources[peer] + (p.staging[peer] ? slot(p) : now.offset));
    put_number(&letter->offset, now.offset);
    put_number(&letter->bytes, now.bytes);
    put_number(&letter->length, p.sent[peer]);
    put_number(&letter->call, call);
    fence_system();
    store_release(&letter->ticket, ticket);
}

// Waits for a letter. False if this gave up, as it does in the end if the message has another length than it
// should.
R2CCL_FN bool hear(const PullParameters &p, u32 peer, const Letter *letter, u64 ticket)
{
    if (!wait_for(&letter->ticket, ticket, p.abort)) return false;
    const u64 length = number_at(&letter->length);
    if (length == p.received[peer]) return true;
    u64 *quarrel = p.quarrels + 4 * peer;
    put_number(quarrel + 1, length);
    put_number(quarrel + 2, p.received[peer]);
    fence_system();
    store_release(quarrel, 1);
    Patience patience{p.abort};
    while (patience.goes_on()) {}
    return false;
}

// Takes the pieces of those ranks of which something is still to come. Returns of whom more is.
R2CCL_FN u32 take(const PullParameters &p, const Letter *row, u32 open)
{
    u32 rest = open;
    // Not all from the same rank at first.
    R2CCL_KEEP_LOOP for (u32 k = 1; k < p.ranks; k++) {
        const u32 peer = (p.rank + k) % p.ranks;
        if (!(open >> peer & 1)) continue;
        const Letter *letter = row + peer;
        const u64 offset = number_at(&letter->offset), bytes = number_at(&letter->bytes);
        copy_alone(p.destinations[peer] + offset,
                   reinterpret_cast<const u8 *>(number_at(&letter->source)), bytes);
        const Share own = share(p, p.received[peer]);
        if (offset + bytes >= own.first + own.bytes) rest &= ~(1u << peer);
    }
    return rest;
}

// All rounds of this block. False, in all threads, if one gave up. Thread r writes and reads for rank r.
R2CCL_FN bool pull_rounds(const PullParameters &p, u64 call)
{
    Letter *const row = p.letters[p.rank] + block() * MOST_RANKS;
    const u32 peer = thread();
    const bool is_clerk = peer != p.rank && peer < p.ranks;
    u64 told = is_clerk ? number_at(&row[peer].taken) : 0;
    u64 heard = is_clerk ? number_at(&row[peer].read) : 0;
    u32 open = 0;
    for (u32 rank = 0; rank < p.ranks; rank++)
        if (rank != p.rank && has_part(p, p.received[rank])) open |= 1u << rank;
    bool has_more = true;
    R2CCL_KEEP_LOOP for (u64 round = 0; has_more || open; round++) {
        has_more = put_pieces(p, round);
        meet_block(false);
        const bool sends = is_clerk && piece(p, peer, round).is_there;
        const bool receives = is_clerk && (open >> peer & 1);
        if (sends) tell(p, peer, piece(p, peer, round), ++told, call);
        const bool has_heard = !receives || hear(p, peer, row + peer, ++heard);
        if (meet_block(!has_heard)) return false;
        open = take(p, row, open);
        meet_block(false);
        if (receives) {
            fence_system();
            store_release(&p.letters[peer][block() * MOST_RANKS + p.rank].taken, heard);
        }
        const bool is_taken = !sends || wait_for(&row[peer].taken, told, p.abort);
        if (meet_block(!is_taken)) return false;
    }
    if (is_clerk) put_number(&row[peer].read, heard);
    return true;
}

R2CCL_FN void pull(const PullParameters &p)
{
    State *const state = p.state + block();
    const u64 call = state->calls + 1;
    if (thread() == 0) state->awaited = call;
    if (has_part(p, p.received[p.rank])) {
        const Share own = share(p, p.received[p.rank]);
        copy_alone(p.destinations[p.rank] + own.first,
                   reinterpret_cast<const u8 *>(p.sources[p.rank]) + own.first, own.bytes);
    }
    pull_rounds(p, call);
    // All threads have met since they have looked at it.
    if (thread() != 0) return;
    state->calls = call;
    state->awaited = 0;
}

}  // namespace r2ccl
