// Element types: how they lie in memory, and the type in which they are combined.
//
// A *unit* is eight bytes, read as a little-endian number: the least that every type fits into. The
// elements of a unit are its *lanes*, the first in the low bits. Narrow floats are combined as f32;
// to become narrow again rounds once, to the nearest, ties to even. Every NaN that is stored is the
// one NaN of its type.

namespace r2ccl {

// ---- Narrow floats without instructions for them

// A float of BITS bits: everything larger than LARGEST becomes it, and SPECIAL is the smallest
// magnitude that is an infinity or a NaN.
template <u32 BITS, u32 MANTISSA, u32 SPECIAL, u32 LARGEST, u32 NOT_A_NUMBER> struct Narrow {
    static const u32 BIAS = (1u << (BITS - MANTISSA - 2)) - 1;
    static const u32 SHIFT = 23 - MANTISSA;
    static const u32 SMALLEST_NORMAL = (127 - BIAS + 1) << 23;

    static R2CCL_FN float widen(u32 code)
    {
        const u32 sign = (code >> (BITS - 1)) << 31;
        const u32 magnitude = code & ((1u << (BITS - 1)) - 1);
        const u32 moved = magnitude << SHIFT;
        // A subnormal is what a normal number with its mantissa exceeds the smallest normal one by.
        const float excess = sum(float_of(moved + SMALLEST_NORMAL), -float_of(SMALLEST_NORMAL));
        const u32 normal = moved + (SMALLEST_NORMAL - (1u << 23));
        const u32 finite = magnitude < 1u << MANTISSA ? bits_of(excess) : normal;
        return float_of((magnitude >= SPECIAL ? finite | 0x7f800000u : finite) | sign);
    }

    static R2CCL_FN u32 narrow(float value)
    {
        const u32 sign = (bits_of(value) >> 31) << (BITS - 1);
        const u32 magnitude = bits_of(value) & 0x7fffffffu;
        const u32 odd = (magnitude >> SHIFT) & 1;
        const u32 rebiased = magnitude - (SMALLEST_NORMAL - (1u << 23));
        const u32 normal = (rebiased + (1u << (SHIFT - 1)) - 1 + odd) >> SHIFT;
        // A power of two whose last place is the smallest step lets the addition round.
        const u32 anchor = (127 - BIAS + 1 + SHIFT) << 23;
        const u32 subnormal = bits_of(sum(float_of(magnitude), float_of(anchor))) - anchor;
        const u32 rounded = magnitude < SMALLEST_NORMAL ? subnormal : normal;
        const u32 limited = rounded > LARGEST ? LARGEST : rounded;
        return magnitude > 0x7f800000u ? NOT_A_NUMBER : limited | sign;
    }
};

#if !R2CCL_CONVERTS_BYTES
typedef Narrow<8, 3, 0x7f, 0x7e, 0x7f> E4m3Format;
typedef Narrow<8, 2, 0x7c, 0x7b, 0x7e> E5m2Format;

#define R2CCL_BYTE_FLOATS(NAME, FORMAT)                                                            \
    R2CCL_FN void widen_##NAME(u32 pair, float *numbers)                                           \
    {                                                                                              \
        numbers[0] = FORMAT::widen(pair & 0xff);                                                   \
        numbers[1] = FORMAT::widen(pair >> 8 & 0xff);                                              \
    }                                                                                              \
    R2CCL_FN u32 narrow_##NAME(const float *numbers)                                               \
    {                                                                                              \
        return FORMAT::narrow(numbers[0]) | FORMAT::narrow(numbers[1]) << 8;                       \
    }

R2CCL_BYTE_FLOATS(e4m3, E4m3Format)
R2CCL_BYTE_FLOATS(e5m2, E5m2Format)
#endif

R2CCL_FN void widen_brains(u32 pair, float *numbers)
{
    numbers[0] = float_of(pair << 16);
    numbers[1] = float_of(pair & 0xffff0000u);
}

// ---- Lanes of a unit, by element type

// A type that is combined as it is.
template <class T> struct Lanes {
    typedef T Accumulator;
    static const u32 BYTES = sizeof(T);
    static const u32 COUNT = 8 / BYTES;

    static R2CCL_FN void widen(u64 unit, T *lanes)
    {
        R2CCL_UNROLL for (u32 k = 0; k < COUNT; k++) lanes[k] = static_cast<T>(unit >> 8 * BYTES * k);
    }

    static R2CCL_FN u64 narrow(const T *lanes)
    {
        const u64 mask = ~0ull >> (64 - 8 * BYTES);
        u64 unit = 0;
        R2CCL_UNROLL for (u32 k = 0; k < COUNT; k++)
            unit |= (static_cast<u64>(lanes[k]) & mask) << 8 * BYTES * k;
        return unit;
    }
};

template <> struct Lanes<float> {
    typedef float Accumulator;
    static const u32 BYTES = 4, COUNT = 2;

    static R2CCL_FN void widen(u64 unit, float *lanes)
    {
        lanes[0] = float_of(static_cast<u32>(unit));
        lanes[1] = float_of(static_cast<u32>(unit >> 32));
    }

    static R2CCL_FN u64 narrow(const float *lanes)
    {
        return static_cast<u64>(canonical(lanes[1])) << 32 | canonical(lanes[0]);
    }

    static R2CCL_FN u32 canonical(float value)
    {
        return value != value ? 0x7fc00000u : bits_of(value);
    }
};

template <> struct Lanes<double> {
    typedef double Accumulator;
    static const u32 BYTES = 8, COUNT = 1;

    static R2CCL_FN void widen(u64 unit, double *lanes) { lanes[0] = double_of(unit); }

    static R2CCL_FN u64 narrow(const double *lanes)
    {
        return lanes[0] != lanes[0] ? 0x7ff8000000000000ull : bits_of(lanes[0]);
    }
};

// A float that is converted two at a time: its pairs fill PAIR bits each, and NOT_A_NUMBER is its NaN.
#define R2CCL_NARROW_LANES(TYPE, SIZE, WIDEN, NARROW, NOT_A_NUMBER)                                \
    struct TYPE;                                                                                   \
    template <> struct Lanes<TYPE> {                                                               \
        typedef float Accumulator;                                                                 \
        static const u32 BYTES = SIZE, COUNT = 8 / SIZE, PAIR = 16 * SIZE, LANE = 8 * SIZE;        \
                                                                                                   \
        static R2CCL_FN void widen(u64 unit, float *lanes)                                         \
        {                                                                                          \
            R2CCL_UNROLL for (u32 k = 0; k < COUNT; k += 2)                                        \
                WIDEN(static_cast<u32>(unit >> LANE * k & (~0ull >> (64 - PAIR))), lanes + k);     \
        }                                                                                          \
                                                                                                   \
        static R2CCL_FN u64 narrow(const float *lanes)                                             \
        {                                                                                          \
            u64 unit = 0;                                                                          \
            R2CCL_UNROLL for (u32 k = 0; k < COUNT; k += 2)                                        \
                unit |= static_cast<u64>(canonical(NARROW(lanes + k), lanes + k)) << LANE * k;     \
            return unit;                                                                           \
        }                                                                                          \
                                                                                                   \
        static R2CCL_FN u32 canonical(u32 pair, const float *lanes)                                \
        {                                                                                          \
            const u32 low = ~0u >> (32 - LANE), high = low << LANE;                                \
            if (lanes[0] != lanes[0]) pair = (pair & high) | NOT_A_NUMBER;                         \
            if (lanes[1] != lanes[1]) pair = (pair & low) | NOT_A_NUMBER << LANE;                  \
            return pair;                                                                           \
        }                                                                                          \
    };

R2CCL_NARROW_LANES(Half, 2, widen_halves, narrow_halves, 0x7e00u)
R2CCL_NARROW_LANES(Brain, 2, widen_brains, narrow_brains, 0x7fc0u)
R2CCL_NARROW_LANES(E4m3, 1, widen_e4m3, narrow_e4m3, 0x7fu)
R2CCL_NARROW_LANES(E5m2, 1, widen_e5m2, narrow_e5m2, 0x7eu)

// ---- Arithmetic on accumulators; integers wrap

// What wraps is computed without sign.
template <class T> R2CCL_FN T sum(T a, T b)
{
    if (sizeof(T) == 8) return static_cast<T>(static_cast<u64>(a) + static_cast<u64>(b));
    return static_cast<T>(static_cast<u32>(a) + static_cast<u32>(b));
}

template <class T> R2CCL_FN T prod(T a, T b)
{
    if (sizeof(T) == 8) return static_cast<T>(static_cast<u64>(a) * static_cast<u64>(b));
    return static_cast<T>(static_cast<u32>(a) * static_cast<u32>(b));
}

template <class T> R2CCL_FN T larger(T a, T b) { return a < b ? b : a; }
template <class T> R2CCL_FN T smaller(T a, T b) { return b < a ? b : a; }

R2CCL_FN double larger(double a, double b)
{
    if (a != a || b != b) return a != a ? a : b;
    if (a == b) return bits_of(a) >> 63 ? b : a;
    return a < b ? b : a;
}

R2CCL_FN double smaller(double a, double b)
{
    if (a != a || b != b) return a != a ? a : b;
    if (a == b) return bits_of(a) >> 63 ? a : b;
    return a < b ? a : b;
}

// A magnitude of so many bytes divided by what is not zero.
template <u32 BYTES> R2CCL_FN u64 divided(u64 magnitude, const Arithmetic &by)
{
    // With fewer bits the reciprocal, rounded up, is right for all of them.
    if (BYTES == 1) return static_cast<u32>(magnitude) * static_cast<u32>((by.reciprocal >> 48) + 1) >> 16;
    if (BYTES < 8) return static_cast<u32>(magnitude) / by.divisor;
    // It is rounded down, and so is the product: two too few at most.
    u64 result = high_product(magnitude, by.reciprocal);
    u64 rest = magnitude - result * by.divisor;
    R2CCL_UNROLL for (u32 k = 0; k < 2; k++) {
        const bool more = rest >= by.divisor;
        result += more;
        rest -= more ? by.divisor : 0;
    }
    return result;
}

// Towards zero. Magnitudes are divided, so that divisors beyond a signed type need no other case.
template <class T> R2CCL_FN T quotient(T value, const Arithmetic &by)
{
    const bool negative = value < T(0);
    if (sizeof(T) == 8) {
        const u64 wide = static_cast<u64>(value);
        const u64 magnitude = divided<8>(negative ? 0 - wide : wide, by);
        return static_cast<T>(negative ? 0 - magnitude : magnitude);
    }
    const u32 wide = static_cast<u32>(value);
    const u32 magnitude = static_cast<u32>(divided<sizeof(T)>(negative ? 0u - wide : wide, by));
    return static_cast<T>(negative ? 0u - magnitude : magnitude);
}

}  // namespace r2ccl
