/* Collectives among processes of one host that do nothing but what they must where no process can read another's buffers:
 * what others need is copied once to shared memory, a barrier, and once from there. No plan, no tiles, no headers, no checks.
 *
 *   cc -O3 -march=native -o bare_staged tests/peers/bare_staged.c
 *   ./bare_staged COLLECTIVE RANKS BYTES CALLS
 *
 * COLLECTIVE is all_reduce, all_gather, reduce_scatter or alltoall, of float32; BYTES is the size of a rank's larger buffer.
 * Prints the mean time of a call in microseconds, with one window for each rank and a barrier before it is used again, and with two
 * in turn. Ranks take the processors in turn, and yield while they wait. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "bare.h"

#define UNTIMED 10
/* What is summed in one go. */
#define STRIP 4096

enum collective { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALLTOALL, COLLECTIVES };
static const char *const names[COLLECTIVES] = {"all_reduce", "all_gather", "reduce_scatter", "alltoall"};

/* A rank that has arrived at so many barriers; nobody else's is in its lines. */
struct arrived {
    _Alignas(128) _Atomic unsigned count;
};

static struct arrived *arrived;
static float *windows;
static unsigned barriers;
/* Floats of a block, of which the larger buffer has one for each rank. */
static size_t block;

static void barrier(void)
{
    atomic_store_explicit(&arrived[me].count, ++barriers, memory_order_release);
    for (unsigned rank = 0; rank < ranks; rank++) {
        for (unsigned looks = 0; (int)(atomic_load_explicit(&arrived[rank].count, memory_order_acquire) - barriers) < 0; looks++) {
            look_again(looks);
        }
    }
}

static void copy(float *to, const float *from)
{
    memcpy(to, from, block * sizeof *to);
}

/* The block of a rank in the window of another; there is a second set of windows behind the first. */
static float *window(unsigned set, unsigned of, unsigned index)
{
    return windows + ((size_t)(set * ranks + of) * ranks + index) * block;
}

static void sum(float *restrict to, unsigned set, const float *own)
{
    for (size_t strip = 0; strip < block; strip += STRIP) {
        size_t length = block - strip < STRIP ? block - strip : STRIP;
        memcpy(to + strip, own + strip, length * sizeof *to);
        for (unsigned distance = 1; distance < ranks; distance++) {
            const float *restrict from = window(set, (me + distance) % ranks, me) + strip;
            for (size_t at = 0; at < length; at++)
                to[strip + at] += from[at];
        }
    }
}

static void call(enum collective collective, unsigned set, const float *input, float *output)
{
    if (collective == ALL_GATHER) {
        copy(window(set, me, me), input);
        copy(output + me * block, input);
    } else {
        for (unsigned distance = 1; distance < ranks; distance++) {
            unsigned peer = (me + distance) % ranks;
            copy(window(set, me, peer), input + peer * block);
        }
        if (collective == ALLTOALL)
            copy(output + me * block, input + me * block);
    }
    barrier();
    if (collective == REDUCE_SCATTER) {
        sum(output, set, input + me * block);
        return;
    }
    if (collective == ALL_REDUCE) {
        float *reduced = window(set, me, me);
        sum(reduced, set, input + me * block);
        copy(output + me * block, reduced);
        barrier();
    }
    for (unsigned distance = 1; distance < ranks; distance++) {
        unsigned peer = (me + distance) % ranks;
        copy(output + peer * block, window(set, peer, collective == ALLTOALL ? me : peer));
    }
}

/* Small integers, so that every sum is exact. */
static float element(unsigned rank, size_t at)
{
    return (rank * 7 + at) % 251 + 1;
}

static float expected(enum collective collective, size_t at)
{
    size_t index = at / block, within = at % block;
    float total = 0;
    switch (collective) {
    case ALL_GATHER:
        return element(index, within);
    case ALLTOALL:
        return element(index, me * block + within);
    default:
        for (unsigned rank = 0; rank < ranks; rank++)
            total += element(rank, collective == REDUCE_SCATTER ? me * block + at : at);
        return total;
    }
}

int main(int count, char **words)
{
    unsigned collective = 0;
    while (count == 5 && collective < COLLECTIVES && strcmp(words[1], names[collective]))
        collective++;
    if (count != 5 || collective == COLLECTIVES || (ranks = atoi(words[2])) < 1 || ranks > MOST_RANKS
        || (block = atol(words[3]) / sizeof(float) / ranks) < 1 || atoi(words[4]) < 1) {
        fprintf(stderr, "usage: bare_staged COLLECTIVE RANKS BYTES CALLS\n");
        return 2;
    }
    int calls = atoi(words[4]);
    size_t whole = block * ranks;

    int protection = PROT_READ | PROT_WRITE, flags = MAP_SHARED | MAP_ANONYMOUS;
    arrived = mmap(NULL, MOST_RANKS * sizeof *arrived, protection, flags, -1, 0);
    windows = mmap(NULL, 2 * ranks * whole * sizeof(float), protection, flags, -1, 0);
    if (arrived == MAP_FAILED || windows == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    start_ranks();

    size_t sent = collective == ALL_GATHER ? block : whole, received = collective == REDUCE_SCATTER ? block : whole;
    float *input = malloc(sent * sizeof *input), *output = malloc(received * sizeof *output);
    if (!input || !output) {
        perror("malloc");
        return 1;
    }
    for (size_t at = 0; at < sent; at++)
        input[at] = element(me, at);

    double took[2];
    int wrong = 0;
    for (unsigned sets = 1; sets <= 2; sets++) {
        memset(output, 255, received * sizeof *output);
        double began = 0;
        for (int turn = -UNTIMED; turn < calls; turn++) {
            if (turn == 0) {
                barrier();
                began = now();
            }
            call(collective, (unsigned)(turn + UNTIMED) % sets, input, output);
            if (sets == 1)
                barrier();
        }
        barrier();
        took[sets - 1] = (now() - began) / calls;
        for (size_t at = 0; at < received && !wrong; at++) {
            wrong = output[at] != expected(collective, at);
            if (wrong)
                fprintf(stderr, "rank %u: element %zu is wrong\n", me, at);
        }
    }
    if (me == 0) {
        printf("%s, %u ranks, %zu bytes: one window %.1f us, two %.1f us\n", names[collective], ranks,
            whole * sizeof(float), took[0], took[1]);
        wrong |= others_failed();
    }
    return wrong;
}
