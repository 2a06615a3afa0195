/*
 * r2ccl: collective communication that survives NIC failures.
 *
 * Link with -lr2ccl. The interface follows NCCL's: the same words, the same numbers for results,
 * element types and operations, the same in-place rules. Buffers are ordinary host memory: a call
 * returns when they may be used again, or, in its "i" form, hands out a request. Calls on memory of
 * CUDA devices, in the order of streams, begin with ccl_cuda_.
 *
 * Rules that hold for every function:
 *
 *  - It returns a ccl_result_t; ccl_get_last_error() has the message and what to do about it.
 *  - Counts are in elements, never in bytes. A count of 0 is legal, and then buffers may be NULL.
 *  - All ranks of a communicator make the same collective calls in the same order, with the same
 *    count, type, operation and root. A mismatch is CCL_INVALID_USAGE, not a hang.
 *  - Input and output either do not overlap or are exactly the in-place form that the function
 *    documents. Everything else is CCL_INVALID_ARGUMENT or CCL_INVALID_USAGE.
 *  - No call waits for ever: after the communicator's timeout it is CCL_TIMEOUT, and the message
 *    names the ranks that were waited for.
 *  - Functions may be called from any thread. Calls on one communicator from several threads are
 *    legal if all ranks see them in the same order.
 *  - A communicator belongs to the process that created it. A forked child may create its own;
 *    using its parent's is CCL_INVALID_USAGE.
 *  - Using a communicator, request or registration that is gone already is CCL_INVALID_ARGUMENT.
 */
#ifndef R2CCL_CCL_H
#define R2CCL_CCL_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#define CCL_MAJOR 0
#define CCL_MINOR 1
#define CCL_PATCH 0
/* What ccl_get_version() reports: 10000 * major + 100 * minor + patch. */
#define CCL_VERSION_CODE (CCL_MAJOR * 10000 + CCL_MINOR * 100 + CCL_PATCH)

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Types ---------------------------------------------------------------------------------- */

/* What a call returns. The numbers are those of ncclResult_t. */
typedef enum ccl_result {
    CCL_SUCCESS = 0,
    CCL_UNHANDLED_CUDA_ERROR = 1, /* a call of CUDA failed */
    CCL_SYSTEM_ERROR = 2,         /* a call of the operating system failed */
    CCL_INTERNAL_ERROR = 3,       /* a bug of the library */
    CCL_INVALID_ARGUMENT = 4,     /* an argument has an impossible value */
    CCL_INVALID_USAGE = 5,        /* the calls of the program, or of the ranks, do not fit together */
    CCL_REMOTE_ERROR = 6,         /* a peer is gone, or aborted the communicator */
    CCL_IN_PROGRESS = 7,          /* goes on in the background: poll ccl_comm_get_async_error() */
    CCL_TIMEOUT = 8,              /* the deadline passed */
    CCL_NUM_RESULTS = 9
} ccl_result_t;

/* Type of one element. The numbers are those of ncclDataType_t. */
typedef enum ccl_datatype {
    CCL_INT8 = 0,
    CCL_UINT8 = 1,
    CCL_INT32 = 2,
    CCL_UINT32 = 3,
    CCL_INT64 = 4,
    CCL_UINT64 = 5,
    CCL_FLOAT16 = 6,
    CCL_FLOAT32 = 7,
    CCL_FLOAT64 = 8,
    CCL_BFLOAT16 = 9,
    CCL_FLOAT8E4M3 = 10,
    CCL_FLOAT8E5M2 = 11,
    CCL_NUM_DATATYPES = 12
} ccl_datatype_t;

/* How contributions are combined. The numbers are those of ncclRedOp_t. Integers wrap. A NaN among
 * the inputs of MAX or MIN gives NaN. AVG divides integers after the sum, rounding towards zero.
 * Numbers from CCL_NUM_OPS on come from ccl_redop_create_premulsum(). */
typedef enum ccl_redop {
    CCL_SUM = 0,
    CCL_PROD = 1,
    CCL_MAX = 2,
    CCL_MIN = 3,
    CCL_AVG = 4,
    CCL_NUM_OPS = 5,
    CCL_MAX_REDOP = 0x7fffffff
} ccl_redop_t;

/* A kind of call, for ccl_comm_explain(). */
typedef enum ccl_collective {
    CCL_ALLREDUCE = 0,
    CCL_ALLGATHER = 1,
    CCL_REDUCESCATTER = 2,
    CCL_BROADCAST = 3,
    CCL_REDUCE = 4,
    CCL_ALLTOALL = 5,
    CCL_ALLTOALLV = 6,
    CCL_GATHER = 7,
    CCL_SCATTER = 8,
    CCL_BARRIER = 9
} ccl_collective_t;

/* One rank's membership in a communicator. An opaque name: it points at nothing that may be read. */
typedef struct ccl_comm *ccl_comm_t;

/* A started operation. CCL_REQUEST_NULL stands for one that is done and freed. */
typedef struct ccl_request *ccl_request_t;
#define CCL_REQUEST_NULL ((ccl_request_t)0)

/* Brings the ranks of a new communicator together. Plain bytes: send them to the other ranks by
 * any means, and keep them from people who must not join. */
#define CCL_UNIQUE_ID_BYTES 128
typedef struct ccl_unique_id {
    char internal[CCL_UNIQUE_ID_BYTES];
} ccl_unique_id_t;

/* A field of ccl_config_t with this value has its default. */
#define CCL_CONFIG_UNDEF_INT INT_MIN
#define CCL_CONFIG_UNDEF_PTR NULL
#define CCL_CONFIG_MAGIC 0x72326363u

/* How to create a communicator. Start from CCL_CONFIG_INITIALIZER and set fields. The first three
 * fields tell the library which header the program was compiled with, so that programs and
 * libraries of different age work together: fields that are newer than the program have their
 * defaults, fields that are newer than the library are not looked at. */
typedef struct ccl_config {
    size_t size;          /* sizeof(ccl_config_t) */
    unsigned int magic;   /* CCL_CONFIG_MAGIC */
    unsigned int version; /* CCL_VERSION_CODE */
    int blocking;         /* 1 (default): calls return when they are done. 0: see below */
    int timeout_ms;       /* deadline of every call, milliseconds, > 0; default: R2CCL_TIMEOUT */
    const char *comm_name; /* name in messages and logs, copied; default: none */
    int split_share;      /* 0 or 1; accepted for NCCL's sake, without effect */
} ccl_config_t;

#define CCL_CONFIG_INITIALIZER                                                                    \
    {                                                                                             \
        sizeof(ccl_config_t), CCL_CONFIG_MAGIC, CCL_VERSION_CODE, CCL_CONFIG_UNDEF_INT,           \
            CCL_CONFIG_UNDEF_INT, CCL_CONFIG_UNDEF_PTR, CCL_CONFIG_UNDEF_INT                      \
    }

/* ---- Version and errors --------------------------------------------------------------------- */

/* The version of the library, comparable with CCL_VERSION_CODE. */
ccl_result_t ccl_get_version(int *version);

/* One sentence for a result; never NULL; lives for ever. */
const char *ccl_get_error_string(ccl_result_t result);

/* What the last failed call said, with a remedy. With a communicator: the last failure on it, in
 * whichever thread, or the error that ended it. With NULL: the last failure in this thread. "" if
 * there was none. The text lives until this thread calls the function again. */
const char *ccl_get_last_error(ccl_comm_t comm);

/* ---- Creating communicators ----------------------------------------------------------------- */

/* Makes an id. One process calls it and gives the bytes to all ranks. That process keeps the place
 * where they meet, and through which they hear of each other afterwards: if it ends before them, the
 * communicator fails. A process that forks its ranks calls it in one of them, or stays alive. */
ccl_result_t ccl_get_unique_id(ccl_unique_id_t *id);

/* Joins the communicator `id` as `rank` of `nranks`. Collective: all ranks call it, as processes or
 * threads. A thread that holds several ranks calls it between ccl_group_start() and
 * ccl_group_end(). On failure *comm is NULL; inside a group, where the failure shows at
 * ccl_group_end(), *comm remains to be given to ccl_comm_destroy() or ccl_comm_abort(). */
ccl_result_t ccl_comm_init_rank(ccl_comm_t *comm, int nranks, ccl_unique_id_t id, int rank);

/* As ccl_comm_init_rank(). `config` may be NULL.
 *
 * With blocking = 0 creation, split, shrink, grow, finalize and the blocking form of every operation return
 * CCL_IN_PROGRESS and go on in the background. ccl_comm_get_async_error() says CCL_IN_PROGRESS until
 * they are done; until then buffers belong to the library, and a further call on the communicator
 * is CCL_INVALID_USAGE, except ccl_comm_get_async_error(), ccl_comm_abort() and ccl_comm_shrink() with
 * CCL_SHRINK_ABORT. */
ccl_result_t ccl_comm_init_rank_config(ccl_comm_t *comm, int nranks, ccl_unique_id_t id, int rank,
                                       const ccl_config_t *config);

/* Creates `nranks` communicators of this one process: comms[i] is rank i. A single thread that uses
 * several of them puts its calls into a group. */
ccl_result_t ccl_comm_init_all(ccl_comm_t *comms, int nranks);

/* Joins the communicator of all processes of the job, with rank, size and meeting point from the
 * environment of `r2ccl run`, torchrun, mpirun or Slurm. `config` may be NULL. */
ccl_result_t ccl_comm_init_from_environment(ccl_comm_t *comm, const ccl_config_t *config);

/* Collective over `comm`: ranks with the same `color` >= 0 form a new communicator, ordered by
 * `key`, then by rank. CCL_SPLIT_NOCOLOR takes part and gets NULL. `config` NULL: as `comm`. A rank
 * that does not call it in time, or cannot begin its part, ends `comm` on all ranks. */
#define CCL_SPLIT_NOCOLOR (-1)
ccl_result_t ccl_comm_split(ccl_comm_t comm, int color, int key, ccl_comm_t *newcomm,
                            const ccl_config_t *config);

/* A communicator of the ranks of `comm` that are not among the `exclude_count` ones at
 * `exclude_ranks`, in their order: to go on without ranks that are lost, or, with a count of 0, with
 * all of them after an error. Collective among these ranks, which exclude the same ones, and only
 * among them. `comm` may have failed, and may have lost the process in which its ranks met, but must
 * not be finalized. `config` NULL: as `comm`. `flags`:
 *   CCL_SHRINK_DEFAULT  operations that were started on `comm` are waited for first.
 *   CCL_SHRINK_ABORT    they end with CCL_REMOTE_ERROR, and so does `comm`, on all ranks.
 * A failure is none of `comm`: where one of the other ranks is lost, too, the call can be made again
 * with more ranks excluded; see ccl_comm_get_lost_ranks(). `comm` remains to be given to ccl_comm_destroy() or ccl_comm_abort(). */
#define CCL_SHRINK_DEFAULT 0x00
#define CCL_SHRINK_ABORT 0x01
ccl_result_t ccl_comm_shrink(ccl_comm_t comm, const int *exclude_ranks, int exclude_count,
                             ccl_comm_t *newcomm, const ccl_config_t *config, int flags);

/* Makes an id with which new ranks join those of `comm` in ccl_comm_grow(). One rank calls it, once
 * for each time that `comm` grows, and gives the bytes to the new ranks. What ccl_get_unique_id()
 * says of its process holds of this one for the new communicator. The place where they meet closes,
 * and who waits there is told, when growing has failed, this is called anew, or `comm` is shrunk,
 * finalized, aborted or destroyed. */
ccl_result_t ccl_comm_get_unique_id(ccl_comm_t comm, ccl_unique_id_t *id);

/* A communicator of `nranks` ranks: those of `comm`, which keep their numbers, and new ones behind
 * them. Collective among all of these:
 *   ranks of `comm`  `rank` is -1. `id` is not looked at: they tell each other.
 *   new ranks        `comm` is NULL, `id` that of ccl_comm_get_unique_id() of one of the others, and
 *                    `rank` the number of this one. Then as ccl_comm_init_rank_config().
 * `config` NULL: as `comm`. If new ranks do not come, `comm` remains as it is, and ranks can try
 * again. A rank of `comm` that does not call it in time ends `comm` on all ranks. */
ccl_result_t ccl_comm_grow(ccl_comm_t comm, int nranks, const ccl_unique_id_t *id, int rank,
                           ccl_comm_t *newcomm, const ccl_config_t *config);

/* Sets the deadline of the calls that begin from now on, in milliseconds > 0; a call that has begun
 * keeps its own. Local: other ranks have their own deadlines, and the first that passes ends the
 * communicator with CCL_TIMEOUT. */
ccl_result_t ccl_comm_set_timeout(ccl_comm_t comm, int timeout_ms);

/* ---- Ending communicators ------------------------------------------------------------------- */

/* Waits for everything that was started, then says good-bye to the peers. Only
 * ccl_comm_get_async_error(), ccl_comm_count(), ccl_comm_user_rank(), ccl_comm_destroy() and
 * ccl_comm_abort() may follow. */
ccl_result_t ccl_comm_finalize(ccl_comm_t comm);

/* Frees a communicator, finalizing it first where that has not happened: it returns when that is
 * done, also with blocking = 0. NULL is ignored. */
ccl_result_t ccl_comm_destroy(ccl_comm_t comm);

/* Ends all calls on the communicator, on all ranks, with CCL_REMOTE_ERROR, and frees it. Returns
 * without waiting for anybody, and may be called while other threads are inside a call. */
ccl_result_t ccl_comm_abort(ccl_comm_t comm);

/* Writes to *async_error: CCL_IN_PROGRESS while something goes on (blocking = 0), the error that
 * ended the communicator or the last background operation, else CCL_SUCCESS. */
ccl_result_t ccl_comm_get_async_error(ccl_comm_t comm, ccl_result_t *async_error);

/* ---- Asking communicators ------------------------------------------------------------------- */

/* The number of ranks. */
ccl_result_t ccl_comm_count(ccl_comm_t comm, int *count);

/* This member's rank, 0 <= rank < count. */
ccl_result_t ccl_comm_user_rank(ccl_comm_t comm, int *rank);

/* Writes the algorithms that could serve a call, their predicted times and the choice, as text.
 * At most `capacity` bytes are written, always ended by a NUL where `capacity` > 0. *needed (may be
 * NULL) becomes the size of the whole text with its NUL. `op` and `root` are looked at where the
 * collective has them. Local: no other rank is asked. */
ccl_result_t ccl_comm_explain(ccl_comm_t comm, ccl_collective_t collective, size_t count,
                              ccl_datatype_t datatype, ccl_redop_t op, int root, char *text,
                              size_t capacity, size_t *needed);

/* ---- Health of the rails -------------------------------------------------------------------- */

/* Whether a rail, a network card of a rank, carries data. */
typedef enum ccl_rail_state {
    CCL_RAIL_UP = 0,
    CCL_RAIL_SUSPECT = 1,     /* something is odd; it is being probed */
    CCL_RAIL_DOWN = 2,        /* it does not work; calls go on over the others */
    CCL_RAIL_QUARANTINED = 3  /* it works, but has failed too often lately */
} ccl_rail_state_t;

/* What is broken, seen from the rank of the rail. */
typedef enum ccl_rail_verdict {
    CCL_VERDICT_LOCAL_NIC = 0,
    CCL_VERDICT_REMOTE_NIC = 1,
    CCL_VERDICT_PATH = 2,
    CCL_VERDICT_UNKNOWN = 3 /* nothing, or the evidence does not say what */
} ccl_rail_verdict_t;

#define CCL_EVIDENCE_BYTES 256
#define CCL_NO_FAULT UINT64_MAX

typedef struct ccl_rail_health {
    int rank;
    int rail;                /* its number among the rails of the rank */
    int state;               /* a ccl_rail_state_t */
    int verdict;             /* a ccl_rail_verdict_t, of now or of the last fault */
    double bytes_per_second; /* in each direction */
    uint64_t faults;         /* times it went down */
    uint64_t returns;        /* times it came back */
    uint64_t tiles;          /* tiles sent on it */
    uint64_t bytes;
    uint64_t resent_tiles; /* tiles sent again, on any rail, that had been sent on this one */
    uint64_t resent_bytes;
    uint64_t last_fault_ns; /* since the communicator was made; CCL_NO_FAULT */
    char evidence[CCL_EVIDENCE_BYTES]; /* what speaks for the verdict */
} ccl_rail_health_t;

/* How all rails of all ranks are, in order of rank and rail; of other ranks as of their last report,
 * which comes with every change. Writes at most `capacity` records; `record_size` is
 * sizeof(ccl_rail_health_t). *count (may be NULL) becomes the number of rails there are; `rails` may
 * be NULL where `capacity` is 0. Local: no other rank is asked. */
ccl_result_t ccl_comm_get_health(ccl_comm_t comm, ccl_rail_health_t *rails, size_t record_size,
                                 size_t capacity, size_t *count);

/* The ranks that are lost to this one as far as is known, in order: those that have ended, left or
 * cannot be reached, and those that a ccl_comm_shrink() has waited for in vain, or that another rank
 * excluded there. Where `comm` has failed, who leaves after this rank has called ccl_comm_shrink() or
 * ccl_comm_grow() may have gone on, and is not counted before another ccl_comm_shrink() finds nobody
 * there. Writes at most `capacity` of them; *count (may be NULL) becomes their number; `ranks` may be
 * NULL where `capacity` is 0. Local: what one rank knows another may not know yet. */
ccl_result_t ccl_comm_get_lost_ranks(ccl_comm_t comm, int *ranks, size_t capacity, size_t *count);

/* ---- Collectives ---------------------------------------------------------------------------- */
/* n is the number of ranks; block i of a buffer is its elements [i * count, (i + 1) * count).      */

/* Every rank gets the reduction of all contributions. send, recv: count elements.
 * In place: send == recv. */
ccl_result_t ccl_allreduce(const void *send, void *recv, size_t count, ccl_datatype_t datatype,
                           ccl_redop_t op, ccl_comm_t comm);

/* Block i of every recv becomes the contribution of rank i. send: count elements, recv: n * count.
 * In place: send == recv + rank * count elements. */
ccl_result_t ccl_allgather(const void *send, void *recv, size_t count, ccl_datatype_t datatype,
                           ccl_comm_t comm);

/* Rank i gets block i of the reduction. send: n * count elements, recv: count.
 * In place: recv == send + rank * count elements. */
ccl_result_t ccl_reducescatter(const void *send, void *recv, size_t count, ccl_datatype_t datatype,
                               ccl_redop_t op, ccl_comm_t comm);

/* Every recv becomes the root's send. send (looked at on the root only), recv: count elements.
 * In place: send == recv. */
ccl_result_t ccl_broadcast(const void *send, void *recv, size_t count, ccl_datatype_t datatype,
                           int root, ccl_comm_t comm);

/* The root gets the reduction of all contributions. send: count elements, recv (root only): count.
 * In place, on the root: send == recv. */
ccl_result_t ccl_reduce(const void *send, void *recv, size_t count, ccl_datatype_t datatype,
                        ccl_redop_t op, int root, ccl_comm_t comm);

/* Block j of rank i's send becomes block i of rank j's recv. send, recv: n * count elements.
 * In place: send == recv. */
ccl_result_t ccl_alltoall(const void *send, void *recv, size_t count, ccl_datatype_t datatype,
                          ccl_comm_t comm);

/* As ccl_alltoall() with blocks of different sizes: send_counts[j] elements at element
 * send_displacements[j] of send go to rank j; recv_counts[i] elements from rank i arrive at element
 * recv_displacements[i] of recv. The arrays have n entries and are copied. What i sends to j must
 * be what j expects from i. In place: send == recv. */
ccl_result_t ccl_alltoallv(const void *send, const size_t *send_counts,
                           const size_t *send_displacements, void *recv, const size_t *recv_counts,
                           const size_t *recv_displacements, ccl_datatype_t datatype,
                           ccl_comm_t comm);

/* Block i of the root's recv becomes the contribution of rank i. send: count elements, recv (root
 * only): n * count. In place, on the root: send == recv + root * count elements. */
ccl_result_t ccl_gather(const void *send, void *recv, size_t count, ccl_datatype_t datatype,
                        int root, ccl_comm_t comm);

/* Rank i's recv becomes block i of the root's send. send (root only): n * count elements, recv:
 * count. In place, on the root: recv == send + root * count elements. */
ccl_result_t ccl_scatter(const void *send, void *recv, size_t count, ccl_datatype_t datatype,
                         int root, ccl_comm_t comm);

/* Nobody leaves before everybody has entered. */
ccl_result_t ccl_barrier(ccl_comm_t comm);

/* ---- Point to point ------------------------------------------------------------------------- */

/* Sends count elements to `peer`, which calls ccl_recv() for as many bytes; types are not compared. If
 * it expects another number, the receiver gets CCL_INVALID_USAGE, and the sender, too, if it has not
 * returned, else from its next call. Outside a group it may wait for the peer. Messages between two
 * ranks arrive in the order of the calls. */
ccl_result_t ccl_send(const void *send, size_t count, ccl_datatype_t datatype, int peer,
                      ccl_comm_t comm);

/* Receives count elements from `peer`. */
ccl_result_t ccl_recv(void *recv, size_t count, ccl_datatype_t datatype, int peer,
                      ccl_comm_t comm);

/* ---- Groups --------------------------------------------------------------------------------- */

/* Opens a group in this thread. Calls up to the matching ccl_group_end() are only collected and
 * return CCL_SUCCESS; their buffers belong to the library until then. Groups nest: the outermost
 * end counts. Collectives of one communicator run in order, and then its sends and receives progress
 * together, wherever they stand among them; different communicators progress together. */
ccl_result_t ccl_group_start(void);

/* Runs what was collected and returns when it is done, with the first error. If a call inside the
 * group had a wrong argument, nothing of the group runs. With communicators of blocking = 0 it
 * returns CCL_IN_PROGRESS; a group must not mix both kinds (CCL_INVALID_USAGE). */
ccl_result_t ccl_group_end(void);

/* What ccl_group_simulate_end() tells. Start from CCL_SIM_INFO_INITIALIZER. */
typedef struct ccl_sim_info {
    size_t size;          /* sizeof(ccl_sim_info_t) */
    unsigned int magic;   /* CCL_SIM_INFO_MAGIC */
    unsigned int version; /* CCL_VERSION_CODE */
    float estimated_time; /* microseconds; CCL_UNDEF_FLOAT before the call */
} ccl_sim_info_t;

#define CCL_UNDEF_FLOAT (-1.0f)
#define CCL_SIM_INFO_MAGIC 0x72327369u
#define CCL_SIM_INFO_INITIALIZER                                                                  \
    {                                                                                             \
        sizeof(ccl_sim_info_t), CCL_SIM_INFO_MAGIC, CCL_VERSION_CODE, CCL_UNDEF_FLOAT             \
    }

/* Closes the group like ccl_group_end(), but runs nothing of it: tells how long it would take as the
 * planner predicts, the longest of the communicators in it. Communicators that were to be created or
 * ended in the group are nevertheless. An inner end only closes its level, and tells 0. */
ccl_result_t ccl_group_simulate_end(ccl_sim_info_t *info);

/* ---- Non-blocking forms --------------------------------------------------------------------- */
/* ccl_iX is ccl_X, except that it only starts: until the request is done, the buffers belong to the
 * library. Operations of one communicator run in the order in which they were started. If the call
 * itself fails, *request is CCL_REQUEST_NULL. Inside a group they are CCL_INVALID_USAGE.             */

ccl_result_t ccl_iallreduce(const void *send, void *recv, size_t count, ccl_datatype_t datatype,
                            ccl_redop_t op, ccl_comm_t comm, ccl_request_t *request);
ccl_result_t ccl_iallgather(const void *send, void *recv, size_t count, ccl_datatype_t datatype,
                            ccl_comm_t comm, ccl_request_t *request);
ccl_result_t ccl_ireducescatter(const void *send, void *recv, size_t count,
                                ccl_datatype_t datatype, ccl_redop_t op, ccl_comm_t comm,
                                ccl_request_t *request);
ccl_result_t ccl_ibroadcast(const void *send, void *recv, size_t count, ccl_datatype_t datatype,
                            int root, ccl_comm_t comm, ccl_request_t *request);
ccl_result_t ccl_ireduce(const void *send, void *recv, size_t count, ccl_datatype_t datatype,
                         ccl_redop_t op, int root, ccl_comm_t comm, ccl_request_t *request);
ccl_result_t ccl_ialltoall(const void *send, void *recv, size_t count, ccl_datatype_t datatype,
                           ccl_comm_t comm, ccl_request_t *request);
ccl_result_t ccl_ialltoallv(const void *send, const size_t *send_counts,
                            const size_t *send_displacements, void *recv,
                            const size_t *recv_counts, const size_t *recv_displacements,
                            ccl_datatype_t datatype, ccl_comm_t comm, ccl_request_t *request);
ccl_result_t ccl_igather(const void *send, void *recv, size_t count, ccl_datatype_t datatype,
                         int root, ccl_comm_t comm, ccl_request_t *request);
ccl_result_t ccl_iscatter(const void *send, void *recv, size_t count, ccl_datatype_t datatype,
                          int root, ccl_comm_t comm, ccl_request_t *request);
ccl_result_t ccl_ibarrier(ccl_comm_t comm, ccl_request_t *request);
ccl_result_t ccl_isend(const void *send, size_t count, ccl_datatype_t datatype, int peer,
                       ccl_comm_t comm, ccl_request_t *request);
ccl_result_t ccl_irecv(void *recv, size_t count, ccl_datatype_t datatype, int peer,
                       ccl_comm_t comm, ccl_request_t *request);

/* Never waits. Not done: *done = 0 and CCL_SUCCESS. Done: *done = 1, the request is freed, *request
 * becomes CCL_REQUEST_NULL, and the result is that of the operation. CCL_REQUEST_NULL is done. */
ccl_result_t ccl_request_test(ccl_request_t *request, int *done);

/* Waits until the operation is done, frees the request, sets *request to CCL_REQUEST_NULL and
 * returns the result of the operation. CCL_REQUEST_NULL is done. */
ccl_result_t ccl_request_wait(ccl_request_t *request);

/* Gives up the request, not the operation, and sets *request to CCL_REQUEST_NULL. The operation goes
 * on; its buffers belong to the library until ccl_comm_finalize() returns, and its result shows only
 * in ccl_comm_get_async_error(), if it ends the communicator. CCL_REQUEST_NULL is ignored. */
ccl_result_t ccl_request_free(ccl_request_t *request);

/* ---- On memory of CUDA devices --------------------------------------------------------------- */
/* ccl_cuda_X is ccl_X, with the same shapes and in-place forms, on memory of a CUDA device, in the order
 * of a stream. A call returns at once: what the stream does before the call is in `send`, and what comes
 * later on the stream finds the result in `recv`. Memory and stream belong to the call until the stream
 * has come past it (cuStreamSynchronize, an event); with R2CCL_CUDA_NETWORK, memory of a call that has failed until
 * ccl_comm_destroy() has returned, in less than the communicator's timeout. After ccl_comm_abort() nothing tells when it
 * is free: destroy a communicator with such a call before its memory is freed, or used for anything else. Data goes through pinned memory of the host, twice
 * R2CCL_CUDA_STAGING_BYTES for each communicator, or, between ranks of one host that have kernels of the library,
 * from device to device.
 *
 *  - `stream` is a CUstream or cudaStream_t of the primary context of a device, which is the context
 *    that the CUDA runtime uses. NULL is the default stream of the context that is current in the thread.
 *  - The device of a communicator is that of the stream of its first such call, because a stream names
 *    its device and a communicator is made without one; only then is memory pinned. All further calls
 *    need streams and memory of that device. It is current in the thread that makes the first call;
 *    which context is current is the same after a call as before.
 *  - Ranks of one process use streams that do not wait for each other: not the default stream. A thread
 *    that holds several ranks puts their calls into a group: pinning memory may wait for the device, and
 *    in a group it comes before any stream waits for another rank.
 *  - Calls on a communicator are done in the order in which they were made, on whichever streams, and on
 *    memory of the host too: those wait for the streams of the calls before them.
 *  - All ranks make the ccl_cuda_ form of a call, or none: what does not fit into the pinned memory is
 *    cut into pieces, which are calls of their own to ranks that cut nothing.
 *  - Memory of the host, pinned memory and memory of another device are CCL_INVALID_ARGUMENT, and a
 *    stream that is captured into a graph is CCL_INVALID_USAGE; nothing has happened then.
 *  - CCL_UNHANDLED_CUDA_ERROR: a call of CUDA failed, or there is no driver. A driver that knows the
 *    stream and refuses anything of the call has ended the communicator. CCL_INVALID_USAGE, with a
 *    message that says so: the library is built without the feature `cuda`.
 *  - What goes wrong after a call has returned comes by ccl_comm_get_async_error(). Streams go on then,
 *    and what they find in `recv` is worth nothing. Other processes may store into it for some
 *    milliseconds more, until they have heard of it, unless R2CCL_CUDA_P2P is `staged`.
 *  - The deadline of a call counts from when its stream has come to it.
 *  - blocking = 0 makes no difference to them, except that they are CCL_INVALID_USAGE as long as
 *    something else is CCL_IN_PROGRESS.
 *  - In a group they are put on their streams at its end. Sends and receives of a group progress
 *    together. Calls of one communicator on several streams begin when all these streams have come to
 *    them, and all these streams wait for all of them. Calls on memory of the host and of a device on
 *    one communicator do not fit into one group (CCL_INVALID_USAGE at its end), nor do any of a device
 *    into ccl_group_simulate_end().
 *  - ccl_comm_finalize() and ccl_comm_destroy() wait until the streams have come to all calls and these
 *    are done; if a stream does not come to its call within the communicator's timeout, the call ends
 *    with CCL_TIMEOUT. ccl_comm_destroy() also frees what was pinned, which waits for all streams of the
 *    device; after the timeout that is left to the background. ccl_comm_abort() leaves it to the
 *    background at once and waits for nothing, also where memory of failed calls is not free yet. In all of these cases streams
 *    go on.                                                                                            */

ccl_result_t ccl_cuda_allreduce(const void *send, void *recv, size_t count,
                                ccl_datatype_t datatype, ccl_redop_t op, ccl_comm_t comm,
                                void *stream);
ccl_result_t ccl_cuda_allgather(const void *send, void *recv, size_t count,
                                ccl_datatype_t datatype, ccl_comm_t comm, void *stream);
ccl_result_t ccl_cuda_reducescatter(const void *send, void *recv, size_t count,
                                    ccl_datatype_t datatype, ccl_redop_t op, ccl_comm_t comm,
                                    void *stream);
ccl_result_t ccl_cuda_broadcast(const void *send, void *recv, size_t count,
                                ccl_datatype_t datatype, int root, ccl_comm_t comm, void *stream);
ccl_result_t ccl_cuda_reduce(const void *send, void *recv, size_t count, ccl_datatype_t datatype,
                             ccl_redop_t op, int root, ccl_comm_t comm, void *stream);
ccl_result_t ccl_cuda_alltoall(const void *send, void *recv, size_t count,
                               ccl_datatype_t datatype, ccl_comm_t comm, void *stream);

/* The arrays are memory of the host, and are read before the call returns. Blocks may be larger than
 * R2CCL_CUDA_STAGING_BYTES. In place the communicator keeps memory of the device that is as large as the input. */
ccl_result_t ccl_cuda_alltoallv(const void *send, const size_t *send_counts,
                                const size_t *send_displacements, void *recv,
                                const size_t *recv_counts, const size_t *recv_displacements,
                                ccl_datatype_t datatype, ccl_comm_t comm, void *stream);
ccl_result_t ccl_cuda_gather(const void *send, void *recv, size_t count, ccl_datatype_t datatype,
                             int root, ccl_comm_t comm, void *stream);
ccl_result_t ccl_cuda_scatter(const void *send, void *recv, size_t count, ccl_datatype_t datatype,
                              int root, ccl_comm_t comm, void *stream);

/* The stream goes on when the streams of all ranks have come to it. */
ccl_result_t ccl_cuda_barrier(ccl_comm_t comm, void *stream);

/* The stream waits for the peer: messages in both directions belong into a group. More than two large
 * messages per rank in one group may not fit into R2CCL_CUDA_STAGING_BYTES (CCL_INVALID_ARGUMENT). */
ccl_result_t ccl_cuda_send(const void *send, size_t count, ccl_datatype_t datatype, int peer,
                           ccl_comm_t comm, void *stream);
ccl_result_t ccl_cuda_recv(void *recv, size_t count, ccl_datatype_t datatype, int peer,
                           ccl_comm_t comm, void *stream);

/* Windows: memory of CUDA devices that all ranks register together, as ncclCommWindowRegister() does. Then
 * ranks of one host know where everybody's memory is, and copy engines do large calls in it; docs/cuda.md
 * says which.
 *
 *  - All ranks call it with the same size, > 0, in the same order among windows and calls, and it returns
 *    when all have; with blocking = 0 it is CCL_IN_PROGRESS until then. In a group the end of the group
 *    waits: a thread that holds several ranks registers for all of them in one.
 *  - With CCL_WIN_COLL_SYMMETRIC the program promises that, where the `recv` of an AllGather or Broadcast,
 *    or the `send` of an AllToAll, is in the window on one rank, it is on all, at the same offset; and that
 *    an AllToAll is in place on all ranks or on none. A rank that breaks it ends the communicator at the
 *    deadline. With CCL_WIN_DEFAULT nothing is promised, and nothing is different.
 *  - Where ranks cannot reach each other's memory the window is of no use, and calls go another way.
 *  - Sizes or flags that differ are CCL_INVALID_ARGUMENT on all ranks, with a message that names two.
 *  - `stream` names the device, as in every call; nothing is put on it.
 *  - The memory must not be freed before the window is deregistered; nor, when the communicator has failed,
 *    before the streams of all ranks of the process have come past their calls.                           */

typedef struct ccl_window *ccl_window_t;

typedef enum ccl_window_flags {
    CCL_WIN_DEFAULT = 0,
    CCL_WIN_COLL_SYMMETRIC = 1
} ccl_window_flags_t;

ccl_result_t ccl_cuda_window_register(ccl_comm_t comm, void *buffer, size_t size,
                                      ccl_window_t *window, int flags, void *stream);

/* Ends a window, when all calls before are over. All ranks call it, and it returns when all have. What is
 * still registered when the communicator is destroyed ends then. */
ccl_result_t ccl_cuda_window_deregister(ccl_comm_t comm, ccl_window_t window);

/* ---- Reductions of the user ----------------------------------------------------------------- */

/* Makes an operation of `comm` that multiplies this rank's contribution by *scalar (read now, of
 * type `datatype`) and sums. It is used with that type only; ranks may have different scalars.
 * Numbers start at CCL_NUM_OPS and are not used twice. */
ccl_result_t ccl_redop_create_premulsum(ccl_redop_t *op, const void *scalar,
                                        ccl_datatype_t datatype, ccl_comm_t comm);

/* Forgets such an operation; calls that were made with it go on. */
ccl_result_t ccl_redop_destroy(ccl_redop_t op, ccl_comm_t comm);

/* ---- Memory --------------------------------------------------------------------------------- */

/* Allocates `size` bytes, > 0: aligned to a page, zero. Ranks of the same host read it in place, and write
 * results into it, which saves copies in every collective on large buffers in it. */
ccl_result_t ccl_mem_alloc(void **pointer, size_t size);

/* Frees what ccl_mem_alloc() returned; where it is registered, with its last registration. NULL is
 * ignored. Ranks that have used it in place may keep its pages from the host until they use other memory
 * in place for the first time, or destroy their communicator. */
ccl_result_t ccl_mem_free(void *pointer);

/* Tells the communicator that [buffer, buffer + size), size > 0, will be used often. Local, and only
 * a hint: results do not depend on it. Shared memory of your own (a memfd, or a file in /dev/shm, mapped
 * with MAP_SHARED to be read and written, and open, or with its name still there) is then used in place by
 * ranks of the same host as that of ccl_mem_alloc() is, but not if it is of huge pages that are reserved
 * (hugetlbfs), or sealed against writing. The memory must stay mapped, and its file as long
 * as it is, until ccl_comm_deregister(). */
ccl_result_t ccl_comm_register(ccl_comm_t comm, void *buffer, size_t size, void **registration);

/* Takes that back. What is still registered when the communicator is destroyed is taken back then. */
ccl_result_t ccl_comm_deregister(ccl_comm_t comm, void *registration);

/* ---- Queue pairs that survive their NIC ------------------------------------------------------ */
/* For programs that are not collectives: one process writes into, reads from or counts in the memory
 * of another, or sends it messages, with the operations of RDMA verbs (reliable connected service).
 * When the NIC in use dies, the queue pair goes on over another one; what is guaranteed about requests
 * that were under way then is the evidence, chosen for each queue pair: docs/virtual-queue-pair.md.
 *
 * Two processes meet over a TCP connection, on which both prove that they have the same key, and over
 * which they connect queue pairs and tell each other where memory is. Keys are pass phrases; where one
 * is NULL, it is R2CCL_JOB_KEY.
 *
 * Nothing serves a queue pair in the background. Its own requests, those of the peer and repairs make
 * progress in ccl_vqp_poll() and ccl_vqp_wait(); so an end that expects nothing any more polls until
 * its peer has said that it is done, too (ccl_vqp_has_message()).
 *
 * Calls on one queue pair, or one meeting, from several threads exclude each other; while one waits,
 * the others do. Handles that are gone are CCL_INVALID_ARGUMENT. Timeouts are in milliseconds and at
 * least 0; when one is over, the call is CCL_TIMEOUT. A peer that is gone, or has another key, is
 * CCL_REMOTE_ERROR. */

typedef struct ccl_vqp_domain *ccl_vqp_domain_t;     /* devices, and the memory that they know */
typedef struct ccl_vqp_region *ccl_vqp_region_t;     /* memory registered with all of them */
typedef struct ccl_vqp_listener *ccl_vqp_listener_t; /* where processes are waited for */
typedef struct ccl_vqp_meeting *ccl_vqp_meeting_t;   /* the line to another process */
typedef struct ccl_vqp_pool *ccl_vqp_pool_t;         /* backups that queue pairs share */
typedef struct ccl_vqp *ccl_vqp_t;                   /* one end of a queue pair */

/* How the ends learn, after a fault, which requests have been executed. */
typedef enum ccl_vqp_evidence {
    CCL_VQP_OFF = 0,       /* a plain queue pair of the first device, which ends with it */
    CCL_VQP_RESEND = 1,    /* they do not: messages may arrive twice; atomics under way end it */
    CCL_VQP_HANDSHAKE = 2, /* messages are delivered once; atomics under way end it */
    CCL_VQP_LOG = 3        /* messages and atomics are executed once */
} ccl_vqp_evidence_t;

/* What the peer may do with a region; numbers are added. */
typedef enum ccl_vqp_access {
    CCL_VQP_ACCESS_LOCAL = 0,
    CCL_VQP_ACCESS_REMOTE_WRITE = 1,
    CCL_VQP_ACCESS_REMOTE_READ = 2,
    CCL_VQP_ACCESS_REMOTE_ATOMIC = 4
} ccl_vqp_access_t;

/* What a request does. */
typedef enum ccl_vqp_operation {
    CCL_VQP_SEND = 0,  /* fills the oldest receive of the peer */
    CCL_VQP_WRITE = 1, /* writes into its memory */
    CCL_VQP_WRITE_WITH_IMMEDIATE = 2, /* and completes its oldest receive */
    CCL_VQP_READ = 3,
    CCL_VQP_COMPARE_AND_SWAP = 4, /* of an aligned little-endian word of 8 bytes */
    CCL_VQP_FETCH_ADD = 5
} ccl_vqp_operation_t;

/* What has completed. */
typedef enum ccl_vqp_opcode {
    CCL_VQP_OPCODE_SEND = 0,
    CCL_VQP_OPCODE_WRITE = 1, /* with or without immediate */
    CCL_VQP_OPCODE_READ = 2,
    CCL_VQP_OPCODE_COMPARE_AND_SWAP = 3,
    CCL_VQP_OPCODE_FETCH_ADD = 4,
    CCL_VQP_OPCODE_RECEIVE = 5,
    CCL_VQP_OPCODE_RECEIVE_WRITE_WITH_IMMEDIATE = 6
} ccl_vqp_opcode_t;

/* How it has ended. */
typedef enum ccl_vqp_status {
    CCL_VQP_STATUS_SUCCESS = 0,
    CCL_VQP_STATUS_LOCAL_LENGTH = 1,     /* longer than the receive, or than the RDMA port takes at once */
    CCL_VQP_STATUS_LOCAL_PROTECTION = 2, /* the local memory is not registered */
    CCL_VQP_STATUS_FLUSHED = 3,          /* given up, because the queue pair has failed */
    CCL_VQP_STATUS_REMOTE_INVALID_REQUEST = 4,
    CCL_VQP_STATUS_REMOTE_ACCESS = 5, /* the peer's memory is not registered for this */
    CCL_VQP_STATUS_RETRY_EXCEEDED = 6 /* no rail is left */
} ccl_vqp_status_t;

/* Where a queue pair is in its life. */
typedef enum ccl_vqp_state {
    CCL_VQP_STATE_RESET = 0,
    CCL_VQP_STATE_INIT = 1, /* receives may be posted */
    CCL_VQP_STATE_READY_TO_RECEIVE = 2,
    CCL_VQP_STATE_READY_TO_SEND = 3, /* connected */
    CCL_VQP_STATE_ERROR = 4
} ccl_vqp_state_t;

/* What may happen to one. None of it needs an answer. */
typedef enum ccl_vqp_event_kind {
    CCL_VQP_EVENT_INTERRUPTED = 0, /* the rail in use is lost: requests wait */
    CCL_VQP_EVENT_RESUMED = 1,     /* requests flow again */
    CCL_VQP_EVENT_RETURNED = 2,    /* they are back on the first rail */
    CCL_VQP_EVENT_FAILED = 3       /* it has ended */
} ccl_vqp_event_kind_t;

/* How a queue pair is made. Start from CCL_VQP_CONFIG_INITIALIZER; what is CCL_CONFIG_UNDEF_INT has its
 * default. */
typedef struct ccl_vqp_config {
    size_t size;          /* sizeof(ccl_vqp_config_t) */
    unsigned int magic;   /* CCL_VQP_CONFIG_MAGIC */
    unsigned int version; /* CCL_VERSION_CODE */
    int evidence;         /* a ccl_vqp_evidence_t, the same at both ends; CCL_VQP_HANDSHAKE */
    int sends;            /* requests posted and not completed, at most: 1 to 65536; 128 */
    int receives;         /* receives posted and not completed, at most: 0 to 65536; 128 */
    int silence_ms;       /* of a rail that has to confirm something, until it is given up; 1000 */
    int patience_ms;      /* for a rail to come back when none is left; 1000 */
    int settle_ms;        /* that the first rail has been back before it is used again; 1000 */
} ccl_vqp_config_t;

#define CCL_VQP_CONFIG_MAGIC 0x72327170u
#define CCL_VQP_CONFIG_INITIALIZER                                                                \
    {                                                                                             \
        sizeof(ccl_vqp_config_t), CCL_VQP_CONFIG_MAGIC, CCL_VERSION_CODE, CCL_CONFIG_UNDEF_INT,   \
            CCL_CONFIG_UNDEF_INT, CCL_CONFIG_UNDEF_INT, CCL_CONFIG_UNDEF_INT,                     \
            CCL_CONFIG_UNDEF_INT, CCL_CONFIG_UNDEF_INT                                            \
    }

/* Memory of the peer. A place in it is `address` plus an offset below `bytes`. */
typedef struct ccl_vqp_remote {
    uint64_t address;
    uint64_t bytes;
    uint32_t key;
    uint32_t reserved; /* 0 */
} ccl_vqp_remote_t;

/* A request. Fields that its operation does not need are not looked at. */
typedef struct ccl_vqp_request {
    uint64_t id;             /* names it in its completion */
    int operation;           /* a ccl_vqp_operation_t */
    int signalled;           /* 0: nothing is heard of it unless it fails */
    ccl_vqp_region_t region; /* own memory: what is sent or written, or where the result goes */
    size_t offset;           /* in it */
    size_t bytes;            /* 8 for atomics, whatever this says */
    uint64_t remote_address; /* memory of the peer */
    uint32_t remote_key;
    uint32_t immediate; /* what the completion at the peer carries */
    uint64_t expected;  /* compare-and-swap: replaced only if it is this */
    uint64_t operand;   /* compare-and-swap: the replacement; fetch-and-add: what is added */
} ccl_vqp_request_t;

/* Something that has completed. */
typedef struct ccl_vqp_completion {
    uint64_t id;
    int status; /* a ccl_vqp_status_t */
    int opcode; /* a ccl_vqp_opcode_t */
    uint64_t bytes;
    uint32_t immediate;
    int has_immediate;
} ccl_vqp_completion_t;

/* Something that has happened. */
typedef struct ccl_vqp_event {
    uint64_t at_ns; /* CLOCK_MONOTONIC */
    int rail;       /* an interruption: the one that was left; otherwise the one in use */
    int kind;       /* a ccl_vqp_event_kind_t */
} ccl_vqp_event_t;

/* How a queue pair is. */
typedef struct ccl_vqp_info {
    int state;           /* a ccl_vqp_state_t */
    int rails;           /* devices of its domain */
    int connected_rails; /* those that it could use now */
    int active_rail;     /* the one in use; 0 is the first */
    int is_running;      /* 0: requests wait for the peer or for a repair */
    int evidence;        /* a ccl_vqp_evidence_t */
    uint64_t repairs;    /* times that requests flowed again */
    uint64_t resent;     /* requests posted again */
    uint64_t resent_bytes;
    uint64_t spared;    /* requests that had been executed although no completion said so */
    uint64_t recovered; /* atomics whose result was found out after its answer was lost */
    uint64_t returns;   /* returns to the first rail, counted at the end that leads */
} ccl_vqp_info_t;

/* Writes the names of the software devices that the settings admit, separated by commas. `text`,
 * `capacity` and `needed` are as for ccl_comm_explain(). */
ccl_result_t ccl_vqp_get_devices(char *text, size_t capacity, size_t *needed);

/* The same of the RDMA devices that the settings admit and that can be used. CCL_SYSTEM_ERROR if there are
 * none; the last error says why. */
ccl_result_t ccl_vqp_get_rdma_devices(char *text, size_t capacity, size_t *needed);

/* Opens the first of `devices`, the rails, which is used as long as it works, and looks at all others: they are
 * opened, and what is registered is registered with them, in the background, once a queue pair is connected.
 * One that fails then is a rail that is down, which the log says. NULL or "soft": one
 * software device on every NIC that R2CCL_NIC and R2CCL_RAILS admit. "verbs": the RDMA devices (RoCE) that
 * R2CCL_IB_HCA admits. Otherwise names, separated by commas: of RDMA devices, as mlx5_0 or mlx5_0:1, and of
 * interfaces or addresses, which get software devices; or a filter as in R2CCL_NIC that begins with ^ or
 * =. The two ends of a rail have devices of one kind. `faults` are
 * rehearsed as in R2CCL_FAULT, which NULL stands for; host 0 is the process that accepts, host 1 the one
 * that connects, and both say the same. */
ccl_result_t ccl_vqp_domain_open(ccl_vqp_domain_t *domain, const char *devices, const char *faults,
                                 const char *key);

/* Forgets the domain. Its queue pairs and regions live on until they are ended. NULL is ignored. */
ccl_result_t ccl_vqp_domain_close(ccl_vqp_domain_t domain);

/* Allocates `bytes` bytes, > 0, aligned to a page and zero, and registers them with all devices.
 * *address (may be NULL) becomes their address. `access`: sums of ccl_vqp_access_t. */
ccl_result_t ccl_vqp_allocate(ccl_vqp_domain_t domain, size_t bytes, int access,
                              ccl_vqp_region_t *region, void **address);

/* Registers memory of the program, > 0 bytes, which stays until ccl_vqp_deregister() has succeeded. */
ccl_result_t ccl_vqp_register(ccl_vqp_domain_t domain, void *address, size_t bytes, int access,
                              ccl_vqp_region_t *region);

/* Takes the registration back; memory of ccl_vqp_allocate() is freed. While an operation still uses
 * memory of the program it is CCL_INVALID_USAGE, and to be called again: after its queue pair was polled
 * or destroyed. NULL is ignored. */
ccl_result_t ccl_vqp_deregister(ccl_vqp_region_t region);

/* Listens on `address`, as "0.0.0.0:18515"; port 0 lets the kernel choose. */
ccl_result_t ccl_vqp_listen(ccl_vqp_listener_t *listener, const char *address, const char *key);

/* Writes where it listens, as "10.0.0.1:18515". */
ccl_result_t ccl_vqp_get_address(ccl_vqp_listener_t listener, char *text, size_t capacity,
                                 size_t *needed);

/* Waits for the next process that has the key; others are sent away. */
ccl_result_t ccl_vqp_accept(ccl_vqp_listener_t listener, ccl_vqp_meeting_t *meeting,
                            int timeout_ms);

/* NULL is ignored. */
ccl_result_t ccl_vqp_listener_close(ccl_vqp_listener_t listener);

/* Connects to "host:port" until a process with the key answers. */
ccl_result_t ccl_vqp_meet(ccl_vqp_meeting_t *meeting, const char *address, const char *key,
                          int timeout_ms);

/* Tells the peer `bytes` bytes (up to 1 MiB) and hears what it tells; both call this. *answer_bytes
 * (may be NULL) becomes the length of the answer, of which at most `capacity` bytes are written. */
ccl_result_t ccl_vqp_exchange(ccl_vqp_meeting_t meeting, const void *message, size_t bytes,
                              void *answer, size_t capacity, size_t *answer_bytes,
                              int timeout_ms);

/* Tells the peer where `region` is, and hears where one of its regions is; both call this. */
ccl_result_t ccl_vqp_exchange_region(ccl_vqp_meeting_t meeting, ccl_vqp_region_t region,
                                     ccl_vqp_remote_t *remote, int timeout_ms);

/* *has becomes 1 if the peer is in an exchange, or gone; else 0. Never waits. */
ccl_result_t ccl_vqp_has_message(ccl_vqp_meeting_t meeting, int *has);

/* NULL is ignored. Queue pairs live on. */
ccl_result_t ccl_vqp_meeting_close(ccl_vqp_meeting_t meeting);

/* Makes a queue pair, on which receives can be posted. `config` may be NULL. */
ccl_result_t ccl_vqp_create(ccl_vqp_t *vqp, ccl_vqp_domain_t domain,
                            const ccl_vqp_config_t *config);

/* Connects it with a queue pair of the peer, which calls this too; several are connected in the same
 * order at both ends. On success both can be used; further rails are connected in the background. Ends
 * that differ in evidence, rails or faults are CCL_INVALID_USAGE. After a failure destroy it. */
ccl_result_t ccl_vqp_connect(ccl_vqp_t vqp, ccl_vqp_meeting_t meeting, int timeout_ms);

/* Makes a pool of backups together with the peer, which calls this too, for queue pairs of `domain` with it. On each
 * rail but the first both ends get `spares` idle connections, 1 to 4096, to give away: as many queue pairs as may
 * lose their rail at a time, on either end. They are made in the background, and replaced when they are used up.
 * Ends that differ in spares or rails are CCL_INVALID_USAGE. */
ccl_result_t ccl_vqp_pool_open(ccl_vqp_pool_t *pool, ccl_vqp_domain_t domain,
                               ccl_vqp_meeting_t meeting, int spares, int timeout_ms);

/* *spares becomes how many queue pairs this end could give a backup now, on the rail that has fewest. */
ccl_result_t ccl_vqp_pool_get_spares(ccl_vqp_pool_t pool, int *spares);

/* As ccl_vqp_connect(), but in place of own backups the queue pair takes one of the pool when it has lost its
 * rail; if there is none, it waits for one as long as `patience_ms` says. Both ends name the same pool: others, and
 * plain queue pairs, are CCL_INVALID_USAGE. */
ccl_result_t ccl_vqp_connect_pooled(ccl_vqp_t vqp, ccl_vqp_meeting_t meeting, ccl_vqp_pool_t pool,
                                    int timeout_ms);

/* Nothing is replaced any more; queue pairs live on, with what there is. NULL is ignored. */
ccl_result_t ccl_vqp_pool_close(ccl_vqp_pool_t pool);

/* Posts a request. CCL_IN_PROGRESS: the queue is full, and nothing was posted; poll, and try again.
 * CCL_INVALID_USAGE: it is an atomic, and a device of one of the ends has none.
 * What goes wrong later is the status of its completion. */
ccl_result_t ccl_vqp_post_send(ccl_vqp_t vqp, const ccl_vqp_request_t *request);

/* Posts `count` requests in their order and starts them together, as the list of ibv_post_send() that they are for
 * an RDMA device. Those that are not signalled cost no completion at the device; that they were executed is known
 * when the next one of the list that is signalled has completed, or the last. With CCL_VQP_RESEND a fault before
 * that repeats them all. `record_size` is sizeof(ccl_vqp_request_t).
 *
 * *posted (may be NULL) becomes how many were posted. If the call is not CCL_SUCCESS, requests[*posted] was the
 * first that was not, as *bad_wr of ibv_post_send() is, for the reason that the call gives as
 * ccl_vqp_post_send() does: after CCL_IN_PROGRESS poll, and post from there on. */
ccl_result_t ccl_vqp_post_send_list(ccl_vqp_t vqp, const ccl_vqp_request_t *requests,
                                    size_t record_size, size_t count, size_t *posted);

/* Posts memory for one message of the peer; `region` NULL: for an empty one or an immediate.
 * CCL_IN_PROGRESS as above. */
ccl_result_t ccl_vqp_post_receive(ccl_vqp_t vqp, uint64_t id, ccl_vqp_region_t region,
                                  size_t offset, size_t bytes);

/* Does what can be done without waiting and writes up to `capacity` completions, in order; those that
 * do not fit are kept. *count becomes how many there are. `record_size` is
 * sizeof(ccl_vqp_completion_t). */
ccl_result_t ccl_vqp_poll(ccl_vqp_t vqp, ccl_vqp_completion_t *completions, size_t record_size,
                          size_t capacity, size_t *count);

/* As ccl_vqp_poll(), but waits until something has completed. CCL_REMOTE_ERROR, with the reason, if it
 * has failed and nothing will complete any more. `capacity` > 0. */
ccl_result_t ccl_vqp_wait(ccl_vqp_t vqp, ccl_vqp_completion_t *completions, size_t record_size,
                          size_t capacity, size_t *count, int timeout_ms);

/* A descriptor for poll(2) and its like, the same over its life, not to be read or closed. After
 * ccl_vqp_arm() it becomes readable when ccl_vqp_poll() is worthwhile: arm, poll once more, sleep. */
ccl_result_t ccl_vqp_get_descriptor(ccl_vqp_t vqp, int *descriptor);
ccl_result_t ccl_vqp_arm(ccl_vqp_t vqp);

/* How it is. `record_size` is sizeof(ccl_vqp_info_t). */
ccl_result_t ccl_vqp_get_info(ccl_vqp_t vqp, ccl_vqp_info_t *info, size_t record_size);

/* Writes why it has failed; nothing if it has not. */
ccl_result_t ccl_vqp_get_fault(ccl_vqp_t vqp, char *text, size_t capacity, size_t *needed);

/* Writes up to `capacity` events, the oldest first, and forgets them; those that do not fit are kept,
 * up to 1024. *count becomes how many were written. `record_size` is sizeof(ccl_vqp_event_t). */
ccl_result_t ccl_vqp_get_events(ccl_vqp_t vqp, ccl_vqp_event_t *events, size_t record_size,
                                size_t capacity, size_t *count);

/* Says that a rail has failed, because the program knows better than its device. */
ccl_result_t ccl_vqp_suspect(ccl_vqp_t vqp, int rail);

/* Ends it at once: what is outstanding is forgotten. NULL is ignored. */
ccl_result_t ccl_vqp_destroy(ccl_vqp_t vqp);

#ifdef __cplusplus
}
#endif

#endif /* R2CCL_CCL_H */
