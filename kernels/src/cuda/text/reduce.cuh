// Reductions of up to eight sources to up to eight destinations, element by element.
//
// Threads never wait for each other here, and every byte of a destination is written by the thread
// that has read the same bytes of all sources: a destination may be the same bytes as a source.
//
// Whole vectors are stored where all destinations start at the same place in a vector. A source that
// starts elsewhere is read as the two aligned vectors that the bytes lie in; the first and the last
// vector are left to the loop over elements then, so that nothing outside the source is read.

namespace r2ccl {

const u32 VECTOR_BYTES = sizeof(Vector);

// ---- How two elements become one

#define R2CCL_OPERATION(NAME, COMBINE, SCALES_SOURCES, DIVIDES_RESULT)                             \
    struct NAME {                                                                                  \
        static const bool SCALES = SCALES_SOURCES, DIVIDES = DIVIDES_RESULT;                       \
        template <class T> static R2CCL_FN T combine(T a, T b) { return COMBINE(a, b); }           \
    };

R2CCL_OPERATION(Sum, sum, false, false)
R2CCL_OPERATION(Prod, prod, false, false)
R2CCL_OPERATION(Max, larger, false, false)
R2CCL_OPERATION(Min, smaller, false, false)
// Sources are multiplied by scalars and rounded to their type first.
R2CCL_OPERATION(Scaled, sum, true, false)
// The sum, rounded to the type, is divided; integers only.
R2CCL_OPERATION(Mean, sum, false, true)

// ---- One unit

template <class T> R2CCL_FN u64 scale_unit(u64 unit, u64 scalar)
{
    typedef Lanes<T> L;
    typename L::Accumulator lanes[L::COUNT], factor[L::COUNT];
    L::widen(unit, lanes);
    L::widen(scalar, factor);
    R2CCL_UNROLL for (u32 k = 0; k < L::COUNT; k++) lanes[k] = prod(lanes[k], factor[0]);
    return L::narrow(lanes);
}

template <class T> R2CCL_FN u64 divide_unit(u64 unit, const Arithmetic &arithmetic)
{
    typedef Lanes<T> L;
    typename L::Accumulator lanes[L::COUNT];
    L::widen(unit, lanes);
    R2CCL_UNROLL for (u32 k = 0; k < L::COUNT; k++) lanes[k] = quotient(lanes[k], arithmetic);
    return L::narrow(lanes);
}

template <class T, class Op, bool DIVIDES = Op::DIVIDES> struct Ending {
    static R2CCL_FN u64 end(u64 unit, const Arithmetic &) { return unit; }
};

template <class T, class Op> struct Ending<T, Op, true> {
    static R2CCL_FN u64 end(u64 unit, const Arithmetic &arithmetic)
    {
        return divide_unit<T>(unit, arithmetic);
    }
};

// The combination of units of the sources, in their order.
template <class T, class Op> struct Fold {
    typedef Lanes<T> L;
    typedef typename L::Accumulator Accumulator;

    Accumulator lanes[L::COUNT];

    R2CCL_FN void begin(u64 unit) { L::widen(unit, lanes); }

    R2CCL_FN void extend(u64 unit)
    {
        Accumulator more[L::COUNT];
        L::widen(unit, more);
        R2CCL_UNROLL for (u32 k = 0; k < L::COUNT; k++) lanes[k] = Op::combine(lanes[k], more[k]);
    }

    R2CCL_FN u64 end(const Arithmetic &arithmetic) const
    {
        return Ending<T, Op>::end(L::narrow(lanes), arithmetic);
    }

    // A unit of source `index`, as it takes part.
    static R2CCL_FN u64 contribution(u64 unit, u32 index, const Arithmetic &arithmetic)
    {
        const bool scales = Op::SCALES && (arithmetic.scaled >> index & 1);
        return scales ? scale_unit<T>(unit, arithmetic.scalars[index]) : unit;
    }
};

// ---- Memory at any address

template <u32 BYTES> R2CCL_FN u64 load_bytes(const u8 *at)
{
    if (reinterpret_cast<u64>(at) % BYTES == 0) return load_aligned<BYTES>(at);
    u64 value = 0;
    R2CCL_KEEP_LOOP for (u32 k = 0; k < BYTES; k++) value |= load_aligned<1>(at + k) << 8 * k;
    return value;
}

template <u32 BYTES> R2CCL_FN void store_bytes(u8 *at, u64 value)
{
    if (reinterpret_cast<u64>(at) % BYTES == 0) return store_aligned<BYTES>(at, value);
    R2CCL_KEEP_LOOP for (u32 k = 0; k < BYTES; k++) store_aligned<1>(at + k, value >> 8 * k & 0xff);
}

// The vector that begins `shift` bytes into the first of two.
R2CCL_FN Vector join(Vector first, Vector second, u32 shift)
{
    const bool far = shift >= 8;
    const u32 bits = 8 * (shift % 8);
    const u64 a = far ? first.units[1] : first.units[0];
    const u64 b = far ? second.units[0] : first.units[1];
    const u64 c = far ? second.units[1] : second.units[0];
    // In two steps: a shift by 64 has no meaning.
    return {{a >> bits | b << 1 << (63 - bits), b >> bits | c << 1 << (63 - bits)}};
}

// `COUNT` vectors, `stride` bytes apart, from an address that may lie anywhere. Then the aligned
// vectors that they lie in are read whole.
template <u32 COUNT> R2CCL_FN void load_vectors(Vector *vectors, const u8 *at, u64 stride)
{
    const u32 shift = reinterpret_cast<u64>(at) % VECTOR_BYTES;
    if (shift == 0) {
        R2CCL_UNROLL for (u32 u = 0; u < COUNT; u++) vectors[u] = load_once(at + u * stride);
        return;
    }
    const u8 *aligned = at - shift;
    R2CCL_UNROLL for (u32 u = 0; u < COUNT; u++) {
        const Vector first = load_shared(aligned + u * stride);
        const Vector second = load_shared(aligned + u * stride + VECTOR_BYTES);
        vectors[u] = join(first, second, shift);
    }
}

// ---- The loops

// Elements before `head` and from `tail` on go one by one, those between them as vectors.
struct Split {
    u64 head, vectors, tail;
};

// Of so many rounds those of which every block has equally many: what is left is shared out vector by vector, so that all
// blocks end together, and small calls are done by all of them.
R2CCL_FN u64 whole_turns(u64 rounds, u32 blocks) { return rounds - rounds % blocks; }

// Whether addresses lie at the same place in a vector.
R2CCL_FN bool is_beside(const u8 *a, const u8 *b)
{
    return (reinterpret_cast<u64>(a) - reinterpret_cast<u64>(b)) % VECTOR_BYTES == 0;
}

// How elements of `size` bytes that go to `destination` are split; `apart` says that a source lies at
// another place in its vectors.
R2CCL_FN Split split(const u8 *destination, u64 count, u32 size, bool apart)
{
    const u32 into = reinterpret_cast<u64>(destination) % VECTOR_BYTES;
    const u32 per_vector = VECTOR_BYTES / size;
    const u64 head = (into ? (VECTOR_BYTES - into) / size : 0) + (apart ? per_vector : 0);
    const u64 behind = apart ? per_vector : 0;
    if (into % size != 0 || count < head + behind + per_vector) return {count, 0, count};
    const u64 vectors = (count - head - behind) / per_vector;
    return {head, vectors, head + vectors * per_vector};
}

// `IN_FLIGHT` vectors, `stride` bytes apart, at this offset of all operands. The next source is on the
// way while the one before is combined.
template <class T, class Op, u32 IN_FLIGHT>
R2CCL_FN void reduce_vectors(const Operands &operands, u64 offset, u64 stride)
{
    typedef Fold<T, Op> F;
    F folds[IN_FLIGHT][2];
    Vector here[IN_FLIGHT], coming[IN_FLIGHT];
    const Arithmetic &arithmetic = operands.arithmetic;
    const u32 sources = operands.source_count;
    load_vectors<IN_FLIGHT>(here, operands.sources[0] + offset, stride);
    if (sources > 1) load_vectors<IN_FLIGHT>(coming, operands.sources[1] + offset, stride);
    R2CCL_UNROLL for (u32 u = 0; u < IN_FLIGHT; u++)
        R2CCL_UNROLL for (u32 h = 0; h < 2; h++)
            folds[u][h].begin(F::contribution(here[u].units[h], 0, arithmetic));
    R2CCL_KEEP_LOOP for (u32 s = 1; s < sources; s++) {
        R2CCL_UNROLL for (u32 u = 0; u < IN_FLIGHT; u++) here[u] = coming[u];
        if (s + 1 < sources)
            load_vectors<IN_FLIGHT>(coming, operands.sources[s + 1] + offset, stride);
        R2CCL_UNROLL for (u32 u = 0; u < IN_FLIGHT; u++)
            R2CCL_UNROLL for (u32 h = 0; h < 2; h++)
                folds[u][h].extend(F::contribution(here[u].units[h], s, arithmetic));
    }
    R2CCL_UNROLL for (u32 u = 0; u < IN_FLIGHT; u++)
        R2CCL_UNROLL for (u32 h = 0; h < 2; h++) here[u].units[h] = folds[u][h].end(arithmetic);
    R2CCL_KEEP_LOOP for (u32 d = 0; d < operands.destination_count; d++)
        R2CCL_UNROLL for (u32 u = 0; u < IN_FLIGHT; u++)
            store(operands.destinations[d] + offset + u * stride, here[u]);
}

template <class T, class Op> R2CCL_FN void reduce_element(const Operands &operands, u64 offset)
{
    typedef Fold<T, Op> F;
    const Arithmetic &arithmetic = operands.arithmetic;
    F fold;
    fold.begin(F::contribution(load_bytes<F::L::BYTES>(operands.sources[0] + offset), 0, arithmetic));
    R2CCL_KEEP_LOOP for (u32 s = 1; s < operands.source_count; s++) {
        const u64 unit = load_bytes<F::L::BYTES>(operands.sources[s] + offset);
        fold.extend(F::contribution(unit, s, arithmetic));
    }
    const u64 unit = fold.end(arithmetic);
    R2CCL_KEEP_LOOP for (u32 d = 0; d < operands.destination_count; d++)
        store_bytes<F::L::BYTES>(operands.destinations[d] + offset, unit);
}

R2CCL_FN Split split_operands(const Operands &operands, u64 first, u64 count, u32 size)
{
    const u8 *at = operands.destinations[0];
    bool together = true, apart = false;
    for (u32 d = 1; d < operands.destination_count; d++)
        together = together && is_beside(at, operands.destinations[d]);
    for (u32 s = 0; s < operands.source_count; s++)
        apart = apart || !is_beside(at, operands.sources[s]);
    return together ? split(at + first * size, count, size, apart) : Split{count, 0, count};
}

// Elements `first..first + count` of all operands, by all threads of the grid.
template <class T, class Op> R2CCL_FN void reduce_range(const Operands &operands, u64 first, u64 count)
{
    // Enough loads on the way to hide their latency, as few registers as that takes.
    const u32 IN_FLIGHT = Op::DIVIDES ? 1 : Lanes<T>::BYTES == 1 ? 2 : 4;
    const u32 size = Lanes<T>::BYTES;
    const Split parts = split_operands(operands, first, count, size);
    const u64 start = first * size, middle = start + parts.head * size;
    const u64 stride = static_cast<u64>(threads()) * VECTOR_BYTES;
    const u64 per_block = static_cast<u64>(threads()) * IN_FLIGHT;
    const u64 rounds = whole_turns(parts.vectors / per_block, blocks());
    const u64 grid = static_cast<u64>(blocks()) * threads();
    const u64 self = static_cast<u64>(block()) * threads() + thread();
    R2CCL_KEEP_LOOP for (u64 round = block(); round < rounds; round += blocks()) {
        const u64 vector = round * per_block + thread();
        reduce_vectors<T, Op, IN_FLIGHT>(operands, middle + vector * VECTOR_BYTES, stride);
    }
    R2CCL_KEEP_LOOP for (u64 v = rounds * per_block + self; v < parts.vectors; v += grid)
        reduce_vectors<T, Op, 1>(operands, middle + v * VECTOR_BYTES, 0);
    const u64 ends = count - parts.tail + parts.head;
    R2CCL_KEEP_LOOP for (u64 e = self; e < ends; e += grid) {
        const u64 element = e < parts.head ? e : parts.tail + (e - parts.head);
        reduce_element<T, Op>(operands, start + element * size);
    }
}

template <class T, class Op> R2CCL_FN void reduce(const ReduceParameters &parameters)
{
    reduce_range<T, Op>(parameters.operands, 0, parameters.count);
}

}  // namespace r2ccl
