/*
 * What a rank of cuda.c has in memory of its device, and whether results are what they should be.
 */
#ifndef CUDA_VALUES_H
#define CUDA_VALUES_H

#include "cuda_check.h"

enum { COUNT = 1003, ALL = MOST_PROCESSES * COUNT };

/* This rank, and memory of its device: for one block and for one of every rank, each twice. */
static ccl_comm_t comm;
static int rank, ranks, devices;
static void *stream, *one, *other, *many, *more;

/* What a rank has at `index` of its input. */
static int32_t value(int of, int index)
{
    return 1000 * of + index % 97;
}

static int32_t sum_at(int index)
{
    int32_t sum = 0;
    for (int of = 0; of < ranks; of++)
        sum += value(of, index);
    return sum;
}

static void *at(void *memory, int element)
{
    return (int32_t *)memory + element;
}

/* Fills memory of the device with what a rank has; the stream has read it when this returns. */
static void fill(void *memory, int count, int of)
{
    int32_t data[ALL];
    for (int i = 0; i < count; i++)
        data[i] = value(of, i);
    if (count > 0)
        copy(memory, data, (size_t)count * sizeof *data, stream);
    CUDA(cuStreamSynchronize(stream));
}

static void wipe(void *memory, int count)
{
    if (count > 0)
        CUDA(cuMemsetD8Async(address_of(memory), 0xff, (size_t)count * sizeof(int32_t), stream));
}

static const int32_t *fetch(const void *memory, int count, void *from)
{
    static int32_t data[ALL];
    if (count > 0)
        copy(data, memory, (size_t)count * sizeof *data, from);
    CUDA(cuStreamSynchronize(from));
    return data;
}

/* Whether memory[i] is what a rank has at first + i. */
static int holds_value(const void *memory, int count, int of, int first)
{
    const int32_t *data = fetch(memory, count, stream);
    for (int i = 0; i < count; i++)
        if (data[i] != value(of, first + i))
            return 0;
    return 1;
}

static int holds_sum(const void *memory, int count, int first)
{
    const int32_t *data = fetch(memory, count, stream);
    for (int i = 0; i < count; i++)
        if (data[i] != sum_at(first + i))
            return 0;
    return 1;
}

/* Whether nothing is written behind the elements. */
static int ends(const void *memory, int count)
{
    return fetch((const int32_t *)memory + count, 1, stream)[0] == -1;
}

#endif
