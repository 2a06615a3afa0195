// What kernels are given: one structure each, by value. `parameters.rs` has the same ones.

namespace r2ccl {

const u32 MOST_RANKS = 8;

// What is done to contributions besides combining them.
struct Arithmetic {
    u64 scalars[MOST_RANKS];  // bits of an element each
    u32 scaled;               // bit k: source k is multiplied by scalar k first
    u32 divisor;              // of the kernels named mean
    u64 reciprocal;           // 2^64 - 1 divided by it
};

// Sources that are combined in their order, and where the result goes.
struct Operands {
    const u8 *sources[MOST_RANKS];
    u8 *destinations[MOST_RANKS];
    u32 source_count, destination_count;
    Arithmetic arithmetic;
};

struct ReduceParameters {
    Operands operands;
    u64 count;  // elements
};

struct CopyParameters {
    const u8 *source;
    u8 *destinations[MOST_RANKS];
    u64 bytes;
    u32 destination_count;
    u32 unused;
};

// How far a block has come with a protocol: in the memory of this rank's GPU, so that a graph that is
// replayed goes on counting. Zero before the first call. Blocks do not wait for each other: each counts
// the calls that had so many blocks, and what it shares with other ranks it shares with the same block of theirs.
struct State {
    u64 calls;    // that have finished; of pushes, their steps, and all bits once one has given up
    u64 awaited;  // the flag, ticket or number of the call that others are to come to; zero in none
    u32 flag;     // of the last call of the low-latency protocol
    u32 unused;
};

struct LowLatencyParameters {
    const u8 *input;
    u8 *output;
    u8 *mailboxes[MOST_RANKS];  // of all ranks: two boxes of a slot per rank; zero before the first call
    State *state;               // one per block
    const u32 *abort;           // not zero: give up
    u64 count;                  // elements; not zero
    u64 slot_bytes;             // two for each byte of the largest call, whole lines of 16
    Arithmetic arithmetic;
    u32 rank, ranks;
    u32 most_blocks;            // of a call; equal on all ranks, as the next
    u32 most_threads;           // of a block, which has as many if there are others
};

// What a rank tells another one when it comes. Addresses are those of who is told.
struct Arrival {
    u64 ticket;       // grows
    u64 source;       // what is taken from this rank, or null
    u64 destination;  // where the result goes at this rank, or null
    u64 scalar;       // of this rank's contribution
    u64 pieces;       // that can be taken and stored from there on
    u64 unused[3];
};

struct PushParameters {
    u64 sources[MOST_RANKS];         // for each rank: what it takes from this one, as it has mapped it
    u64 destinations[MOST_RANKS];    // and where its result goes at this one
    Arrival *arrivals[MOST_RANKS];   // of all ranks: a row of MOST_RANKS per block; zero at first
    State *state;                    // one per block
    const u32 *abort;                // not zero: give up
    u64 count;                       // elements that this rank combines of a piece
    u64 reach;                       // and of all pieces from this one on, with what lies between them
    u64 stride_bytes;                // from a piece to the next one
    Arithmetic arithmetic;           // the scalar is that of this rank
    u32 rank, ranks;
    u32 pieces;                      // if all that this rank has in them is mapped; else 1
    u32 turns;                       // 1, or as many as ranks: in turn t rank r takes from rank r + t, and for itself alone
};

// What a rank tells another one of a message to it, and of the message from it.
struct Letter {
    u64 ticket;  // grows with every piece
    u64 source;  // where the piece is, in addresses of who is told
    u64 offset;  // where in the message it begins
    u64 bytes;   // of the piece
    u64 length;  // of the message
    u64 call;    // counts from 1
    u64 taken;   // the ticket of the last piece of the other message that was taken
    u64 read;    // whose letter it is keeps here which ticket it has read last
};

struct PullParameters {
    u64 sources[MOST_RANKS];         // what each rank takes from this one, as it has mapped it, or the staging
                                     // memory for that; what itself takes
    u64 sent[MOST_RANKS];            // bytes for each rank
    u8 *destinations[MOST_RANKS];    // where what each rank sends goes
    u64 received[MOST_RANKS];        // bytes from each rank
    const u8 *inputs[MOST_RANKS];    // what is put into staging memory for each rank, by
    u8 *staging[MOST_RANKS];         // pieces; null: the sources are whole
    Letter *letters[MOST_RANKS];     // of all ranks: a row of MOST_RANKS per block; zero at first
    u64 *quarrels;                   // for each rank that sends not what is expected: what it says; zero at first
    State *state;                    // one per block
    const u32 *abort;                // not zero: give up
    u64 staging_bytes;               // for each rank; a whole vector for each of its parts at least
    u64 part_bytes;                  // of a message that is moved by a block, if there are enough blocks
    u32 most_parts;                  // that a message has; equal on all ranks, as the two before
    u32 rank, ranks;
    u32 unused;
};

// One end of a ring of staging slots in memory that host and GPU share. Tile t lies in slot t modulo
// the number of slots.
struct Ring {
    u8 *slots;  // null: there is no such ring
    u64 *head;  // tiles that the consumer has done with
    u64 *tail;  // tiles that the producer has filled
};

struct RelayParameters {
    Ring incoming, outgoing;
    const u8 *local;   // this rank's contribution, or null
    u8 *output;        // or null
    State *state;      // `calls` counts tiles
    const u32 *abort;  // not zero: give up
    u64 count;         // elements
    u64 tile_count;    // elements of a slot, a multiple of 16 bytes
    u64 slots;
    Arithmetic arithmetic;  // the contribution is source 0
};

}  // namespace r2ccl
