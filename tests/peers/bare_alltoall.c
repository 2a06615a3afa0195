/* An AllToAll among processes of one host that does nothing but what it must if the system copies: a barrier,
 * process_vm_readv from every peer, a barrier. No library that reads the memory of its peers that way can do it in less.
 *
 *   cc -O2 -o bare_alltoall tests/peers/bare_alltoall.c
 *   ./bare_alltoall RANKS BYTES CALLS
 *
 * BYTES is the size of a rank's input. Prints the mean time of a call in microseconds, and that of the fastest. Ranks
 * take the processors in turn, and yield while they wait if there are more of them. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>

#include "bare.h"

#define UNTIMED 3

struct shared {
    _Atomic unsigned arrived, passed;
    pid_t processes[MOST_RANKS];
    unsigned char *inputs[MOST_RANKS];
};

static struct shared *shared;

static void barrier(void)
{
    unsigned before = atomic_load(&shared->passed);
    if (atomic_fetch_add(&shared->arrived, 1) == ranks - 1) {
        atomic_store(&shared->arrived, 0);
        atomic_fetch_add(&shared->passed, 1);
        return;
    }
    for (unsigned looks = 0; atomic_load(&shared->passed) == before; looks++) {
        look_again(looks);
    }
}

static void all_to_all(unsigned char *output, size_t block)
{
    for (unsigned distance = 0; distance < ranks; distance++) {
        unsigned peer = (me + distance) % ranks;
        unsigned char *from = shared->inputs[peer] + me * block, *to = output + peer * block;
        if (peer == me) {
            memcpy(to, from, block);
            continue;
        }
        struct iovec here = {to, block}, there = {from, block};
        if (process_vm_readv(shared->processes[peer], &here, 1, &there, 1, 0) != (ssize_t)block) {
            perror("process_vm_readv");
            exit(1);
        }
    }
}

int main(int count, char **words)
{
    if (count != 4 || (ranks = atoi(words[1])) < 1 || ranks > MOST_RANKS || atol(words[2]) < ranks || atoi(words[3]) < 1) {
        fprintf(stderr, "usage: bare_alltoall RANKS BYTES CALLS\n");
        return 2;
    }
    size_t block = atol(words[2]) / ranks;
    int calls = atoi(words[3]);

    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    start_ranks();
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);

    unsigned char *input = malloc(block * ranks), *output = malloc(block * ranks);
    if (!input || !output) {
        perror("malloc");
        return 1;
    }
    for (unsigned peer = 0; peer < ranks; peer++)
        memset(input + peer * block, me * ranks + peer, block);
    memset(output, 255, block * ranks);
    shared->processes[me] = getpid();
    shared->inputs[me] = input;
    barrier();

    double sum = 0, least = 1e18;
    for (int call = -UNTIMED; call < calls; call++) {
        barrier();
        double began = now();
        barrier();
        all_to_all(output, block);
        barrier();
        double took = now() - began;
        if (call >= 0) {
            sum += took;
            least = took < least ? took : least;
        }
    }
    for (unsigned peer = 0; peer < ranks; peer++) {
        unsigned char expected = peer * ranks + me;
        for (size_t at = 0; at < block; at++) {
            if (output[peer * block + at] != expected) {
                fprintf(stderr, "rank %u: byte %zu from rank %u is wrong\n", me, at, peer);
                return 1;
            }
        }
    }
    if (me == 0) {
        printf("%u ranks, %zu bytes: mean %.1f us, least %.1f us\n", ranks, block * ranks, sum / calls, least);
        return others_failed();
    }
    return 0;
}
