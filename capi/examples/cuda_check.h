/*
 * What the examples with CUDA have in common: the driver, found when the program runs, and ranks as
 * processes.
 */
#ifndef R2CCL_EXAMPLES_CUDA_CHECK_H
#define R2CCL_EXAMPLES_CUDA_CHECK_H

#include <dlfcn.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

/* ---- The driver ----------------------------------------------------------------------------- */

enum {
    CUDA_NOT_READY = 600,
    STREAM_NON_BLOCKING = 1,
    STREAM_WAIT_VALUE_GEQ = 0,
    CAPTURE_RELAXED = 2,
    PORTABLE_AND_MAPPED = 3
};

/* The functions of cuda.h that are needed, with addresses of devices as numbers. */
static struct driver {
    int (*cuInit)(unsigned flags);
    int (*cuDeviceGetCount)(int *count);
    int (*cuDevicePrimaryCtxRetain)(void **context, int device);
    int (*cuCtxSetCurrent)(void *context);
    int (*cuCtxGetCurrent)(void **context);
    int (*cuStreamCreate)(void **stream, unsigned flags);
    int (*cuStreamSynchronize)(void *stream);
    int (*cuStreamQuery)(void *stream);
    int (*cuStreamWaitValue32_v2)(void *stream, uint64_t address, uint32_t value, unsigned flags);
    int (*cuStreamBeginCapture_v2)(void *stream, int mode);
    int (*cuStreamEndCapture)(void *stream, void **graph);
    int (*cuMemAlloc_v2)(uint64_t *address, size_t bytes);
    int (*cuMemFree_v2)(uint64_t address);
    int (*cuMemHostAlloc)(void **pointer, size_t bytes, unsigned flags);
    int (*cuMemcpyAsync)(uint64_t to, uint64_t from, size_t bytes, void *stream);
    int (*cuMemsetD8Async)(uint64_t to, unsigned char value, size_t bytes, void *stream);
} driver;

#define CUDA(call) REQUIRE(driver.call == 0)

static inline void load_function(void *library, const char *name, void *place)
{
    void *function = dlsym(library, name);
    REQUIRE(function != NULL);
    memcpy(place, &function, sizeof function);
}

/* Whether there is a driver; it is ready then. */
static inline int load_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL)
        return 0;
#define LOAD(name) load_function(library, #name, &driver.name)
    LOAD(cuInit);
    LOAD(cuDeviceGetCount);
    LOAD(cuDevicePrimaryCtxRetain);
    LOAD(cuCtxSetCurrent);
    LOAD(cuCtxGetCurrent);
    LOAD(cuStreamCreate);
    LOAD(cuStreamSynchronize);
    LOAD(cuStreamQuery);
    LOAD(cuStreamWaitValue32_v2);
    LOAD(cuStreamBeginCapture_v2);
    LOAD(cuStreamEndCapture);
    LOAD(cuMemAlloc_v2);
    LOAD(cuMemFree_v2);
    LOAD(cuMemHostAlloc);
    LOAD(cuMemcpyAsync);
    LOAD(cuMemsetD8Async);
#undef LOAD
    CUDA(cuInit(0));
    return 1;
}

static inline int count_devices(void)
{
    int count;
    CUDA(cuDeviceGetCount(&count));
    REQUIRE(count > 0);
    return count;
}

/* Makes a device current in this thread. */
static inline void use_device(int device)
{
    void *context;
    CUDA(cuDevicePrimaryCtxRetain(&context, device));
    CUDA(cuCtxSetCurrent(context));
}

static inline void *current_context(void)
{
    void *context;
    CUDA(cuCtxGetCurrent(&context));
    return context;
}

static inline void *new_stream(void)
{
    void *stream;
    CUDA(cuStreamCreate(&stream, STREAM_NON_BLOCKING));
    return stream;
}

static inline uint64_t address_of(const void *pointer)
{
    return (uint64_t)(uintptr_t)pointer;
}

/* Memory of the current device. */
static inline void *device_memory(size_t bytes)
{
    uint64_t address;
    CUDA(cuMemAlloc_v2(&address, bytes));
    return (void *)(uintptr_t)address;
}

static inline void copy(void *to, const void *from, size_t bytes, void *stream)
{
    CUDA(cuMemcpyAsync(address_of(to), address_of(from), bytes, stream));
}

/* A word that is 0, and holds up whoever waits for it. */
static inline volatile uint32_t *new_barrier(void)
{
    void *word;
    CUDA(cuMemHostAlloc(&word, sizeof(uint32_t), PORTABLE_AND_MAPPED));
    *(volatile uint32_t *)word = 0;
    return word;
}

/* Holds up what comes later on the stream until the word is 1. */
static inline void hold(void *stream, volatile uint32_t *word)
{
    uint64_t address = address_of((const void *)(uintptr_t)word);
    CUDA(cuStreamWaitValue32_v2(stream, address, 1, STREAM_WAIT_VALUE_GEQ));
}

/* ---- Ranks ---------------------------------------------------------------------------------- */

enum { MOST_PROCESSES = 3, LONGEST_SECONDS = 240 };

typedef void (*process_body)(int rank, int ranks, ccl_unique_id_t id);

static inline void run_child(int rank, int ranks, int pipe_end, process_body body)
{
    ccl_unique_id_t id;
    REQUIRE(read(pipe_end, &id, sizeof id) == (ssize_t)sizeof id);
    body(rank, ranks, id);
    exit(EXIT_SUCCESS);
}

/* Runs `body` as `ranks` processes, of which this one is rank 0. The others are started before anybody has
 * touched the driver, which does not survive a fork. */
static inline void run_processes(int ranks, process_body body)
{
    int pipe_ends[MOST_PROCESSES];
    REQUIRE(ranks >= 2 && ranks <= MOST_PROCESSES);
    for (int rank = 1; rank < ranks; rank++) {
        int ends[2];
        REQUIRE(pipe(ends) == 0);
        pid_t process = fork();
        REQUIRE(process >= 0);
        alarm(LONGEST_SECONDS);
        if (process == 0)
            run_child(rank, ranks, ends[0], body);
        pipe_ends[rank] = ends[1];
    }
    ccl_unique_id_t id;
    alarm(LONGEST_SECONDS);
    CHECK(ccl_get_unique_id(&id));
    for (int rank = 1; rank < ranks; rank++)
        REQUIRE(write(pipe_ends[rank], &id, sizeof id) == (ssize_t)sizeof id);
    body(0, ranks, id);
    for (int rank = 1; rank < ranks; rank++) {
        int status;
        REQUIRE(wait(&status) > 0);
        REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SUCCESS);
    }
}

#endif /* R2CCL_EXAMPLES_CUDA_CHECK_H */
