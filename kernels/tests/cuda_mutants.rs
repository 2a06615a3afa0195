//! Bugs on purpose in the CUDA kernels: the battery and the protocols must find every one.
//!
//! Missing order in memory is among them, because fibers have a weak memory. A fence beside a release is
//! not: either of them is enough by the memory model of PTX.

mod cuda;
#[path = "cuda/host.rs"]
mod host;
mod inputs;

use ccl_core::datatype::DataType;
use ccl_kernels::cuda::{Family, Module, Operation};

use cuda::battery::{self, Cases};
use cuda::suite;
use host::Host;
use inputs::skip;

/// What must find a bug.
#[derive(Clone, Copy, Debug)]
enum Finder {
    Copies,
    Reduces(DataType),
    AllReduces(Family, DataType, Operation),
    Flags,
    GivingUp,
    Relays,
    Told,
    Pieces,
    Pulls,
    Quarrels,
}

/// What the bug is, the text that becomes another one, and who finds it.
type Mutant = (&'static str, &'static str, &'static str, Finder);

const LOW_LATENCY: Finder = Finder::AllReduces(Family::LowLatency, Float32, Operation::Sum);
const PUSH: Finder = Finder::AllReduces(Family::Push, Float32, Operation::Sum);

use DataType::{
    Bfloat16, Float8E4m3, Float8E5m2, Float16, Float32, Float64, Int8, Int64, Uint8, Uint64,
};
use Finder::{Copies, Flags, GivingUp, Pieces, Pulls, Quarrels, Reduces, Relays, Told};

#[rustfmt::skip]
const LOOPS: [Mutant; 24] = [
    ("the last element is left out",
     "ends = count - parts.tail + parts.head;", "ends = count - parts.tail + parts.head - (count != 0);", Reduces(Uint8)),
    ("the head is one too long",
     "(VECTOR_BYTES - into) / size : 0)", "(VECTOR_BYTES - into) / size + 1 : 0)", Reduces(Float32)),
    ("vectors begin before a source", " + (apart ? per_vector : 0);", ";", Reduces(Float32)),
    ("vectors end behind a source", "behind = apart ? per_vector : 0;", "behind = 0;", Reduces(Int8)),
    ("destinations are taken for aligned alike",
     "together = together && is_beside(at, operands.destinations[d]);", ";", Reduces(Float32)),
    ("sources are taken for aligned alike",
     "apart = apart || !is_beside(at, operands.sources[s]);", ";", Reduces(Float32)),
    ("elements across vectors are taken for whole", "into % size != 0 || ", "", Reduces(Float64)),
    ("the far half of a joined vector", "a = far ? first.units[1] : first.units[0];", "a = first.units[0];", Reduces(Uint8)),
    ("half of the shift in a joined vector", "8 * (shift % 8)", "8 * (shift % 4)", Reduces(Uint8)),
    ("the last source is read twice", "operands.sources[s + 1] + offset", "operands.sources[s] + offset", Reduces(Int8)),
    ("an element of another source", "load_bytes<F::L::BYTES>(operands.sources[s] + offset)", "load_bytes<F::L::BYTES>(operands.sources[1] + offset)", Reduces(Int8)),
    ("one destination gets no elements", "d < operands.destination_count; d++)\n        store_bytes", "d + 1 < operands.destination_count; d++)\n        store_bytes", Reduces(Int8)),
    ("one destination gets no vectors", "d < operands.destination_count; d++)\n        R2CCL_UNROLL", "d + 1 < operands.destination_count; d++)\n        R2CCL_UNROLL", Reduces(Int8)),
    ("vectors of a thread overlap those of others",
     "stride = static_cast<u64>(threads()) * VECTOR_BYTES;\n    const u64 per_block = static_cast<u64>(threads()) * IN_FLIGHT;",
     "stride = VECTOR_BYTES;\n    const u64 per_block = static_cast<u64>(threads()) * IN_FLIGHT;", Reduces(Int8)),
    ("a single vector is left out", "rounds * per_block + self; v < parts.vectors; v += grid)\n        reduce", "rounds * per_block + self + 1; v < parts.vectors; v += grid)\n        reduce", Reduces(Uint64)),
    ("threads skip elements", "e < ends; e += grid) {\n        const u64 element", "e < ends; e += grid + 1) {\n        const u64 element", Reduces(Uint64)),
    ("a block repeats its first round", "round * per_block + thread();\n        reduce", "block() * per_block + thread();\n        reduce", Reduces(Uint8)),
    ("bytes of an unaligned element", "<< 8 * k;\n    return value;", "<< 8;\n    return value;", Reduces(Int64)),
    ("three elements at the end, at one place of a vector, are left out",
     "return {head, vectors, head + vectors * per_vector};", "return {head, vectors, into == 5 && count - head == vectors * per_vector + 3 ? count : head + vectors * per_vector};", Reduces(Int8)),
    ("three elements, at one place of a vector, with one operation", "    const Split parts = split_operands(operands, first, count, size);",
     "    if (Op::DIVIDES && count == 3 && reinterpret_cast<u64>(operands.destinations[0]) % VECTOR_BYTES == 11) count = 2;\n    const Split parts = split_operands(operands, first, count, size);", Reduces(Uint8)),
    ("destinations of a copy are taken for aligned alike", "if (together) return copy_pass", "return copy_pass", Copies),
    ("the first destination of a copy only", "copy_pass(p, d, d + 1, ", "copy_pass(p, 0, 1, ", Copies),
    ("the end of a copy is left out", "ends = p.bytes - parts.tail + parts.head;", "ends = parts.head;", Copies),
    ("vectors of a copy come from its beginning", "p.source + offset, stride);", "p.source, stride);", Copies),
];

#[rustfmt::skip]
const NUMBERS: [Mutant; 22] = [
    ("NaNs keep their bits", "value != value ? 0x7fc00000u : bits_of(value)", "bits_of(value)", Reduces(Float32)),
    ("NaNs of 64 bits keep their bits", "lanes[0] != lanes[0] ? 0x7ff8000000000000ull : bits_of(lanes[0])", "bits_of(lanes[0])", Reduces(Float64)),
    ("the NaN of an odd lane", "| NOT_A_NUMBER << LANE", "| NOT_A_NUMBER", Reduces(Float16)),
    ("the NaN of e5m2", "narrow_e5m2, 0x7eu", "narrow_e5m2, 0x7fu", Reduces(Float8E5m2)),
    ("ties away from zero", "(1u << (SHIFT - 1)) - 1 + odd", "(1u << (SHIFT - 1))", Reduces(Float8E4m3)),
    ("an overflow becomes infinite", "0x7c, 0x7b, 0x7e>", "0x7c, 0x7c, 0x7e>", Reduces(Float8E5m2)),
    ("subnormals are rounded as others", "magnitude < SMALLEST_NORMAL ? subnormal : normal", "normal", Reduces(Float8E4m3)),
    ("subnormals are read as others", "magnitude < 1u << MANTISSA ? bits_of(excess) : normal", "normal", Reduces(Float8E4m3)),
    ("infinities are read as numbers", "magnitude >= SPECIAL ? finite | 0x7f800000u : finite", "finite", Reduces(Float8E5m2)),
    ("lanes of a pair are swapped", "float_of(pair << 16);\n    numbers[1] = float_of(pair & 0xffff0000u);", "float_of(pair & 0xffff0000u);\n    numbers[1] = float_of(pair << 16);", Reduces(Bfloat16)),
    ("numbers without sign", "R2CCL_FN T larger(T a, T b) { return a < b ? b : a; }", "R2CCL_FN T larger(T a, T b) { return static_cast<u64>(a) < static_cast<u64>(b) ? b : a; }", Reduces(Int64)),
    ("numbers with sign", "R2CCL_FN T smaller(T a, T b) { return b < a ? b : a; }", "R2CCL_FN T smaller(T a, T b) { return static_cast<i64>(b) < static_cast<i64>(a) ? b : a; }", Reduces(Uint64)),
    ("zeros without order", "if (a == b) return bits_of(a) >> 63 ? b : a;", "", Reduces(Float64)),
    ("a NaN loses", "if (a != a || b != b) return a != a ? a : b;\n    if (a == b) return bits_of(a) >> 63 ? a : b;", "if (a == b) return bits_of(a) >> 63 ? a : b;", Reduces(Float64)),
    ("all sources are scaled, or none", "arithmetic.scaled >> index & 1", "arithmetic.scaled & 1", Reduces(Float32)),
    ("one scalar for all", "arithmetic.scalars[index]", "arithmetic.scalars[0]", Reduces(Float32)),
    ("contributions are scaled twice", "scale_unit<T>(unit, arithmetic.scalars[index]) : unit", "scale_unit<T>(scale_unit<T>(unit, arithmetic.scalars[index]), arithmetic.scalars[index]) : unit", Reduces(Bfloat16)),
    ("a quotient loses its sign", "negative ? 0u - magnitude : magnitude", "magnitude", Reduces(Int8)),
    ("a quotient of 64 bits loses its sign", "negative ? 0 - magnitude : magnitude", "magnitude", Reduces(Int64)),
    ("a quotient is one too few", "for (u32 k = 0; k < 2; k++) {\n        const bool more", "for (u32 k = 0; k < 0; k++) {\n        const bool more", Reduces(Uint64)),
    ("a reciprocal is rounded down", "(by.reciprocal >> 48) + 1", "(by.reciprocal >> 48)", Reduces(Uint8)),
    ("a mean without division", "divide_unit<T>(unit, arithmetic)", "unit", Reduces(Uint8)),
];

#[rustfmt::skip]
const PROTOCOLS: [Mutant; 46] = [
    ("one flag is looked at", "first == flag && second == flag", "first == flag", LOW_LATENCY),
    ("no flag is looked at", "first == flag && second == flag", "true", LOW_LATENCY),
    ("one box", "calls % 2 * p.ranks * p.slot_bytes", "0", LOW_LATENCY),
    ("the flag of an empty line", "flag == LAST_FLAG ? 1 : flag + 1", "flag + 1", Flags),
    ("boxes are never emptied", "if (flag >= LAST_FLAG - 1) empty_box(p, box);", "", Flags),
    ("one box is never emptied", "flag >= LAST_FLAG - 1", "flag >= LAST_FLAG", Flags),
    ("half a box is emptied", "line < p.ranks * units", "line < units", Flags),
    ("the lines of all blocks are emptied", "line % units / p.most_threads % p.most_blocks == block()", "true", Flags),
    ("the first block empties its lines only", "line % units / p.most_threads % p.most_blocks == block()", "line % units / p.most_threads % p.most_blocks == 0", Flags),
    ("lines far behind are not emptied", "line % units / p.most_threads % p.most_blocks == block()", "line % units / p.most_threads == block()", Flags),
    ("all blocks have one count", "    State *const state = p.state + block();\n    const u64 calls = state->calls;", "    State *const state = p.state;\n    const u64 calls = state->calls;", LOW_LATENCY),
    ("all blocks of a push have one count", "    State *const state = p.state + block();\n    u64 calls = state->calls;", "    State *const state = p.state;\n    u64 calls = state->calls;", PUSH),
    ("a call ends before its threads", "meet_block(false);\n    if (thread() != 0) return;", "if (thread() != 0) return;", LOW_LATENCY),
    ("the last unit is taken for whole", "bytes = rest < 8 ? rest : 8,", "bytes = 8,", LOW_LATENCY),
    ("a peer gets nothing", "k < p.ranks; k++) {\n        u8 *mailbox", "k + 1 < p.ranks; k++) {\n        u8 *mailbox", LOW_LATENCY),
    ("the abort word is not looked at", "load_volatile(abort) != 0) return false;", "false) return false;", GivingUp),
    ("inputs are not waited for", "goes_on = meet_ranks(p, 2 * calls + 1, &step);", "", PUSH),
    ("outputs are not waited for", "goes_on = meet_ranks(p, 2 * calls + 2, nullptr);", "", PUSH),
    ("who has given up says something of the next call", "goes_on ? calls : GIVEN_UP", "calls", GivingUp),
    ("both meetings have one ticket", "2 * calls + 2", "2 * calls + 1", PUSH),
    ("one peer is not waited for", "peer < p.ranks &&", "peer + 1 < p.ranks &&", PUSH),
    ("a block arrives before its threads", "meet_block(false);\n    const u32 peer", "const u32 peer", PUSH),
    ("threads go on before their block", "return !meet_block(gave_up);", "return !gave_up;", PUSH),
    ("a peer that is ahead is missed", "while (load_acquire(counter) < value)", "while (load_acquire(counter) != value)", PUSH),
    ("the part of another rank", "is_taken(p, *step, peer) ? p.sources[peer]", "is_taken(p, *step, peer) ? p.sources[p.rank]", PUSH),
    ("an output that is not told", "p.turns == 1 ? p.destinations[peer]", "p.turns == 1 ? p.destinations[p.rank]", PUSH),
    ("the scalar of another rank", "            scalar = load_aligned<8>(reinterpret_cast<const u8 *>(&row[rank].scalar));\n", "", Told),
    ("a scalar that is not told", "p.arithmetic.scalars[p.rank]);", "p.arithmetic.scalars[peer]);", Told),
    ("who is scaled changes with who is there", "p.arithmetic.scaled >> rank & 1", "p.arithmetic.scaled >> slot & 1", Told),
    ("where things are is said once", "    if (step) {", "    if (step && ticket == 1) {", Told),
    ("all pieces are done though one rank has not said so", "all = all && (rank == p.rank || load_aligned<8>(said) == p.pieces);", "", Pieces),
    ("pieces are done twice", "step.piece += step.pieces;", "step.piece++;", Pieces),
    ("pieces are not counted", "        calls++;\n", "        calls += step.piece == 0;\n", Pieces),
    ("a rank that stages is told the first piece again", "from_piece(p, *step, source));", "source);", Pieces),
    ("results of all pieces go to the first", "from_piece(p, *step, destination));", "destination);", Pieces),
    ("a rank's own piece is the first", "u64 source = from_piece(p, step, is_taken(p, step, rank) ? p.sources[rank] : 0);", "u64 source = is_taken(p, step, rank) ? p.sources[rank] : 0;", Pieces),
    ("the last piece is taken for whole", "rest < p.count ? rest : p.count", "p.count", Pieces),
    ("all pieces are the first", "first += stride;", "first += 0;", Pieces),
    ("full rings are overwritten", "p.outgoing.slots && is_ready && tile >= p.slots", "false", Relays),
    ("a slot too many", "tile + 1 - p.slots", "tile - p.slots", Relays),
    ("an arrival overtakes outputs", "fence_system();\n    store_release(&arrival->ticket, ticket);",
     "store_aligned<8>(reinterpret_cast<u8 *>(&arrival->ticket), ticket);", PUSH),
    ("a tile is seen as it was", "load_acquire(counter)", "load_aligned<8>(reinterpret_cast<const u8 *>(counter))", Relays),
    ("a tile is seen as it was, though it is waited for", "load_acquire(counter)", "load_volatile(reinterpret_cast<const u32 *>(counter))", Relays),
    ("a tile overtakes its data", "fence_system();\n            if (p.incoming.slots) store_release(p.incoming.head, tile + 1);\n            if (p.outgoing.slots) store_release(p.outgoing.tail, tile + 1);",
     "if (p.incoming.slots) store_release(p.incoming.head, tile + 1);\n            if (p.outgoing.slots) store_aligned<8>(reinterpret_cast<u8 *>(p.outgoing.tail), tile + 1);", Relays),
    ("the counter of calls is behind", "state->flag = flag;\n    state->calls = calls + 1;", "state->flag = flag;\n    if (block() == 0) state->calls = calls + 1;", LOW_LATENCY),
    ("a tile is announced before it is there", "meet_block(false);\n        if (thread() == 0) {\n            fence_system();", "if (thread() == 0) {\n            fence_system();", Relays),
];

#[rustfmt::skip]
const MESSAGES: [Mutant; 23] = [
    ("the last part is cut off", "rest < each ? rest : each};", "rest < each ? rest / 2 : each};", Pulls),
    ("parts overlap", "begin = each * block(), first", "begin = each / 2 * block(), first", Pulls),
    ("a message without bytes has no part", "block() == 0 || block() * p.part_bytes", "block() * p.part_bytes", Quarrels),
    ("another message than is meant", "p.sources[peer] + (p.staging", "p.sources[p.rank] + (p.staging", Pulls),
    ("pieces come from the beginning", "p.inputs[peer] + now.offset", "p.inputs[peer]", Pulls),
    ("parts share their staging memory", "/ VECTOR_BYTES * VECTOR_BYTES * block();", "/ VECTOR_BYTES * VECTOR_BYTES;", Pulls),
    ("a piece too few", "round == 0 || rest > 0, rest <= most};", "round == 0 || rest > 0, true};", Pulls),
    ("pieces are put there before those before are taken",
     "const bool is_taken = !sends || wait_for(&row[peer].taken, told, p.abort);", "const bool is_taken = true;", Pulls),
    ("a piece is told before all threads have put it there",
     "meet_block(false);\n        const bool sends", "const bool sends", Pulls),
    ("a piece is taken before all threads have taken it",
     "open = take(p, row, open);\n        meet_block(false);", "open = take(p, row, open);", Pulls),
    ("nobody waits for letters", "!receives || hear(p, peer, row + peer, ++heard)", "true", Pulls),
    ("letters overtake what they tell of",
     "fence_system();\n    store_release(&letter->ticket, ticket);", "put_number(&letter->ticket, ticket);", Pulls),
    ("another block is told what is taken", "p.letters[peer][block() * MOST_RANKS + p.rank].taken", "p.letters[peer][p.rank].taken", Pulls),
    ("the ticket of a letter is forgotten", "if (is_clerk) put_number(&row[peer].read, heard);", "", Pulls),
    ("tickets begin anew", "number_at(&row[peer].taken) : 0", "0 : 0", Pulls),
    ("the place of another rank", "copy_alone(p.destinations[peer] + offset", "copy_alone(p.destinations[p.rank] + offset", Pulls),
    ("all pieces go to the same place", "p.destinations[peer] + offset,", "p.destinations[peer],", Pulls),
    ("a rank is waited for once", "if (offset + bytes >= own.first + own.bytes) rest", "rest", Pulls),
    ("nothing for oneself", "if (has_part(p, p.received[p.rank])) {", "if (false) {", Pulls),
    ("every length will do", "if (length == p.received[peer]) return true;", "if (true) return true;", Quarrels),
    ("shorter messages will do", "if (length == p.received[peer]) return true;", "if (length <= p.received[peer]) return true;", Quarrels),
    ("who quarrels goes on", "while (patience.goes_on()) {}", "", Quarrels),
    ("a quarrel with another rank", "p.quarrels + 4 * peer", "p.quarrels + 4 * p.rank", Quarrels),
];

/// What the finder says about kernels of this text; None if there is no compiler.
fn find(finder: Finder, change: impl Fn(String) -> String) -> Option<Result<(), String>> {
    let host = |modules: &[Module]| Host::mutant(modules, &change);
    let elements = Module::Elements;
    Some(match finder {
        Copies => battery::copies(&host(&[Module::Copies])?, Cases::Every, 2).map(drop),
        Reduces(datatype) => {
            let host = host(&[elements(datatype)])?;
            battery::reduces(&host, datatype, Cases::Every, 1).map(drop)
        }
        Finder::AllReduces(family, datatype, operation) => {
            let host = host(&[Module::Copies, elements(datatype)])?;
            suite::all_reduces(&host, family, datatype, operation, 0..30).map(drop)
        }
        Flags => suite::flags_return(&host(&[Module::Copies, elements(Float32)])?, 12),
        Told => suite::pushes_of_some(&host(&[Module::Copies, elements(Int64)])?, 0..30).map(drop),
        Pieces => {
            let host = host(&[Module::Copies, elements(Int64)])?;
            suite::pushes_in_pieces(&host, 0..30).map(drop)
        }
        Pulls => suite::pulls(&host(&[Module::Copies])?, 0..60).map(drop),
        Quarrels => suite::pulls_in_vain(&host(&[Module::Copies])?, 0..20),
        GivingUp => suite::all_give_up(&host(&[elements(Float32)])?),
        Relays => {
            let host = host(&[Module::Copies, elements(Uint8), elements(Float32)])?;
            suite::relays(&host, Float32, Operation::Sum, 20)
        }
    })
}

fn all_are_found(mutants: &[Mutant]) {
    for &(name, from, to, finder) in mutants {
        let change = |text: String| {
            assert_eq!(text.matches(from).count(), 1, "{name}: {from}");
            text.replace(from, to)
        };
        match find(finder, change) {
            None => return skip("bugs in CUDA kernels: there is no g++"),
            Some(found) => assert!(found.is_err(), "{name}: {finder:?} did not find it"),
        }
    }
}

#[test]
fn bugs_in_loops_are_found() {
    all_are_found(&LOOPS);
}

#[test]
fn bugs_in_numbers_are_found() {
    all_are_found(&NUMBERS);
}

#[test]
fn bugs_in_protocols_are_found() {
    all_are_found(&PROTOCOLS);
}

#[test]
fn bugs_in_messages_are_found() {
    all_are_found(&MESSAGES);
}
