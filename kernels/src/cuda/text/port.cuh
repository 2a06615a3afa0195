// What the kernels need of their machine, here a GPU. The tests have another port, with the same
// functions for a processor; everything behind this file is the same text for both.
//
// No header of CUDA is needed, and no type of the C library.

#define R2CCL_FN __device__ __forceinline__
#define R2CCL_UNROLL _Pragma("unroll")
#define R2CCL_KEEP_LOOP _Pragma("unroll 1")
// How often a wait looks whether it is to give up.
#define R2CCL_POLLS_PER_LOOK 1024

namespace r2ccl {

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;
typedef int i32;
typedef long long i64;

// Sixteen bytes, the most that one access moves; the low ones first.
struct alignas(16) Vector {
    u64 units[2];
};

// ---- Threads

R2CCL_FN u32 thread() { return threadIdx.x; }
R2CCL_FN u32 threads() { return blockDim.x; }
R2CCL_FN u32 block() { return blockIdx.x; }
R2CCL_FN u32 blocks() { return gridDim.x; }

// Waits for all threads of the block. True if `any` is true for any of them.
R2CCL_FN bool meet_block(bool any) { return __syncthreads_or(any) != 0; }

// A turn of a loop that waits.
R2CCL_FN void pause() {}

// ---- Memory of collectives

template <u32 BYTES> R2CCL_FN u64 load_aligned(const u8 *at)
{
    if (BYTES == 8) return *reinterpret_cast<const u64 *>(at);
    if (BYTES == 4) return *reinterpret_cast<const u32 *>(at);
    if (BYTES == 2) return *reinterpret_cast<const u16 *>(at);
    return *at;
}

template <u32 BYTES> R2CCL_FN void store_aligned(u8 *at, u64 value)
{
    if (BYTES == 8) *reinterpret_cast<u64 *>(at) = value;
    if (BYTES == 4) *reinterpret_cast<u32 *>(at) = static_cast<u32>(value);
    if (BYTES == 2) *reinterpret_cast<u16 *>(at) = static_cast<u16>(value);
    if (BYTES == 1) *at = static_cast<u8>(value);
}

// A vector that nobody else reads: it is not kept in the first-level cache.
R2CCL_FN Vector load_once(const u8 *at)
{
    Vector vector;
    asm volatile("ld.global.L1::no_allocate.v2.u64 {%0, %1}, [%2];"
                 : "=l"(vector.units[0]), "=l"(vector.units[1])
                 : "l"(at)
                 : "memory");
    return vector;
}

// A vector that the thread beside this one reads too.
R2CCL_FN Vector load_shared(const u8 *at)
{
    Vector vector;
    asm volatile("ld.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(vector.units[0]), "=l"(vector.units[1])
                 : "l"(at)
                 : "memory");
    return vector;
}

R2CCL_FN void store(u8 *at, Vector vector)
{
    asm volatile("st.global.v2.u64 [%0], {%1, %2};"
                 :
                 : "l"(at), "l"(vector.units[0]), "l"(vector.units[1])
                 : "memory");
}

// A vector that makes room for others first.
R2CCL_FN void store_once(u8 *at, Vector vector)
{
    asm volatile("st.global.cs.v2.u64 [%0], {%1, %2};"
                 :
                 : "l"(at), "l"(vector.units[0]), "l"(vector.units[1])
                 : "memory");
}

// ---- Memory of protocols: other GPUs and the host read and write it meanwhile

// Each half of the line, eight bytes with a flag of its own, arrives whole or not at all.
R2CCL_FN void store_line(u8 *at, u64 unit, u32 flag)
{
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %2};"
                 :
                 : "l"(at), "r"(static_cast<u32>(unit)), "r"(flag),
                   "r"(static_cast<u32>(unit >> 32))
                 : "memory");
}

// Both flags and the unit between them.
R2CCL_FN u64 load_line(const u8 *at, u32 &first, u32 &second)
{
    u32 low, high;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(low), "=r"(first), "=r"(high), "=r"(second)
                 : "l"(at)
                 : "memory");
    return static_cast<u64>(high) << 32 | low;
}

// Everything that this thread has seen or done is before what follows, for the whole system.
R2CCL_FN void fence_system() { __threadfence_system(); }

R2CCL_FN void store_release(u64 *at, u64 value)
{
    asm volatile("st.release.sys.global.u64 [%0], %1;" : : "l"(at), "l"(value) : "memory");
}

R2CCL_FN u64 load_acquire(const u64 *at)
{
    u64 value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    return value;
}

R2CCL_FN u32 load_volatile(const u32 *at) { return *static_cast<const volatile u32 *>(at); }

// ---- Numbers: one rounding per operation, and subnormals are numbers

R2CCL_FN u32 bits_of(float value) { return __float_as_uint(value); }
R2CCL_FN u64 bits_of(double value) { return static_cast<u64>(__double_as_longlong(value)); }
R2CCL_FN float float_of(u32 bits) { return __uint_as_float(bits); }
R2CCL_FN double double_of(u64 bits) { return __longlong_as_double(static_cast<i64>(bits)); }

R2CCL_FN float sum(float a, float b) { return __fadd_rn(a, b); }
R2CCL_FN double sum(double a, double b) { return __dadd_rn(a, b); }
R2CCL_FN float prod(float a, float b) { return __fmul_rn(a, b); }
R2CCL_FN double prod(double a, double b) { return __dmul_rn(a, b); }

// The upper half of a product.
R2CCL_FN u64 high_product(u64 a, u64 b) { return __umul64hi(a, b); }

// A NaN if either is; +0 is larger than -0.
R2CCL_FN float larger(float a, float b)
{
    float result;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
}

R2CCL_FN float smaller(float a, float b)
{
    float result;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
}

// ---- Conversions of two numbers, the first in the low half. NaNs become any NaN.

R2CCL_FN void widen_halves(u32 pair, float *numbers)
{
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %2;"
        " cvt.f32.f16 %0, low; cvt.f32.f16 %1, high;}"
        : "=f"(numbers[0]), "=f"(numbers[1])
        : "r"(pair));
}

R2CCL_FN u32 narrow_halves(const float *numbers)
{
    u32 pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(numbers[1]), "f"(numbers[0]));
    return pair;
}

R2CCL_FN u32 narrow_brains(const float *numbers)
{
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(numbers[1]), "f"(numbers[0]));
    return pair;
}

// Processors from 8.9 on convert 8-bit floats; for others there is arithmetic in numbers.cuh.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#define R2CCL_CONVERTS_BYTES 1

#define R2CCL_BYTE_FLOATS(NAME, TYPE)                                                              \
    R2CCL_FN void widen_##NAME(u32 pair, float *numbers)                                           \
    {                                                                                              \
        u32 halves;                                                                                \
        asm("cvt.rn.f16x2." TYPE "x2 %0, %1;" : "=r"(halves) : "h"(static_cast<u16>(pair)));       \
        widen_halves(halves, numbers);                                                             \
    }                                                                                              \
    R2CCL_FN u32 narrow_##NAME(const float *numbers)                                               \
    {                                                                                              \
        u16 pair;                                                                                  \
        asm("cvt.rn.satfinite." TYPE "x2.f32 %0, %1, %2;"                                          \
            : "=h"(pair)                                                                           \
            : "f"(numbers[1]), "f"(numbers[0]));                                                   \
        return pair;                                                                               \
    }

R2CCL_BYTE_FLOATS(e4m3, "e4m3")
R2CCL_BYTE_FLOATS(e5m2, "e5m2")
#else
#define R2CCL_CONVERTS_BYTES 0
#endif

}  // namespace r2ccl

// A kernel with one parameter, a structure that is passed by value.
#define R2CCL_KERNEL(NAME, PARAMETERS, BODY)                                                       \
    extern "C" __global__ void __launch_bounds__(512)                                              \
        NAME(const __grid_constant__ r2ccl::PARAMETERS parameters)                                 \
    {                                                                                              \
        BODY(parameters);                                                                          \
    }
