/* An AllGather among processes of one host that does nothing but what it must where no process can read another's buffer:
 * every rank copies its block once to a floor of its own in shared memory, and all others copy it from there. No barriers: a
 * rank fills the next place of its floor once all have read what was there.
 *
 *   cc -O3 -march=native -o bare_gather tests/peers/bare_gather.c
 *   ./bare_gather RANKS BYTES FLOOR CALLS
 *
 * BYTES is the size of what is gathered, FLOOR that of a rank's floor in blocks: how many calls it takes until a place is used
 * again. Prints the mean time of a call in microseconds. Ranks take the processors in turn, and yield while they wait. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "bare.h"

#define UNTIMED 20

/* Calls for which a rank has filled its floor, and for which it has read that of another; nobody else's is in these lines. */
struct done {
    _Alignas(128) _Atomic long calls;
};

static struct done *filled, (*read_by)[MOST_RANKS];

static void wait_for(struct done *done, long calls)
{
    for (unsigned looks = 0; atomic_load_explicit(&done->calls, memory_order_acquire) < calls; looks++)
        look_again(looks);
}

static void tell(struct done *done, long calls)
{
    atomic_store_explicit(&done->calls, calls, memory_order_release);
}

static unsigned char element(unsigned rank, size_t at)
{
    return (rank * 7 + at) % 251 + 1;
}

static void *shared(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    return memory;
}

int main(int count, char **words)
{
    size_t block = 0;
    long floor = 0, calls = 0;
    if (count == 5) {
        ranks = atoi(words[1]);
        block = ranks ? atol(words[2]) / ranks : 0;
        floor = atol(words[3]);
        calls = atol(words[4]);
    }
    if (ranks < 1 || ranks > MOST_RANKS || block < 1 || floor < 1 || calls < 1) {
        fprintf(stderr, "usage: bare_gather RANKS BYTES FLOOR CALLS\n");
        return 2;
    }
    filled = shared(MOST_RANKS * sizeof *filled);
    read_by = shared(MOST_RANKS * sizeof *read_by);
    char *floors = shared(ranks * floor * block);
    start_ranks();

    char *input = malloc(block), *output = malloc(block * ranks);
    if (!input || !output) {
        perror("malloc");
        return 1;
    }
    for (size_t at = 0; at < block; at++)
        input[at] = element(me, at);
    memset(output, 255, block * ranks);

    double began = 0;
    for (long call = 0; call < UNTIMED + calls; call++) {
        if (call == UNTIMED)
            began = now();
        size_t place = call % floor * block;
        for (unsigned rank = 0; rank < ranks; rank++) {
            if (rank != me)
                wait_for(&read_by[me][rank], call - floor + 1);
        }
        memcpy(floors + me * floor * block + place, input, block);
        tell(&filled[me], call + 1);
        memcpy(output + me * block, input, block);

        /* Whoever is first is read first. */
        unsigned char is_read[MOST_RANKS] = {0};
        for (unsigned left = ranks - 1, looks = 0; left > 0; looks++) {
            unsigned before = left;
            for (unsigned distance = 1; distance < ranks; distance++) {
                unsigned rank = (me + distance) % ranks;
                if (is_read[rank] || atomic_load_explicit(&filled[rank].calls, memory_order_acquire) <= call)
                    continue;
                memcpy(output + rank * block, floors + rank * floor * block + place, block);
                tell(&read_by[rank][me], call + 1);
                is_read[rank] = 1;
                left--;
            }
            if (left == before)
                look_again(looks);
        }
    }
    double took = (now() - began) / calls;

    int wrong = 0;
    for (size_t at = 0; at < block * ranks && !wrong; at++) {
        wrong = (unsigned char)output[at] != element(at / block, at % block);
        if (wrong)
            fprintf(stderr, "rank %u: byte %zu is wrong\n", me, at);
    }
    if (me == 0) {
        printf("all_gather, %u ranks, %zu bytes, floors of %ld blocks: %.1f us\n", ranks, block * ranks, floor, took);
        wrong |= others_failed();
    }
    return wrong;
}
