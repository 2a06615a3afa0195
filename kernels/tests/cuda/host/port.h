// What the kernels need of their machine, here a processor: the same functions as those of
// src/cuda/text/port.cuh, and what a processor can check besides: that every access is aligned, and
// inside the memory that the test allows.

#include <cstdint>
#include <cstring>

#define R2CCL_FN inline
#define R2CCL_UNROLL
#define R2CCL_KEEP_LOOP
#define R2CCL_POLLS_PER_LOOK 16
#define R2CCL_CONVERTS_BYTES 0

namespace r2ccl {

typedef std::uint8_t u8;
typedef std::uint16_t u16;
typedef std::uint32_t u32;
typedef unsigned long long u64;
typedef std::int8_t i8;
typedef std::int32_t i32;
typedef long long i64;

struct alignas(16) Vector {
    u64 units[2];
};

// ---- Threads

struct Thread {
    u32 thread, threads, block, blocks;
};

// What a runner of threads does for them.
struct Runner {
    bool (*meet_block)(bool any);
    void (*pause)();
    // A place where another thread may come between; a random bit.
    bool (*tear)();
};

struct Range {
    u64 start, bytes;
};

// Memory as the threads of one block see it; see runners.cpp.
struct View;

struct Host {
    const Thread *here;
    const Runner *runner;
    // Null: memory is what it is.
    View *view;
    const Range *allowed;
    u64 allowed_count;
    // The first access that was wrong, or null.
    const char *wrong;
    const void *wrong_address;
};

extern __thread Host host;

// Up to eight bytes that do not cross a multiple of eight. What is `fresh` was not seen before.
extern "C" void r2ccl_host_load(View *view, const void *at, void *to, u32 bytes, bool is_fresh);
extern "C" void r2ccl_host_store(View *view, void *at, const void *from, u32 bytes);
// What the block has stored is seen by all, and what it has seen is forgotten.
extern "C" void r2ccl_host_publish(View *view);
extern "C" void r2ccl_host_forget(View *view);

inline u32 thread() { return host.here->thread; }
inline u32 threads() { return host.here->threads; }
inline u32 block() { return host.here->block; }
inline u32 blocks() { return host.here->blocks; }
inline bool meet_block(bool any) { return host.runner->meet_block(any); }
inline void pause() { host.runner->pause(); }

// ---- Memory

// Whether an access may be done; what may not is remembered and left out.
inline bool is_allowed(const void *at, u64 bytes, const char *what)
{
    const u64 address = reinterpret_cast<u64>(at);
    bool is_inside = host.allowed_count == 0;
    for (u64 k = 0; k < host.allowed_count && !is_inside; k++) {
        const Range &range = host.allowed[k];
        is_inside = address >= range.start && address + bytes <= range.start + range.bytes;
    }
    if (is_inside && address % bytes == 0) return true;
    if (!host.wrong) {
        host.wrong = what;
        host.wrong_address = at;
    }
    return false;
}

inline void load_part(const void *at, void *to, u32 bytes, bool is_fresh)
{
    if (host.view) return r2ccl_host_load(host.view, at, to, bytes, is_fresh);
    std::memcpy(to, at, bytes);
}

inline void store_part(void *at, const void *from, u32 bytes)
{
    if (host.view) return r2ccl_host_store(host.view, at, from, bytes);
    std::memcpy(at, from, bytes);
}

template <u32 BYTES> inline u64 load_aligned(const u8 *at)
{
    u64 value = 0;
    if (is_allowed(at, BYTES, "load")) load_part(at, &value, BYTES, false);
    return value;
}

template <u32 BYTES> inline void store_aligned(u8 *at, u64 value)
{
    if (is_allowed(at, BYTES, "store")) store_part(at, &value, BYTES);
}

inline Vector load_once(const u8 *at)
{
    Vector vector = {};
    if (!is_allowed(at, 16, "load of a vector")) return vector;
    load_part(at, &vector.units[0], 8, false);
    load_part(at + 8, &vector.units[1], 8, false);
    return vector;
}

inline Vector load_shared(const u8 *at) { return load_once(at); }

inline void store(u8 *at, Vector vector)
{
    if (!is_allowed(at, 16, "store of a vector")) return;
    store_part(at, &vector.units[0], 8);
    store_part(at + 8, &vector.units[1], 8);
}

inline void store_once(u8 *at, Vector vector) { store(at, vector); }

// Half a line at a time, in either order, and another thread may come between.
inline void store_line(u8 *at, u64 unit, u32 flag)
{
    if (!is_allowed(at, 16, "store of a line")) return;
    const u64 halves[2] = {(unit & 0xffffffffu) | static_cast<u64>(flag) << 32,
                           unit >> 32 | static_cast<u64>(flag) << 32};
    const bool second = host.runner->tear();
    store_part(at + 8 * second, &halves[second], 8);
    host.runner->tear();
    store_part(at + 8 * !second, &halves[!second], 8);
}

inline u64 load_line(const u8 *at, u32 &first, u32 &second)
{
    first = second = 0;
    if (!is_allowed(at, 16, "load of a line")) return 0;
    u64 halves[2];
    const bool last = host.runner->tear();
    load_part(at + 8 * last, &halves[last], 8, true);
    host.runner->tear();
    load_part(at + 8 * !last, &halves[!last], 8, true);
    first = static_cast<u32>(halves[0] >> 32);
    second = static_cast<u32>(halves[1] >> 32);
    return (halves[0] & 0xffffffffu) | halves[1] << 32;
}

inline void fence_system()
{
    if (!host.view) return;
    r2ccl_host_publish(host.view);
    r2ccl_host_forget(host.view);
}

inline void store_release(u64 *at, u64 value)
{
    host.runner->tear();
    if (!is_allowed(at, 8, "store of a counter")) return;
    if (host.view) r2ccl_host_publish(host.view);
    __atomic_store_n(at, value, __ATOMIC_RELEASE);
}

inline u64 load_acquire(const u64 *at)
{
    host.runner->tear();
    if (!is_allowed(at, 8, "load of a counter")) return 0;
    const u64 value = __atomic_load_n(at, __ATOMIC_ACQUIRE);
    if (host.view) r2ccl_host_forget(host.view);
    return value;
}

inline u32 load_volatile(const u32 *at)
{
    return is_allowed(at, 4, "load of a word") ? __atomic_load_n(at, __ATOMIC_RELAXED) : 1;
}

// ---- Numbers; the compiler must not fuse multiplication and addition

template <class To, class From> inline To as(From from)
{
    To to;
    static_assert(sizeof to == sizeof from, "the same bits");
    std::memcpy(&to, &from, sizeof to);
    return to;
}

inline u32 bits_of(float value) { return as<u32>(value); }
inline u64 bits_of(double value) { return as<u64>(value); }
inline float float_of(u32 bits) { return as<float>(bits); }
inline double double_of(u64 bits) { return as<double>(bits); }

inline float sum(float a, float b) { return a + b; }
inline double sum(double a, double b) { return a + b; }
inline float prod(float a, float b) { return a * b; }
inline double prod(double a, double b) { return a * b; }

inline u64 high_product(u64 a, u64 b)
{
    return static_cast<u64>(static_cast<unsigned __int128>(a) * b >> 64);
}

inline float larger(float a, float b)
{
    if (a != a || b != b) return a != a ? a : b;
    if (a == b) return bits_of(a) >> 31 ? b : a;
    return a < b ? b : a;
}

inline float smaller(float a, float b)
{
    if (a != a || b != b) return a != a ? a : b;
    if (a == b) return bits_of(a) >> 31 ? a : b;
    return a < b ? a : b;
}

// ---- Conversions of 16-bit floats, as an instruction would do them: NaNs have other bits than those
// that are to be stored

inline float widen_half(u32 code)
{
    const u32 sign = (code & 0x8000u) << 16, magnitude = code & 0x7fffu;
    if (magnitude > 0x7c00u) return float_of(0x7fffffffu);
    if (magnitude == 0x7c00u) return float_of(sign | 0x7f800000u);
    // Moved to the mantissa of f32, a half is 2^112 times too small, subnormal or not.
    const float scaled = float_of(magnitude << 13) * 5192296858534827628530496329220096.0f;
    return float_of(sign | bits_of(scaled));
}

inline u32 narrow_half(float value)
{
    const u32 sign = bits_of(value) >> 16 & 0x8000u, magnitude = bits_of(value) & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return 0x7fff;
    // The numbers of the type are dense in the units of its last place around this one.
    const u32 exponent = magnitude >> 23 < 113 ? 113 : magnitude >> 23;
    if (exponent > 142) return sign | 0x7c00u;
    // A power of two whose last place is the unit makes the addition round to units, ties to even.
    const float anchor = float_of((exponent + 13) << 23);
    const u32 units = bits_of(float_of(magnitude) + anchor) - bits_of(anchor);
    return sign | (((exponent - 113) << 10) + units);
}

inline void widen_halves(u32 pair, float *numbers)
{
    numbers[0] = widen_half(pair & 0xffffu);
    numbers[1] = widen_half(pair >> 16);
}

inline u32 narrow_halves(const float *numbers)
{
    return narrow_half(numbers[0]) | narrow_half(numbers[1]) << 16;
}

inline u32 narrow_brain(float value)
{
    const u32 bits = bits_of(value);
    return value != value ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}

inline u32 narrow_brains(const float *numbers)
{
    return narrow_brain(numbers[0]) | narrow_brain(numbers[1]) << 16;
}

}  // namespace r2ccl

// A kernel is a function for one thread.
#define R2CCL_KERNEL(NAME, PARAMETERS, BODY)                                                       \
    extern "C" void NAME(const void *parameters)                                                   \
    {                                                                                              \
        BODY(*static_cast<const r2ccl::PARAMETERS *>(parameters));                                 \
    }

