/* What collective_perf.c needs of a library to measure it. */
#ifndef LIBRARY_H
#define LIBRARY_H

#ifdef __cplusplus
extern "C" {
#endif

struct group {
    int rank;
    int ranks;
};

/* The memory of one rank, in floats. */
struct buffers {
    float *input;
    float *output;
};

/* Starts MPI and the library, and says which rank this is; ends both. */
struct group library_begin(void);
void library_end(void);

/* The collectives. They return when the output of this rank is complete. `count` is in floats: of
 * all data in all_reduce and broadcast, else of the block of one rank. */
void all_reduce(struct buffers buffers, int count);
void all_gather(struct buffers buffers, int count);
void reduce_scatter(struct buffers buffers, int count);
void all_to_all(struct buffers buffers, int count);

/* In place in the output, which is all that MPI has; rank 0 is the root. */
void broadcast(struct buffers buffers, int count);

#ifdef __cplusplus
}
#endif

#endif
