/*
 * r2ccl: collective communication that survives NIC failures.
 *
 * Link with -lr2ccl. The interface follows NCCL's: the same words, the same numbers for results,
 * element types and operations, the same in-place rules. Buffers are ordinary host memory, and
 * there are no streams: a call returns when its buffers may be used again, or, in its "i" form,
 * hands out a request.
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
 * where they meet: it lives until all of them have joined. A process that forks its ranks calls it
 * in one of them, or stays alive. */
ccl_result_t ccl_get_unique_id(ccl_unique_id_t *id);

/* Joins the communicator `id` as `rank` of `nranks`. Collective: all ranks call it, as processes or
 * threads. A thread that holds several ranks calls it between ccl_group_start() and
 * ccl_group_end(). On failure *comm is NULL; inside a group, where the failure shows at
 * ccl_group_end(), *comm remains to be given to ccl_comm_destroy() or ccl_comm_abort(). */
ccl_result_t ccl_comm_init_rank(ccl_comm_t *comm, int nranks, ccl_unique_id_t id, int rank);

/* As ccl_comm_init_rank(). `config` may be NULL.
 *
 * With blocking = 0 creation, split, finalize and the blocking form of every operation return
 * CCL_IN_PROGRESS and go on in the background. ccl_comm_get_async_error() says CCL_IN_PROGRESS until
 * they are done; until then buffers belong to the library, and a further call on the communicator
 * is CCL_INVALID_USAGE, except ccl_comm_get_async_error() and ccl_comm_abort(). */
ccl_result_t ccl_comm_init_rank_config(ccl_comm_t *comm, int nranks, ccl_unique_id_t id, int rank,
                                       const ccl_config_t *config);

/* Creates `nranks` communicators of this one process: comms[i] is rank i. A single thread that uses
 * several of them puts its calls into a group. */
ccl_result_t ccl_comm_init_all(ccl_comm_t *comms, int nranks);

/* Joins the communicator of all processes of the job, with rank, size and meeting point from the
 * environment of torchrun, mpirun or Slurm. `config` may be NULL. */
ccl_result_t ccl_comm_init_from_environment(ccl_comm_t *comm, const ccl_config_t *config);

/* Collective over `comm`: ranks with the same `color` >= 0 form a new communicator, ordered by
 * `key`, then by rank. CCL_SPLIT_NOCOLOR takes part and gets NULL. `config` NULL: as `comm`. */
#define CCL_SPLIT_NOCOLOR (-1)
ccl_result_t ccl_comm_split(ccl_comm_t comm, int color, int key, ccl_comm_t *newcomm,
                            const ccl_config_t *config);

/* ---- Ending communicators ------------------------------------------------------------------- */

/* Waits for everything that was started, then says good-bye to the peers. Only
 * ccl_comm_get_async_error(), ccl_comm_count(), ccl_comm_user_rank(), ccl_comm_destroy() and
 * ccl_comm_abort() may follow. */
ccl_result_t ccl_comm_finalize(ccl_comm_t comm);

/* Frees a communicator, finalizing it first where that has not happened. NULL is ignored. */
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

/* Sends count elements to `peer`, which calls ccl_recv() with the same count and type. Outside a
 * group it may wait for the peer. Messages between two ranks arrive in the order of the calls. */
ccl_result_t ccl_send(const void *send, size_t count, ccl_datatype_t datatype, int peer,
                      ccl_comm_t comm);

/* Receives count elements from `peer`. */
ccl_result_t ccl_recv(void *recv, size_t count, ccl_datatype_t datatype, int peer,
                      ccl_comm_t comm);

/* ---- Groups --------------------------------------------------------------------------------- */

/* Opens a group in this thread. Calls up to the matching ccl_group_end() are only collected and
 * return CCL_SUCCESS; their buffers belong to the library until then. Groups nest: the outermost
 * end counts. Sends and receives of a group progress together; collectives of one communicator run
 * in order; different communicators progress together. */
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

/* ---- Reductions of the user ----------------------------------------------------------------- */

/* Makes an operation of `comm` that multiplies this rank's contribution by *scalar (read now, of
 * type `datatype`) and sums. It is used with that type only; ranks may have different scalars.
 * Numbers start at CCL_NUM_OPS and are not used twice. */
ccl_result_t ccl_redop_create_premulsum(ccl_redop_t *op, const void *scalar,
                                        ccl_datatype_t datatype, ccl_comm_t comm);

/* Forgets such an operation; calls that were made with it go on. */
ccl_result_t ccl_redop_destroy(ccl_redop_t op, ccl_comm_t comm);

/* ---- Memory --------------------------------------------------------------------------------- */

/* Allocates `size` bytes, > 0: aligned to a page, zero. Ranks of the same host read it in place, which
 * saves a copy in every collective on large buffers in it. */
ccl_result_t ccl_mem_alloc(void **pointer, size_t size);

/* Frees what ccl_mem_alloc() returned; where it is registered, with its last registration. NULL is
 * ignored. */
ccl_result_t ccl_mem_free(void *pointer);

/* Tells the communicator that [buffer, buffer + size), size > 0, will be used often. Local, and only
 * a hint: results do not depend on it. The memory must stay until ccl_comm_deregister(). */
ccl_result_t ccl_comm_register(ccl_comm_t comm, void *buffer, size_t size, void **registration);

/* Takes that back. What is still registered when the communicator is destroyed is taken back then. */
ccl_result_t ccl_comm_deregister(ccl_comm_t comm, void *registration);

#ifdef __cplusplus
}
#endif

#endif /* R2CCL_CCL_H */
