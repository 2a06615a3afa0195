/* Measures collectives of NCCL among ranks on GPUs of this machine, by the conventions of nccl-tests.
 *
 * usage: nccl_perf OPERATION RANKS WARM_UP BYTES:ITERATIONS...
 *
 * Every rank is a process, rank r on GPU r mod their number; ranks that share a GPU need NCCL 2.30 and
 * NCCL_MULTI_RANK_GPU_ENABLE=1. A size is verified once, warmed up and then timed: so many calls on a stream, and a
 * wait for it; the time of a call is the mean over the calls and over the ranks. Rank 0 prints "BYTES MICROSECONDS
 * WRONG" for each size, where WRONG counts the wrong elements of all ranks. The elements are floats, and BYTES is
 * the larger of a rank's two buffers.
 *
 * NCCL and the driver are looked for when it runs, so that nothing of them is needed to build it.
 */
#include <dlfcn.h>
#include <inttypes.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* What is used of cuda.h and nccl.h. */
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct ncclComm *ncclComm_t;
typedef unsigned long long CUdeviceptr;
typedef struct {
    char internal[128];
} ncclUniqueId;
enum { NCCL_FLOAT32 = 7, NCCL_SUM = 0 };
enum { LEAST_VERSION = 23000 };

static int (*cuInit)(unsigned);
static int (*cuDeviceGetCount)(int *);
static int (*cuDeviceGet)(int *, int);
static int (*cuDevicePrimaryCtxRetain)(CUcontext *, int);
static int (*cuCtxSetCurrent)(CUcontext);
static int (*cuMemAlloc)(CUdeviceptr *, size_t);
static int (*cuMemFree)(CUdeviceptr);
static int (*cuMemcpyHtoD)(CUdeviceptr, const void *, size_t);
static int (*cuMemcpyDtoH)(void *, CUdeviceptr, size_t);
static int (*cuStreamCreate)(CUstream *, unsigned);
static int (*cuStreamSynchronize)(CUstream);
static int (*ncclGetVersion)(int *);
static int (*ncclGetUniqueId)(ncclUniqueId *);
static int (*ncclCommInitRank)(ncclComm_t *, int, ncclUniqueId, int);
static int (*ncclCommDestroy)(ncclComm_t);
static int (*ncclAllReduce)(const void *, void *, size_t, int, int, ncclComm_t, CUstream);
static int (*ncclReduceScatter)(const void *, void *, size_t, int, int, ncclComm_t, CUstream);
static int (*ncclAllGather)(const void *, void *, size_t, int, ncclComm_t, CUstream);
static int (*ncclBroadcast)(const void *, void *, size_t, int, int, ncclComm_t, CUstream);
static const char *(*ncclGetErrorString)(int);
static const char *(*ncclGetLastError)(ncclComm_t);

/* Inputs repeat after so many elements; it is prime so that shifted blocks are noticed. */
enum { PERIOD = 251 };
/* Blocks are whole multiples of 16 bytes, as in nccl-tests. */
enum { BLOCK_ELEMENTS = 4 };
enum { MOST_RANKS = 16 };
/* A group that does not come to an end within so many seconds hangs. */
enum { MOST_SECONDS = 300 };

/* What the processes tell each other. */
struct shared {
    ncclUniqueId id;
    volatile int is_made;
    volatile int arrived;
    volatile uint64_t wrong[MOST_RANKS];
    volatile double seconds[MOST_RANKS];
};

struct rank {
    int me;
    int ranks;
    int meetings;
    struct shared *shared;
    ncclComm_t comm;
    CUstream stream;
};

/* What is measured. */
struct collective {
    const char *name;
    int divided_input;
    int divided_output;
    int (*call)(struct rank *rank, CUdeviceptr input, CUdeviceptr output, size_t count);
    float (*expected)(const struct rank *rank, size_t count, size_t index);
};

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "nccl_perf: %s: %s\n", what, why);
    exit(2);
}

static void cuda(const char *what, int code)
{
    char why[32];
    if (code == 0)
        return;
    snprintf(why, sizeof why, "CUDA error %d", code);
    fail(what, why);
}

static void nccl(const char *what, int code)
{
    if (code != 0) {
        fprintf(stderr, "nccl_perf: %s\n", ncclGetLastError(NULL));
        fail(what, ncclGetErrorString(code));
    }
}

static void *library(const char *name)
{
    void *handle = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
    if (handle == NULL)
        fail("skip", dlerror());
    return handle;
}

static void find(void *library, const char *name, void *into)
{
    void *symbol = dlsym(library, name);
    if (symbol == NULL)
        fail(name, "it is not there");
    memcpy(into, &symbol, sizeof symbol);
}

static void find_all(void)
{
    void *driver = library("libcuda.so.1");
    find(driver, "cuInit", &cuInit);
    find(driver, "cuDeviceGetCount", &cuDeviceGetCount);
    find(driver, "cuDeviceGet", &cuDeviceGet);
    find(driver, "cuDevicePrimaryCtxRetain", &cuDevicePrimaryCtxRetain);
    find(driver, "cuCtxSetCurrent", &cuCtxSetCurrent);
    find(driver, "cuMemAlloc_v2", &cuMemAlloc);
    find(driver, "cuMemFree_v2", &cuMemFree);
    find(driver, "cuMemcpyHtoD_v2", &cuMemcpyHtoD);
    find(driver, "cuMemcpyDtoH_v2", &cuMemcpyDtoH);
    find(driver, "cuStreamCreate", &cuStreamCreate);
    find(driver, "cuStreamSynchronize", &cuStreamSynchronize);
    const char *path = getenv("NCCL_LIBRARY");
    void *peer = library(path != NULL ? path : "libnccl.so.2");
    find(peer, "ncclGetVersion", &ncclGetVersion);
    find(peer, "ncclGetUniqueId", &ncclGetUniqueId);
    find(peer, "ncclCommInitRank", &ncclCommInitRank);
    find(peer, "ncclCommDestroy", &ncclCommDestroy);
    find(peer, "ncclAllReduce", &ncclAllReduce);
    find(peer, "ncclReduceScatter", &ncclReduceScatter);
    find(peer, "ncclAllGather", &ncclAllGather);
    find(peer, "ncclBroadcast", &ncclBroadcast);
    find(peer, "ncclGetErrorString", &ncclGetErrorString);
    find(peer, "ncclGetLastError", &ncclGetLastError);
}

static int all_reduce(struct rank *rank, CUdeviceptr input, CUdeviceptr output, size_t count)
{
    return ncclAllReduce((void *)input, (void *)output, count, NCCL_FLOAT32, NCCL_SUM, rank->comm,
                         rank->stream);
}

static int reduce_scatter(struct rank *rank, CUdeviceptr input, CUdeviceptr output, size_t count)
{
    return ncclReduceScatter((void *)input, (void *)output, count, NCCL_FLOAT32, NCCL_SUM,
                             rank->comm, rank->stream);
}

static int all_gather(struct rank *rank, CUdeviceptr input, CUdeviceptr output, size_t count)
{
    return ncclAllGather((void *)input, (void *)output, count, NCCL_FLOAT32, rank->comm,
                         rank->stream);
}

static int broadcast(struct rank *rank, CUdeviceptr input, CUdeviceptr output, size_t count)
{
    return ncclBroadcast((void *)input, (void *)output, count, NCCL_FLOAT32, 0, rank->comm,
                         rank->stream);
}

/* The input of `rank`: small whole numbers, whose sums are exact in any order. */
static float input_value(int rank, size_t index)
{
    return (float)((index + 17 * (size_t)rank) % PERIOD);
}

static float sum_of_inputs(const struct rank *rank, size_t index)
{
    float sum = 0;
    for (int other = 0; other < rank->ranks; other++)
        sum += input_value(other, index);
    return sum;
}

static float all_reduce_expected(const struct rank *rank, size_t count, size_t index)
{
    (void)count;
    return sum_of_inputs(rank, index);
}

static float reduce_scatter_expected(const struct rank *rank, size_t count, size_t index)
{
    return sum_of_inputs(rank, (size_t)rank->me * count + index);
}

static float all_gather_expected(const struct rank *rank, size_t count, size_t index)
{
    (void)rank;
    return input_value((int)(index / count), index % count);
}

static float broadcast_expected(const struct rank *rank, size_t count, size_t index)
{
    (void)rank;
    (void)count;
    return input_value(0, index);
}

static const struct collective COLLECTIVES[] = {
    {"all_reduce", 0, 0, all_reduce, all_reduce_expected},
    {"reduce_scatter", 1, 0, reduce_scatter, reduce_scatter_expected},
    {"all_gather", 0, 1, all_gather, all_gather_expected},
    {"broadcast", 0, 0, broadcast, broadcast_expected},
};

static const struct collective *find_collective(const char *name)
{
    for (size_t index = 0; index < sizeof COLLECTIVES / sizeof *COLLECTIVES; index++)
        if (strcmp(COLLECTIVES[index].name, name) == 0)
            return &COLLECTIVES[index];
    fail(name, "unknown operation");
    return NULL;
}

/* Returns when all ranks have come. */
static void meet(struct rank *rank)
{
    rank->meetings++;
    __atomic_add_fetch(&rank->shared->arrived, 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(&rank->shared->arrived, __ATOMIC_ACQUIRE) < rank->meetings * rank->ranks)
        usleep(20);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static CUdeviceptr memory(const float *values, size_t elements)
{
    CUdeviceptr start = 0;
    cuda("cuMemAlloc", cuMemAlloc(&start, elements * sizeof(float) + 1));
    cuda("cuMemcpyHtoD", cuMemcpyHtoD(start, values, elements * sizeof(float)));
    return start;
}

static void measure(const struct collective *collective, struct rank *rank, int warm_up,
                    const char *size)
{
    size_t bytes = 0;
    int iterations = 0;
    if (sscanf(size, "%zu:%d", &bytes, &iterations) != 2 || iterations < 1)
        fail(size, "a size is BYTES:ITERATIONS");
    size_t count = bytes / sizeof(float);
    if (collective->divided_input || collective->divided_output)
        count = count / (size_t)rank->ranks / BLOCK_ELEMENTS * BLOCK_ELEMENTS;
    size_t inputs = collective->divided_input ? count * (size_t)rank->ranks : count;
    size_t outputs = collective->divided_output ? count * (size_t)rank->ranks : count;
    float *values = malloc((inputs > outputs ? inputs : outputs) * sizeof(float) + 1);
    if (values == NULL)
        fail("malloc", "out of memory");
    for (size_t index = 0; index < outputs; index++)
        values[index] = -1;
    CUdeviceptr output = memory(values, outputs);
    for (size_t index = 0; index < inputs; index++)
        values[index] = input_value(rank->me, index);
    CUdeviceptr input = memory(values, inputs);

    nccl(collective->name, collective->call(rank, input, output, count));
    cuda("cuStreamSynchronize", cuStreamSynchronize(rank->stream));
    cuda("cuMemcpyDtoH", cuMemcpyDtoH(values, output, outputs * sizeof(float)));
    uint64_t wrong = 0;
    for (size_t index = 0; index < outputs; index++)
        wrong += values[index] != collective->expected(rank, count, index);
    for (int turn = 0; turn < warm_up; turn++)
        nccl(collective->name, collective->call(rank, input, output, count));
    cuda("cuStreamSynchronize", cuStreamSynchronize(rank->stream));
    meet(rank);
    double start = now();
    for (int turn = 0; turn < iterations; turn++)
        nccl(collective->name, collective->call(rank, input, output, count));
    cuda("cuStreamSynchronize", cuStreamSynchronize(rank->stream));
    rank->shared->seconds[rank->me] = (now() - start) / iterations;
    rank->shared->wrong[rank->me] = wrong;
    meet(rank);
    if (rank->me == 0) {
        double seconds = 0;
        wrong = 0;
        for (int other = 0; other < rank->ranks; other++) {
            seconds += rank->shared->seconds[other] / rank->ranks;
            wrong += rank->shared->wrong[other];
        }
        printf("%zu %.3f %" PRIu64 "\n", bytes, seconds * 1e6, wrong);
        fflush(stdout);
    }
    meet(rank);
    cuda("cuMemFree", cuMemFree(input));
    cuda("cuMemFree", cuMemFree(output));
    free(values);
}

/* What one process does. The driver must not be used before the processes are. */
static void follow(struct rank *rank, const struct collective *collective, int warm_up, char **sizes)
{
    int devices = 0, device = 0, version = 0;
    CUcontext context = NULL;
    alarm(MOST_SECONDS);
    find_all();
    nccl("ncclGetVersion", ncclGetVersion(&version));
    if (cuInit(0) != 0 || cuDeviceGetCount(&devices) != 0 || devices == 0)
        fail("skip", "there is no GPU");
    if (rank->ranks > devices && version < LEAST_VERSION)
        fail("skip", "ranks can share a GPU from NCCL 2.30 on");
    if (rank->me == 0)
        printf("# NCCL %d, %d ranks on %d GPUs, %s\n", version, rank->ranks, devices,
               collective->name);
    fflush(stdout);
    cuda("cuDeviceGet", cuDeviceGet(&device, rank->me % devices));
    cuda("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, device));
    cuda("cuCtxSetCurrent", cuCtxSetCurrent(context));
    cuda("cuStreamCreate", cuStreamCreate(&rank->stream, 1));
    if (rank->me == 0) {
        nccl("ncclGetUniqueId", ncclGetUniqueId(&rank->shared->id));
        __atomic_store_n(&rank->shared->is_made, 1, __ATOMIC_RELEASE);
    }
    while (!__atomic_load_n(&rank->shared->is_made, __ATOMIC_ACQUIRE))
        usleep(20);
    nccl("ncclCommInitRank",
         ncclCommInitRank(&rank->comm, rank->ranks, rank->shared->id, rank->me));
    for (; *sizes != NULL; sizes++)
        measure(collective, rank, warm_up, *sizes);
    nccl("ncclCommDestroy", ncclCommDestroy(rank->comm));
}

int main(int argument_count, char **arguments)
{
    if (argument_count < 5)
        fail("usage", "nccl_perf OPERATION RANKS WARM_UP BYTES:ITERATIONS...");
    const struct collective *collective = find_collective(arguments[1]);
    struct rank rank = {.ranks = atoi(arguments[2])};
    if (rank.ranks < 1 || rank.ranks > MOST_RANKS)
        fail(arguments[2], "there are 1 to 16 ranks");
    rank.shared = mmap(NULL, sizeof *rank.shared, PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (rank.shared == MAP_FAILED)
        fail("mmap", "no shared memory");
    pid_t processes[MOST_RANKS];
    for (rank.me = 0; rank.me < rank.ranks; rank.me++) {
        processes[rank.me] = fork();
        if (processes[rank.me] == 0) {
            follow(&rank, collective, atoi(arguments[3]), arguments + 4);
            return 0;
        }
    }
    /* One that fails leaves the others waiting. */
    int result = 0;
    for (int ended = 0; ended < rank.ranks; ended++) {
        int status = 0;
        if (wait(&status) < 0 || status == 0)
            continue;
        result = 2;
        for (int other = 0; other < rank.ranks; other++)
            kill(processes[other], SIGKILL);
    }
    return result;
}
