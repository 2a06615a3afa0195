/*
 * The part of CUDA's runtime that PyTorch's streams, events, allocators and copies need, on any driver: for
 * tests, in place of NVIDIA's runtime, which asks the driver for tables that nobody has described. Kernels
 * cannot be launched.
 *
 * cudart.py compiles it together with stubs of all other functions.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

typedef int Error;
typedef unsigned long long Address;
typedef struct {
    char bytes[64];
} Handle;

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NO_DRIVER = 35,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    NOT_READY = 600,
    NOT_SUPPORTED = 801,
};
enum { MOST_DEVICES = 16, COMPUTE_MAJOR = 75, COMPUTE_MINOR = 76, PROCESSORS = 16, BUS_ID = 33 };
enum { ASK_TYPE = 2, ASK_ORDINAL = 9, HOST_MEMORY = 1, DEVICE_MEMORY = 2, PORTABLE = 1 };

/* The start of cudaDeviceProp as CUDA 13 has it; its end is behind what anybody here reads. */
struct Properties {
    char name[256];
    char uuid[16], luid[8];
    unsigned int mask;
    size_t total_bytes, shared_bytes;
    int registers, warp;
    size_t pitch;
    int threads, block[3], grid[3];
    size_t constant_bytes;
    int major, minor;
    size_t alignment, pitch_alignment;
    int processors;
};
enum { ZEROED_BYTES = 700 };

struct Attributes {
    int type, device;
    void *device_pointer, *host_pointer;
};

static __thread Error last_error;
static __thread int current = 0;
static void *driver;
static void *contexts[MOST_DEVICES];

static Error keep(Error error)
{
    if (error != SUCCESS) {
        last_error = error;
    }
    return error;
}

/* The driver that the loader finds by its name, once somebody wants it. */
static void *function(const char *name)
{
    if (driver == NULL) {
        driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    }
    return driver == NULL ? NULL : dlsym(driver, name);
}

static Error missing(void)
{
    return NO_DRIVER;
}

static Error (*found(const char *name))()
{
    void *there = function(name);
    return there == NULL ? (Error (*)())missing : (Error (*)())there;
}

#define DRIVER(name, ...)                                         \
    ({                                                            \
        static Error (*there)();                                  \
        there = there == NULL ? found(#name) : there;             \
        there(__VA_ARGS__);                                       \
    })

/* What a call of the runtime does first: the primary context of the thread's device is current. */
static Error enter(void)
{
    static int started;
    Error error = started ? SUCCESS : DRIVER(cuInit, 0u);
    if (error != SUCCESS) {
        return error;
    }
    started = 1;
    if (contexts[current] == NULL) {
        void *context = NULL;
        error = DRIVER(cuDevicePrimaryCtxRetain, &context, current);
        contexts[current] = context;
    }
    return error != SUCCESS ? error : DRIVER(cuCtxSetCurrent, contexts[current]);
}

#define CALL(name, ...)                                                     \
    ({                                                                      \
        Error entered = enter();                                            \
        keep(entered != SUCCESS ? entered : DRIVER(name, ##__VA_ARGS__));   \
    })

const char *cudaGetErrorString(Error error)
{
    const char *text = "unknown error";
    DRIVER(cuGetErrorString, error, &text);
    return text;
}

const char *cudaGetErrorName(Error error)
{
    const char *text = "unknown error";
    DRIVER(cuGetErrorName, error, &text);
    return text;
}

Error cudaGetLastError(void)
{
    Error error = last_error;
    last_error = SUCCESS;
    return error;
}

Error cudaPeekAtLastError(void)
{
    return last_error;
}

/* ---- Devices --------------------------------------------------------------------------------- */

Error cudaGetDeviceCount(int *count)
{
    *count = 0;
    Error error = DRIVER(cuInit, 0u);
    error = error != SUCCESS ? error : DRIVER(cuDeviceGetCount, count);
    return keep(error == SUCCESS && *count == 0 ? NO_DEVICE : error);
}

Error cudaSetDevice(int device)
{
    int count = 0;
    Error error = cudaGetDeviceCount(&count);
    if (error != SUCCESS || device < 0 || device >= count || device >= MOST_DEVICES) {
        return keep(error != SUCCESS ? error : INVALID_DEVICE);
    }
    current = device;
    return keep(enter());
}

Error cudaGetDevice(int *device)
{
    *device = current;
    return SUCCESS;
}

Error cudaDeviceGetAttribute(int *value, int attribute, int device)
{
    return CALL(cuDeviceGetAttribute, value, attribute, device);
}

Error cudaGetDeviceProperties(struct Properties *properties, int device)
{
    memset(properties, 0, ZEROED_BYTES);
    properties->warp = 32;
    properties->threads = 1024;
    Error error = CALL(cuDeviceGetName, properties->name, 255, device);
    error = error ? error : CALL(cuDeviceTotalMem_v2, &properties->total_bytes, device);
    error = error ? error : CALL(cuDeviceGetAttribute, &properties->major, COMPUTE_MAJOR, device);
    error = error ? error : CALL(cuDeviceGetAttribute, &properties->minor, COMPUTE_MINOR, device);
    return error ? error : CALL(cuDeviceGetAttribute, &properties->processors, PROCESSORS, device);
}

Error cudaDriverGetVersion(int *version)
{
    return keep(DRIVER(cuDriverGetVersion, version));
}

Error cudaRuntimeGetVersion(int *version)
{
    *version = 13000;
    return SUCCESS;
}

Error cudaDeviceGetPCIBusId(char *name, int length, int device)
{
    return CALL(cuDeviceGetPCIBusId, name, length, device);
}

Error cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    return CALL(cuDeviceCanAccessPeer, can, device, peer);
}

Error cudaDeviceEnablePeerAccess(int peer, unsigned int flags)
{
    void *context = NULL;
    Error error = CALL(cuDevicePrimaryCtxRetain, &context, peer);
    return error ? error : CALL(cuCtxEnablePeerAccess, context, flags);
}

Error cudaDeviceSynchronize(void)
{
    return CALL(cuCtxSynchronize);
}

static Error refuse(void)
{
    return NOT_SUPPORTED;
}

/* PyTorch collects functions that it may never call: what is not there refuses when it is called. */
Error cudaGetDriverEntryPointByVersion(
    const char *name, void **entry, unsigned int version, unsigned long long flags, int *status)
{
    static const char *const endings[] = {"", "_v2", "_v3", "_v4"};
    char exported[128];
    (void)version, (void)flags;
    *entry = NULL;
    for (size_t i = 0; i < 4 && *entry == NULL; ++i) {
        snprintf(exported, sizeof exported, "%s%s", name, endings[i]);
        *entry = function(exported);
    }
    *entry = *entry == NULL ? (void *)refuse : *entry;
    if (status != NULL) {
        *status = 0;
    }
    return SUCCESS;
}

/* ---- Streams and events ---------------------------------------------------------------------- */

Error cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    return CALL(cuCtxGetStreamPriorityRange, least, greatest);
}

Error cudaStreamCreateWithPriority(void **stream, unsigned int flags, int priority)
{
    return CALL(cuStreamCreateWithPriority, stream, flags, priority);
}

Error cudaStreamCreateWithFlags(void **stream, unsigned int flags)
{
    return CALL(cuStreamCreate, stream, flags);
}

Error cudaStreamDestroy(void *stream)
{
    return CALL(cuStreamDestroy_v2, stream);
}

Error cudaStreamQuery(void *stream)
{
    return CALL(cuStreamQuery, stream);
}

Error cudaStreamSynchronize(void *stream)
{
    return CALL(cuStreamSynchronize, stream);
}

Error cudaStreamWaitEvent(void *stream, void *event, unsigned int flags)
{
    return CALL(cuStreamWaitEvent, stream, event, flags);
}

Error cudaStreamGetPriority(void *stream, int *priority)
{
    return CALL(cuStreamGetPriority, stream, priority);
}

Error cudaLaunchHostFunc(void *stream, void (*host)(void *), void *argument)
{
    return CALL(cuLaunchHostFunc, stream, host, argument);
}

Error cudaStreamIsCapturing(void *stream, int *status)
{
    return CALL(cuStreamIsCapturing, stream, status);
}

/* In the driver of the tests only the status exists. */
Error cudaStreamGetCaptureInfo(void *stream, int *status, unsigned long long *id)
{
    if (id != NULL) {
        *id = 0;
    }
    return CALL(cuStreamIsCapturing, stream, status);
}

Error cudaThreadExchangeStreamCaptureMode(int *mode)
{
    return CALL(cuThreadExchangeStreamCaptureMode, mode);
}

Error cudaStreamBeginCapture(void *stream, int mode)
{
    return CALL(cuStreamBeginCapture_v2, stream, mode);
}

Error cudaStreamEndCapture(void *stream, void **graph)
{
    return CALL(cuStreamEndCapture, stream, graph);
}

Error cudaGraphDestroy(void *graph)
{
    return CALL(cuGraphDestroy, graph);
}

Error cudaEventCreateWithFlags(void **event, unsigned int flags)
{
    return CALL(cuEventCreate, event, flags);
}

Error cudaEventDestroy(void *event)
{
    return CALL(cuEventDestroy_v2, event);
}

Error cudaEventRecord(void *event, void *stream)
{
    return CALL(cuEventRecord, event, stream);
}

Error cudaEventRecordWithFlags(void *event, void *stream, unsigned int flags)
{
    return CALL(cuEventRecordWithFlags, event, stream, flags);
}

Error cudaEventQuery(void *event)
{
    return CALL(cuEventQuery, event);
}

Error cudaEventSynchronize(void *event)
{
    return CALL(cuEventSynchronize, event);
}

Error cudaEventElapsedTime(float *milliseconds, void *start, void *end)
{
    return CALL(cuEventElapsedTime_v2, milliseconds, start, end);
}

/* ---- Memory ---------------------------------------------------------------------------------- */

Error cudaMalloc(Address *address, size_t bytes)
{
    *address = 0;
    return bytes == 0 ? SUCCESS : CALL(cuMemAlloc_v2, address, bytes);
}

Error cudaFree(Address address)
{
    return address == 0 ? keep(enter()) : CALL(cuMemFree_v2, address);
}

Error cudaMemGetInfo(size_t *free, size_t *total)
{
    return CALL(cuMemGetInfo_v2, free, total);
}

Error cudaHostAlloc(void **memory, size_t bytes, unsigned int flags)
{
    return CALL(cuMemHostAlloc, memory, bytes, flags);
}

Error cudaMallocHost(void **memory, size_t bytes)
{
    return CALL(cuMemHostAlloc, memory, bytes, PORTABLE);
}

Error cudaFreeHost(void *memory)
{
    return memory == NULL ? SUCCESS : CALL(cuMemFreeHost, memory);
}

Error cudaPointerGetAttributes(struct Attributes *attributes, void *memory)
{
    int type = 0, ordinal = -2;
    memset(attributes, 0, sizeof *attributes);
    if (CALL(cuPointerGetAttribute, &type, ASK_TYPE, (Address)memory) != SUCCESS || type == 0) {
        cudaGetLastError();
        attributes->device = -2;
        attributes->host_pointer = memory;
        return SUCCESS;
    }
    CALL(cuPointerGetAttribute, &ordinal, ASK_ORDINAL, (Address)memory);
    attributes->type = type;
    attributes->device = ordinal;
    attributes->device_pointer = memory;
    attributes->host_pointer = type == HOST_MEMORY ? memory : NULL;
    return SUCCESS;
}

Error cudaMemcpyAsync(Address to, Address from, size_t bytes, int kind, void *stream)
{
    (void)kind;
    return bytes == 0 ? SUCCESS : CALL(cuMemcpyAsync, to, from, bytes, stream);
}

Error cudaMemcpy(Address to, Address from, size_t bytes, int kind)
{
    Error error = cudaMemcpyAsync(to, from, bytes, kind, NULL);
    return error ? error : cudaStreamSynchronize(NULL);
}

Error cudaMemcpyPeerAsync(
    Address to, int to_device, Address from, int from_device, size_t bytes, void *stream)
{
    void *target = NULL, *source = NULL;
    Error error = CALL(cuDevicePrimaryCtxRetain, &target, to_device);
    error = error ? error : CALL(cuDevicePrimaryCtxRetain, &source, from_device);
    return error ? error : CALL(cuMemcpyPeerAsync, to, target, from, source, bytes, stream);
}

Error cudaMemsetAsync(Address to, int value, size_t bytes, void *stream)
{
    return bytes == 0 ? SUCCESS
                      : CALL(cuMemsetD8Async, to, (unsigned char)value, bytes, stream);
}

Error cudaMemset(Address to, int value, size_t bytes)
{
    Error error = cudaMemsetAsync(to, value, bytes, NULL);
    return error ? error : cudaStreamSynchronize(NULL);
}

Error cudaIpcGetMemHandle(Handle *handle, Address address)
{
    return CALL(cuIpcGetMemHandle, handle, address);
}

Error cudaIpcOpenMemHandle(Address *address, Handle handle, unsigned int flags)
{
    return CALL(cuIpcOpenMemHandle_v2, address, handle, flags);
}

Error cudaIpcCloseMemHandle(Address address)
{
    return CALL(cuIpcCloseMemHandle, address);
}
