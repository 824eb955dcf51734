// GradientFlow for C (C99) and C++: collectives between the ranks of a job, node memory, gradient pools, optimizers and
// parameter servers.
//
//   mpicc program.c $(gradientflow config --cflags --libs)
//
// If the compiler finds mpi.h, this header includes it and declares gf_init for MPI jobs. MPI is optional: programs
// whose ranks meet by gf_init_meet build with any C compiler. Define GF_WITHOUT_MPI to leave mpi.h out.
//
// Rules for all functions:
//
// Status    Functions that can fail return a gf_status: GF_SUCCESS (0) or an error. gf_last_error_message() explains
//           the error in a sentence. No C++ exception leaves the library, and the library never ends the process. NULL
//           for a required argument is GF_ERROR_VALUE.
// Objects   Communicators, handles, requests, memory, pools, optimizers and parameter servers are created through the
//           last argument of a function. They belong to the caller: pass each object once to the _free function of its
//           type. Freeing NULL does nothing. After a failure the argument is NULL. Objects may be freed in any order,
//           also after MPI_Finalize.
// Ranks     "Collective" means that all ranks of the communicator make the call, in the same order and with the same
//           counts, dtype, op, root and algorithm. Calls that differ return GF_ERROR_MISMATCH on every rank before any
//           data moves.
// Threads   Any thread may call any function, as long as no thread frees an object in use by another thread.
// Memory    Tensors are contiguous arrays in ordinary memory, node memory or a pool. Counts are elements, not bytes.
//           The library cannot check the length of an array: each must have at least `count` elements. An array of 0
//           elements may be NULL.
//
// New versions may add functions, and fields at the end of structs that begin with their size. Everything that exists
// keeps its meaning within one major version (before 1.0: within one minor version).
#ifndef GRADIENTFLOW_H
#define GRADIENTFLOW_H

#include <stddef.h>
#include <stdint.h>

#if defined(__has_include) && !defined(GF_WITHOUT_MPI)
#if __has_include(<mpi.h>)
#include <mpi.h>
#endif
#endif

// ---- version --------------------------------------------------------------------------------------------------------

#define GF_VERSION_MAJOR 0
#define GF_VERSION_MINOR 1
#define GF_VERSION_PATCH 0
#define GF_VERSION (GF_VERSION_MAJOR * 10000 + GF_VERSION_MINOR * 100 + GF_VERSION_PATCH)

#ifdef __cplusplus
extern "C" {
#endif

// Returns the GF_VERSION of the library that the program runs with.
int gf_version(void);

// ---- errors ---------------------------------------------------------------------------------------------------------

// Statuses. After VALUE, TYPE, MISMATCH, MEMORY and NONFINITE the communicator stays usable. Any other error breaks the
// communicator: the tensors of the call are undefined, and every further call fails with the same status. See
// docs/errors.md.
typedef enum gf_status {
  GF_SUCCESS = 0,
  GF_ERROR_VALUE = 1,      // an argument has an invalid value
  GF_ERROR_TYPE = 2,       // a dtype is not supported at all, or not with this op
  GF_ERROR_MISMATCH = 3,   // the ranks made different calls
  GF_ERROR_CLOSED = 4,     // the communicator is closed, or MPI is finalized
  GF_ERROR_PEER = 5,       // another rank died, gave up or closed its communicator
  GF_ERROR_TIMEOUT = 6,    // a wait took longer than its limit
  GF_ERROR_MPI = 7,        // the MPI library returned an error
  GF_ERROR_SYSTEM = 8,     // the operating system returned an error
  GF_ERROR_MEMORY = 9,     // there is not enough memory
  GF_ERROR_INTERNAL = 10,  // a bug of the library
  GF_ERROR_NONFINITE = 11  // a gradient is infinite or NaN, and the iteration was dropped
} gf_status;

// Returns the constant's name, such as "GF_ERROR_VALUE". The text is constant.
const char* gf_status_name(gf_status status);

// Returns the reason for this thread's last failure; "" before the first failure. The text is valid until the next
// failure. Only functions that return a status set a message: gf_rank(NULL) returns -1 and sets no message.
const char* gf_last_error_message(void);

// ---- communicator ---------------------------------------------------------------------------------------------------

typedef struct gf_communicator gf_communicator;

// A setting as text, such as {"timeout", "30"}, see docs/configuration.md. Settings that are not given come from the
// GRADIENTFLOW_* variables, or have their defaults.
typedef struct gf_setting {
  const char* name;
  const char* value;
} gf_setting;

// Creates a communicator of `size` ranks that meet without MPI and exchange messages over TCP. Collective. `meet` is
// the address where they meet: "host:port", where rank 0 listens; several such addresses, separated by commas; or
// "file:///path" in a folder that all hosts share. A single rank may give NULL. With a size of 0, the address, rank and
// size come from the variables GRADIENTFLOW_MEET, GRADIENTFLOW_RANK and GRADIENTFLOW_SIZE, which `gradientflow run
// --transport tcp` sets; without them this process is the only rank. `settings` is NULL, or an array that ends with an
// entry whose name is NULL.
gf_status gf_init_meet(const char* meet, int rank, int size, const gf_setting* settings,
                       gf_communicator** communicator);

// Does the work of gf_init. `mpi` points to an MPI_Comm of `handle_bytes` bytes: the type of MPI_Comm differs between
// MPI libraries.
gf_status gf_init_handle(const void* mpi, size_t handle_bytes, const gf_setting* settings,
                         gf_communicator** communicator);

#ifdef MPI_VERSION
// Creates a communicator of the ranks of `mpi`, which is duplicated and still belongs to the caller. Collective over
// `mpi`. With the setting {"transport", "tcp"} messages between nodes travel over TCP, and MPI only introduces the
// ranks to each other.
//
// If MPI is not initialized yet, `mpi` must be MPI_COMM_WORLD, and gf_init initializes MPI with MPI_THREAD_MULTIPLE.
// The program then calls MPI_Finalize at its end as if it had initialized MPI itself. A program that calls
// MPI_Init_thread needs MPI_THREAD_MULTIPLE for asynchronous calls between nodes, and for calls from several threads.
static inline gf_status gf_init(MPI_Comm mpi, const gf_setting* settings, gf_communicator** communicator) {
  return gf_init_handle(&mpi, sizeof mpi, settings, communicator);
}
#endif

// Splits a communicator. Ranks with the same `color` of 0 or more get a new communicator together, with the same
// settings, ordered by `key` and, among equal keys, by rank. A rank with a negative color gets no communicator: `*part`
// is NULL. Collective.
gf_status gf_split(gf_communicator* communicator, int color, int key, gf_communicator** part);

// Creates a communicator of the survivors, in their order, after GF_ERROR_PEER or GF_ERROR_TIMEOUT. Closes the old one,
// which the caller still frees. Collective over the survivors: all succeed, or all get the same error, such as
// GF_ERROR_PEER if too few are left. `min_ranks` is the least number of survivors; 0: more than half of the ranks, or
// any number if all missing ranks are known to have ended. Works over TCP, and over MPI in an Open MPI job started with
// ULFM.
gf_status gf_recover(gf_communicator* communicator, int min_ranks, gf_communicator** recovered);

// Returns the old rank of `rank` in a communicator of gf_recover; -1 for any other communicator or rank.
int gf_recovered_from(const gf_communicator* communicator, int rank);

// Closes a communicator once its asynchronous calls are done. Not collective: a rank that waits for this rank
// afterwards gets GF_ERROR_PEER. Closing twice is harmless. Node memory and pools stay readable.
gf_status gf_close(gf_communicator* communicator);

// Frees a communicator. If it was not closed, its asynchronous calls end with GF_ERROR_CLOSED.
void gf_communicator_free(gf_communicator* communicator);

// Return this rank and the number of ranks; this rank and the number of ranks within this node; this node and the
// number of nodes. -1 for NULL.
int gf_rank(const gf_communicator* communicator);
int gf_size(const gf_communicator* communicator);
int gf_local_rank(const gf_communicator* communicator);
int gf_local_size(const gf_communicator* communicator);
int gf_node(const gf_communicator* communicator);
int gf_nodes(const gf_communicator* communicator);

// ---- arguments of calls ---------------------------------------------------------------------------------------------

typedef enum gf_dtype {
  GF_NO_DTYPE = 0,  // only as a wire: none
  GF_FLOAT16 = 1,   // IEEE binary16
  GF_BFLOAT16 = 2,
  GF_FLOAT32 = 3,
  GF_FLOAT64 = 4,
  GF_INT8 = 5,
  GF_UINT8 = 6,
  GF_INT32 = 7,
  GF_INT64 = 8,
  GF_BOOL = 9,          // one byte, 0 or 1
  GF_FLOAT8_E4M3 = 10,  // only as a wire
} gf_dtype;

// Returns the bytes of one element; 0 for GF_NO_DTYPE and unknown values.
size_t gf_dtype_size(gf_dtype dtype);

// Reduction operators. MEAN needs a floating dtype; BOOL has only MAX (any) and MIN (all). Integer sums wrap around.
// MAX and MIN propagate NaN.
typedef enum gf_op { GF_SUM = 0, GF_MEAN = 1, GF_MAX = 2, GF_MIN = 3, GF_PROD = 4 } gf_op;

// Algorithms, each with the calls that it supports. Any other call with this algorithm returns GF_ERROR_VALUE: an
// algorithm is never replaced silently.
typedef enum gf_algorithm {
  GF_ALGORITHM_AUTO = 0,
  GF_ALGORITHM_RING = 1,                // allreduce, reduce_scatter, allgather, allgatherv
  GF_ALGORITHM_HIERARCHICAL = 2,        // allreduce
  GF_ALGORITHM_HIERARCHICAL_LANES = 3,  // allreduce
  GF_ALGORITHM_RECURSIVE_DOUBLING = 4,  // allreduce
  GF_ALGORITHM_SHARED = 5,              // calls among ranks of one node
  GF_ALGORITHM_MPI = 6,                 // the MPI library's own collectives
  GF_ALGORITHM_NCCL = 7,                // NCCL's own collectives, for arrays on CUDA devices
} gf_algorithm;

// Options of a call. Initialize with GF_CALL_OPTIONS_INIT, the defaults, and change fields. NULL: the defaults.
typedef struct gf_call_options {
  size_t size;  // sizeof(gf_call_options): tells the library which fields the program knows
  gf_algorithm algorithm;
  gf_dtype wire;  // format of FLOAT32 between nodes in an allreduce: FLOAT16, BFLOAT16 or FLOAT8_E4M3
  int device;     // the CUDA device of the arrays, the same in all calls of a communicator; or GF_HOST
  void* stream;   // a cudaStream_t of that device. The call sees work enqueued before it, and work enqueued after it
                  // sees the result; the host does not wait for the device
  // Name of the array, and its shape with `dimensions` entries; either or both may be NULL. If they differ between
  // ranks, the call returns GF_ERROR_MISMATCH, even with equal counts. Name and shape are copied; scatter and
  // allgatherv ignore the shape.
  const char* label;
  const size_t* shape;
  size_t dimensions;
} gf_call_options;

#define GF_HOST (-1)
#define GF_CALL_OPTIONS_INIT {sizeof(gf_call_options), GF_ALGORITHM_AUTO, GF_NO_DTYPE, GF_HOST, NULL, NULL, NULL, 0}

// ---- collectives ----------------------------------------------------------------------------------------------------
// Elements of each array, for P ranks:
//
//                     count                            input                      output
//   allreduce         of the tensor                    count                      count
//   reduce            of the tensor                    count                      count, on the root
//   broadcast         of the tensor                    count                      (the same array)
//   allgather         of one rank's part               count                      P * count
//   allgatherv        counts[r] of the part of rank r  counts[rank]               the sum of all counts
//   reduce_scatter    of the whole tensor              count                      gf_reduce_scatter_count
//   alltoall          of the block for one rank        P * count                  P * count
//   gather            of one rank's part               count                      P * count, on the root
//   scatter           of one rank's part               P * count, on the root     count
//
// Parts and blocks are in rank order. An array that a rank does not need may be NULL. In allreduce and reduce, input
// and output may be the same array; otherwise they must not overlap. All functions here are collective.

gf_status gf_allreduce(gf_communicator* communicator, const void* input, void* output, size_t count, gf_dtype dtype,
                       gf_op op, const gf_call_options* options);
gf_status gf_reduce(gf_communicator* communicator, const void* input, void* output, size_t count, gf_dtype dtype,
                    gf_op op, int root, const gf_call_options* options);
gf_status gf_broadcast(gf_communicator* communicator, void* data, size_t count, gf_dtype dtype, int root,
                       const gf_call_options* options);
gf_status gf_allgather(gf_communicator* communicator, const void* input, void* output, size_t count, gf_dtype dtype,
                       const gf_call_options* options);
gf_status gf_allgatherv(gf_communicator* communicator, const void* input, void* output, const size_t* counts,
                        gf_dtype dtype, const gf_call_options* options);
gf_status gf_reduce_scatter(gf_communicator* communicator, const void* input, void* output, size_t count,
                            gf_dtype dtype, gf_op op, const gf_call_options* options);
gf_status gf_alltoall(gf_communicator* communicator, const void* input, void* output, size_t count, gf_dtype dtype,
                      const gf_call_options* options);
gf_status gf_gather(gf_communicator* communicator, const void* input, void* output, size_t count, gf_dtype dtype,
                    int root, const gf_call_options* options);
gf_status gf_scatter(gf_communicator* communicator, const void* input, void* output, size_t count, gf_dtype dtype,
                     int root, const gf_call_options* options);

// Waits until all ranks have called this function.
gf_status gf_barrier(gf_communicator* communicator);

// Returns the number of elements that this rank gets from a reduce_scatter of `count` elements: the first count % P
// ranks get one element more than the rest. 0 for NULL.
size_t gf_reduce_scatter_count(const gf_communicator* communicator, size_t count);

// ---- asynchronous calls ---------------------------------------------------------------------------------------------
// The same calls, run in the background, or at once inside a node that is short of cores. The arrays must stay alive
// and untouched until the call has ended. These functions return errors found before the call starts; gf_handle_wait
// returns all later errors. A communicator serves blocking and asynchronous calls in the order in which they were made.

typedef struct gf_handle gf_handle;

gf_status gf_allreduce_async(gf_communicator* communicator, const void* input, void* output, size_t count,
                             gf_dtype dtype, gf_op op, const gf_call_options* options, gf_handle** handle);
gf_status gf_reduce_async(gf_communicator* communicator, const void* input, void* output, size_t count, gf_dtype dtype,
                          gf_op op, int root, const gf_call_options* options, gf_handle** handle);
gf_status gf_broadcast_async(gf_communicator* communicator, void* data, size_t count, gf_dtype dtype, int root,
                             const gf_call_options* options, gf_handle** handle);
gf_status gf_allgather_async(gf_communicator* communicator, const void* input, void* output, size_t count,
                             gf_dtype dtype, const gf_call_options* options, gf_handle** handle);
// `counts` is copied.
gf_status gf_allgatherv_async(gf_communicator* communicator, const void* input, void* output, const size_t* counts,
                              gf_dtype dtype, const gf_call_options* options, gf_handle** handle);
gf_status gf_reduce_scatter_async(gf_communicator* communicator, const void* input, void* output, size_t count,
                                  gf_dtype dtype, gf_op op, const gf_call_options* options, gf_handle** handle);
gf_status gf_alltoall_async(gf_communicator* communicator, const void* input, void* output, size_t count,
                            gf_dtype dtype, const gf_call_options* options, gf_handle** handle);
gf_status gf_gather_async(gf_communicator* communicator, const void* input, void* output, size_t count, gf_dtype dtype,
                          int root, const gf_call_options* options, gf_handle** handle);
gf_status gf_scatter_async(gf_communicator* communicator, const void* input, void* output, size_t count, gf_dtype dtype,
                           int root, const gf_call_options* options, gf_handle** handle);
gf_status gf_barrier_async(gf_communicator* communicator, gf_handle** handle);

// Tells if the call has ended, successfully or not, also on the device of its arrays: `*done` is 1 or 0. Does not wait.
gf_status gf_handle_test(const gf_handle* handle, int* done);

// Waits until the call has ended, also on the device of its arrays, and returns its status; may be called again. After
// `timeout` seconds it returns GF_ERROR_TIMEOUT, and the call continues unharmed. With a negative `timeout`, only the
// call's own limit holds.
gf_status gf_handle_wait(gf_handle* handle, double timeout);

// Waits until several calls have ended: `number` handles, of one or more communicators; NULL entries are skipped. If
// calls have failed, returns the status of the first failed call in the array; gf_handle_wait returns the status of
// each call. `timeout` is as in gf_handle_wait, for all calls together.
gf_status gf_wait_all(gf_handle* const* handles, size_t number, double timeout);

// Waits until any of several calls has ended, and returns its status. Handles and `timeout` are as in gf_wait_all.
// `*index` is the call's position in the array, the lowest position if several calls have ended. Free that handle, set
// its entry to NULL, and wait for the next call. If all entries are NULL, or after a timeout, `*index` is `number`.
gf_status gf_wait_any(gf_handle* const* handles, size_t number, double timeout, size_t* index);

// Gives the number of infinite or NaN elements in the result, the same on all ranks. Gives -1 if no values were rounded
// for the wire, or if the call has not ended.
gf_status gf_handle_nonfinite(const gf_handle* handle, int64_t* count);

// Frees a handle. If its call has not ended, the call continues, and its arrays stay in use until gf_close returns. A
// failure that was not waited for appears only in the message of a later call that times out.
void gf_handle_free(gf_handle* handle);

// ---- prepared calls -------------------------------------------------------------------------------------------------
// A prepared call is checked once, its algorithm is chosen once, and then it runs any number of times on the same
// arrays, like the persistent collectives of MPI 4. gf_request_start starts the call, gf_request_wait ends it; in
// between the arrays must stay untouched. Preparing is not collective, but starting is: to other ranks a started call
// is like any other call, served in the order of calls, even if several prepared calls are under way. Ranks that start
// different calls get GF_ERROR_MISMATCH from gf_request_wait. A request is for one thread at a time. Its arrays must
// outlive it.

typedef struct gf_request gf_request;

gf_status gf_allreduce_init(gf_communicator* communicator, const void* input, void* output, size_t count,
                            gf_dtype dtype, gf_op op, const gf_call_options* options, gf_request** request);
gf_status gf_reduce_init(gf_communicator* communicator, const void* input, void* output, size_t count, gf_dtype dtype,
                         gf_op op, int root, const gf_call_options* options, gf_request** request);
gf_status gf_broadcast_init(gf_communicator* communicator, void* data, size_t count, gf_dtype dtype, int root,
                            const gf_call_options* options, gf_request** request);
gf_status gf_allgather_init(gf_communicator* communicator, const void* input, void* output, size_t count,
                            gf_dtype dtype, const gf_call_options* options, gf_request** request);
// `counts` is copied.
gf_status gf_allgatherv_init(gf_communicator* communicator, const void* input, void* output, const size_t* counts,
                             gf_dtype dtype, const gf_call_options* options, gf_request** request);
gf_status gf_reduce_scatter_init(gf_communicator* communicator, const void* input, void* output, size_t count,
                                 gf_dtype dtype, gf_op op, const gf_call_options* options, gf_request** request);
gf_status gf_alltoall_init(gf_communicator* communicator, const void* input, void* output, size_t count, gf_dtype dtype,
                           const gf_call_options* options, gf_request** request);
gf_status gf_gather_init(gf_communicator* communicator, const void* input, void* output, size_t count, gf_dtype dtype,
                         int root, const gf_call_options* options, gf_request** request);
gf_status gf_scatter_init(gf_communicator* communicator, const void* input, void* output, size_t count, gf_dtype dtype,
                          int root, const gf_call_options* options, gf_request** request);
gf_status gf_barrier_init(gf_communicator* communicator, gf_request** request);

// Starts the call. GF_ERROR_VALUE if it was already started and not waited for. Small calls inside a node begin at
// once.
gf_status gf_request_start(gf_request* request);

// Waits until the call has ended, also on the device of its arrays, and returns its status. GF_ERROR_VALUE if the call
// has not been started. After `timeout` seconds it returns GF_ERROR_TIMEOUT: the call continues, and can be waited for
// again. With a negative `timeout`, only the call's own limit holds. After any other status the request may be started
// again.
gf_status gf_request_wait(gf_request* request, double timeout);

// Tells if gf_request_wait would return at once: `*done` is 1 or 0. Does not wait.
gf_status gf_request_test(gf_request* request, int* done);

// Gives the same number as gf_handle_nonfinite, for the last call that was waited for.
gf_status gf_request_nonfinite(const gf_request* request, int64_t* count);

// Frees a request. Waits for a started call.
void gf_request_free(gf_request* request);

// ---- between two ranks ----------------------------------------------------------------------------------------------
// Only the two ranks take part. Tensors from one rank to another arrive in the order in which they were sent.

// Sends a tensor. Returns when `data` may be overwritten; a large tensor waits for its receiver.
gf_status gf_send(gf_communicator* communicator, const void* data, size_t count, gf_dtype dtype, int to);

// Receives a tensor. GF_ERROR_MISMATCH if the tensor that arrives has another count or dtype; that tensor is then lost.
gf_status gf_recv(gf_communicator* communicator, void* data, size_t count, gf_dtype dtype, int from);

// ---- node memory ----------------------------------------------------------------------------------------------------
// Shared memory of the ranks of a node. Calls inside the node are fastest on it.

typedef struct gf_memory gf_memory;

// Allocates `bytes` bytes for each rank, the same number on all ranks. Collective.
gf_status gf_memory_allocate(gf_communicator* communicator, size_t bytes, gf_memory** memory);

// Returns this rank's part: zero-filled at first, aligned to 64 bytes, valid until the memory is freed. NULL for NULL.
void* gf_memory_data(const gf_memory* memory);

// Returns the bytes of this rank's part; 0 for NULL.
size_t gf_memory_bytes(const gf_memory* memory);

// Frees this rank's part. No call may still use it. Not collective.
void gf_memory_free(gf_memory* memory);

// ---- gradient pool --------------------------------------------------------------------------------------------------
// All gradients of a model side by side in node memory, averaged over the ranks without a copy. Fill the tensors, call
// gf_pool_ready for each tensor as soon as it is final, and gf_pool_wait once per iteration. Neighboring tensors are
// averaged together, in the background, once all of them are ready. A pool is closed with its communicator.

typedef struct gf_pool gf_pool;

#define GF_AUTO_THRESHOLD (SIZE_MAX - 1)

// Options of a pool: GF_POOL_OPTIONS_INIT, the defaults, with changed fields. NULL: the defaults.
typedef struct gf_pool_options {
  size_t size;              // sizeof(gf_pool_options): tells the library which fields the program knows
  size_t fusion_threshold;  // bytes of neighboring tensors to send together; SIZE_MAX: all, at the end
  gf_dtype wire;            // dtype in messages of FLOAT32 gradients, as in gf_call_options
  gf_algorithm algorithm;
  int device;  // CUDA device of the tensors, or GF_HOST
} gf_pool_options;

#define GF_POOL_OPTIONS_INIT {sizeof(gf_pool_options), GF_AUTO_THRESHOLD, GF_NO_DTYPE, GF_ALGORITHM_AUTO, GF_HOST}

// Creates a pool. `counts` has the number of elements of each of the `tensors` tensors; `dtype` is a floating dtype.
// Collective.
gf_status gf_pool_create(gf_communicator* communicator, const size_t* counts, size_t tensors, gf_dtype dtype,
                         const gf_pool_options* options, gf_pool** pool);

// Returns tensor `tensor`: zero-filled at first, aligned to 64 bytes, valid until the pool is freed. NULL for an index
// out of range.
void* gf_pool_tensor(const gf_pool* pool, size_t tensor);
size_t gf_pool_tensors(const gf_pool* pool);  // number of tensors
size_t gf_pool_bytes(const gf_pool* pool);    // bytes of all tensors on this rank, with the padding between them

// Sets the cudaStream_t in which the program writes and uses gradients of a pool on a device; at first the default
// stream (NULL). A tensor is final when the work enqueued before gf_pool_ready is done; work enqueued after
// gf_pool_wait sees the means. The host does not wait for the device.
gf_status gf_pool_set_stream(gf_pool* pool, void* stream);

// Marks tensor `tensor` as final for this iteration. Call it once per iteration, from any thread.
gf_status gf_pool_ready(gf_pool* pool, size_t tensor);

gf_status gf_pool_ready_all(gf_pool* pool);  // marks all tensors that are not ready yet

// Waits until every tensor is replaced by its mean over the ranks, and begins the next iteration. Tensors that are not
// ready count as zeros; if no tensor is ready on any rank, all ranks get GF_ERROR_VALUE. After `timeout` seconds it
// returns GF_ERROR_TIMEOUT; the iteration continues and can be waited for again. With a negative `timeout`, only the
// limits of its calls hold. Collective.
gf_status gf_pool_wait(gf_pool* pool, double timeout);

// Ends an iteration that has begun, without its result: other ranks get zeros for tensors that are not ready on this
// rank.
gf_status gf_pool_rollback(gf_pool* pool);

// Gives the number of infinite or NaN gradients; after gf_pool_wait the same on all ranks. GF_ERROR_TYPE for FLOAT64.
gf_status gf_pool_nonfinite(const gf_pool* pool, int64_t* count);

// Frees a pool. Not collective.
void gf_pool_free(gf_pool* pool);

// ---- sparse gradient pool -------------------------------------------------------------------------------------------
// A gradient pool that sends the important chunks, and keeps residuals of the rest (docs/sparse.md). Programs fill it
// like a gf_pool. After gf_sparse_pool_wait the tensors hold the gradients of the step, the same on all ranks: the
// means of the chunks that were sent, and zeros elsewhere. For the next iteration all ranks select the same chunks: the
// chunks with the largest L1 norms. The first iteration sends all chunks.

typedef struct gf_sparse_pool gf_sparse_pool;

// Options of a sparse pool: GF_SPARSE_POOL_OPTIONS_INIT, the defaults, with changed fields. NULL: the defaults.
typedef struct gf_sparse_pool_options {
  size_t size;              // sizeof(gf_sparse_pool_options): tells the library which fields the program knows
  size_t chunk_size;        // elements of a chunk
  size_t extra;             // number of doubles averaged along with the gradients in every iteration
  float momentum;           // factor of residuals in every iteration, 0..1; 1 loses nothing
  int skip_nonfinite;       // 1: an iteration with gradients that are not finite is dropped; 0: it is an error
  size_t fusion_threshold;  // this field and the next two as in gf_pool_options, for the chunks that are sent
  gf_dtype wire;
  gf_algorithm algorithm;
} gf_sparse_pool_options;

#define GF_SPARSE_POOL_OPTIONS_INIT \
  {sizeof(gf_sparse_pool_options), 32768, 0, 0.9F, 0, GF_AUTO_THRESHOLD, GF_NO_DTYPE, GF_ALGORITHM_AUTO}

// Creates a sparse pool, as gf_pool_create does. `dtype` is FLOAT32, FLOAT16 or BFLOAT16. Collective.
gf_status gf_sparse_pool_create(gf_communicator* communicator, const size_t* counts, size_t tensors, gf_dtype dtype,
                                const gf_sparse_pool_options* options, gf_sparse_pool** pool);

// Returns tensor `tensor`, as gf_pool_tensor does. The tensors and the padding between them are one array, which is cut
// into chunks. NULL for an index out of range.
void* gf_sparse_pool_tensor(const gf_sparse_pool* pool, size_t tensor);
size_t gf_sparse_pool_tensors(const gf_sparse_pool* pool);  // number of tensors
size_t gf_sparse_pool_bytes(const gf_sparse_pool* pool);    // bytes of all tensors on this rank, with their padding
size_t gf_sparse_pool_chunks(const gf_sparse_pool* pool);   // number of chunks

// Returns the extra numbers, which the program writes and each iteration averages; NULL if there are none.
double* gf_sparse_pool_extra(gf_sparse_pool* pool);

// Marks tensor `tensor` as final for this iteration; the index after the last tensor stands for the extra numbers. Call
// it once per iteration, from any thread.
gf_status gf_sparse_pool_ready(gf_sparse_pool* pool, size_t tensor);

gf_status gf_sparse_pool_ready_all(gf_sparse_pool* pool);  // marks all tensors that are not ready yet

// Waits for the means, and begins the next iteration, which sends a share of `density` of the chunks: above 0, at most
// 1. Returns GF_ERROR_MISMATCH if densities differ between ranks. Tensors that are not ready, and `timeout`, are as in
// gf_pool_wait. If a gradient is infinite or NaN, returns GF_ERROR_NONFINITE on all ranks, unless such iterations are
// skipped; in both cases all gradients become zero, and residuals are as before. Collective.
gf_status gf_sparse_pool_wait(gf_sparse_pool* pool, double density, double timeout);

// Ends an iteration that has begun, as gf_pool_rollback does. If no iteration has begun, rolls back the last one,
// unless its gradients were zeroed since. Residuals are then as before that iteration, and gradients are zero. Either
// all ranks roll back, or no rank.
gf_status gf_sparse_pool_rollback(gf_sparse_pool* pool);

// Zeroes the tensors. Call this and the functions below between iterations.
gf_status gf_sparse_pool_zero(gf_sparse_pool* pool);

// Sets the factor by which gradients are scaled, in the tensors and in messages; residuals are unscaled. The scale is a
// power of two, the same on all ranks; otherwise the next gf_sparse_pool_wait returns GF_ERROR_MISMATCH.
gf_status gf_sparse_pool_set_loss_scale(gf_sparse_pool* pool, double scale);

// Returns 1 if the last iteration was dropped because a gradient was not finite, otherwise 0; the same on all ranks. -1
// for NULL.
int gf_sparse_pool_overflowed(const gf_sparse_pool* pool);

// Copies, for each chunk, 1 if this iteration sends it, otherwise 0. May be called at any time.
gf_status gf_sparse_pool_important(const gf_sparse_pool* pool, uint8_t* important);

// Copies the residuals of this rank: float32, laid out like the tensors with their padding. The array has
// gf_sparse_pool_bytes / gf_dtype_size elements.
gf_status gf_sparse_pool_residuals(const gf_sparse_pool* pool, float* residuals);

// Restores a checkpoint: `residuals` as gf_sparse_pool_residuals lays them out, and the `important` chunks to send
// next; NULL: all chunks. Selection and iteration must be the same on all ranks; otherwise returns GF_ERROR_MISMATCH. A
// rank with a number that is not finite gets GF_ERROR_VALUE, and the remaining ranks GF_ERROR_MISMATCH. Collective.
gf_status gf_sparse_pool_restore(gf_sparse_pool* pool, const float* residuals, const uint8_t* important);

// Frees a sparse pool. Not collective.
void gf_sparse_pool_free(gf_sparse_pool* pool);

// ---- top-k gradient pool --------------------------------------------------------------------------------------------
// A gradient pool that sends the largest entries of each layer, selected by each rank, and keeps residuals of the rest
// (docs/top-k.md). It is filled like a gf_pool. After gf_top_k_pool_wait the tensors hold the sum of the entries that
// the ranks have sent, divided by the number of ranks, and zeros elsewhere; the same on all ranks.

typedef struct gf_top_k_pool gf_top_k_pool;

// Selection of the entries of a layer: about the k largest, by a threshold from a sample; exactly the k largest; or k
// at random.
typedef enum gf_selection { GF_SELECTION_SAMPLED = 0, GF_SELECTION_EXACT = 1, GF_SELECTION_RANDOM = 2 } gf_selection;

// Options of a top-k pool: GF_TOP_K_POOL_OPTIONS_INIT, the defaults, with changed fields. NULL: the defaults.
typedef struct gf_top_k_pool_options {
  size_t size;           // sizeof(gf_top_k_pool_options): tells the library which fields the program knows
  double ratio;          // 1 or more, for all layers: n / ratio of a layer's n elements are sent
  const size_t* layers;  // number of consecutive tensors of each layer; NULL: each tensor is a layer
  size_t layer_count;    // entries of `layers`
  gf_selection selection;
  size_t threshold_reuse;  // iterations between samples; they use the previous iteration's threshold
  float momentum;          // momentum of velocities, sent in place of gradients: 0 to below 1; negative: no velocities
  int masking;             // 1: velocities are zeroed where they were sent
  double clip;             // gradients of a layer are scaled down to a norm of clip * sqrt(ranks); 0: never
  gf_dtype wire;           // dtype of values in messages; GF_NO_DTYPE: float32, or bfloat16 for bfloat16 gradients
  gf_algorithm algorithm;
  size_t merge_bytes;  // layers are sent together until a message has this many bytes
  int overlap;         // 1: layers are sent as soon as they are ready; 0: in the wait
  uint64_t seed;       // seed of samples and random selections
  size_t extra;        // number of doubles averaged along with the gradients in every iteration
  int skip_nonfinite;  // 1: an iteration with gradients that are not finite is dropped; 0: it is an error
} gf_top_k_pool_options;

#define GF_TOP_K_POOL_OPTIONS_INIT \
  {sizeof(gf_top_k_pool_options),  \
   1000,                           \
   0,                              \
   0,                              \
   GF_SELECTION_SAMPLED,           \
   0,                              \
   -1,                             \
   1,                              \
   0,                              \
   GF_NO_DTYPE,                    \
   GF_ALGORITHM_AUTO,              \
   GF_AUTO_THRESHOLD,              \
   1,                              \
   0,                              \
   0,                              \
   0}

// Creates a top-k pool, as gf_pool_create does. `dtype` is FLOAT32, FLOAT16 or BFLOAT16. Collective.
gf_status gf_top_k_pool_create(gf_communicator* communicator, const size_t* counts, size_t tensors, gf_dtype dtype,
                               const gf_top_k_pool_options* options, gf_top_k_pool** pool);

void* gf_top_k_pool_tensor(const gf_top_k_pool* pool, size_t tensor);  // tensor `tensor`, as in a gf_pool
size_t gf_top_k_pool_tensors(const gf_top_k_pool* pool);               // number of tensors
size_t gf_top_k_pool_layers(const gf_top_k_pool* pool);                // number of layers
size_t gf_top_k_pool_bytes(const gf_top_k_pool* pool);  // bytes of all tensors on this rank, with their padding
double* gf_top_k_pool_extra(gf_top_k_pool* pool);       // extra numbers, as in a gf_sparse_pool; NULL if there are none

// Mark tensors as final, as the functions of a gf_sparse_pool do.
gf_status gf_top_k_pool_ready(gf_top_k_pool* pool, size_t tensor);
gf_status gf_top_k_pool_ready_all(gf_top_k_pool* pool);

// Waits for the means, and begins the next iteration. Tensors that are not ready, and `timeout`, are as in
// gf_pool_wait. GF_ERROR_NONFINITE on all ranks if a gradient is infinite or NaN, unless such iterations are skipped.
// GF_ERROR_MISMATCH if ratios or loss scales differ. In these cases all gradients become zero, and residuals and
// velocities are as before. Collective.
gf_status gf_top_k_pool_wait(gf_top_k_pool* pool, double timeout);

// Rolls back an iteration as gf_sparse_pool_rollback does, residuals and velocities included.
gf_status gf_top_k_pool_rollback(gf_top_k_pool* pool);

// Zeroes the tensors. Call this and the functions below between iterations.
gf_status gf_top_k_pool_zero(gf_top_k_pool* pool);

// Sets `number` ratios, one for each layer or one for all layers; the same on all ranks, otherwise the next
// gf_top_k_pool_wait returns GF_ERROR_MISMATCH.
gf_status gf_top_k_pool_set_ratios(gf_top_k_pool* pool, const double* ratios, size_t number);

// Set the loss scale, and tell if the last iteration was dropped, as the functions of a gf_sparse_pool do.
gf_status gf_top_k_pool_set_loss_scale(gf_top_k_pool* pool, double scale);
int gf_top_k_pool_overflowed(const gf_top_k_pool* pool);

// Copy the residuals, or the velocities, of this rank: float32, laid out like the tensors with their padding. The array
// has gf_top_k_pool_bytes / gf_dtype_size elements. GF_ERROR_VALUE for velocities of a pool without momentum.
gf_status gf_top_k_pool_residuals(const gf_top_k_pool* pool, float* residuals);
gf_status gf_top_k_pool_velocities(const gf_top_k_pool* pool, float* velocities);

// Restores residuals and velocities from a checkpoint, in the layout of the functions above; `velocities` is not read
// without momentum. A rank with a number that is not finite gets GF_ERROR_VALUE, and the remaining ranks
// GF_ERROR_MISMATCH. Collective.
gf_status gf_top_k_pool_restore(gf_top_k_pool* pool, const float* residuals, const float* velocities);

// Frees a top-k pool. Not collective.
void gf_top_k_pool_free(gf_top_k_pool* pool);

// ---- optimizers -----------------------------------------------------------------------------------------------------
// Steps of momentum SGD, LARS, Adam and AdamW over the gradients of a pool. The weights belong to the program; the
// momentum, and float32 master weights for 16-bit weights, belong to the optimizer. No function here is collective:
// ranks that begin with equal weights keep equal weights. An optimizer is for one thread at a time.

typedef struct gf_optimizer gf_optimizer;

// Hyperparameters of a step. Begin with GF_STEP_SETTINGS_INIT, which has a learning rate of 0. No field is negative.
typedef struct gf_step_settings {
  size_t size;  // sizeof(gf_step_settings): tells the library which fields the program knows
  float rate;   // learning rate
  float momentum;
  float weight_decay;
  float trust;  // LARS: the local rate is trust * |w| / (|g| + weight_decay * |w|), 1 where a norm is 0; 0: SGD
} gf_step_settings;

#define GF_STEP_SETTINGS_INIT {sizeof(gf_step_settings), 0, 0, 0, 0}

// Creates an optimizer. `counts` is as for the pool whose gradients it uses. With `rate_inside` 1 the learning rate r
// is part of the momentum v, as suits a sparse pool; with 0 it is outside, as in PyTorch. The choice matters only if r
// changes.
//   1: v = momentum * v + r * (g + weight_decay * w); w = w - v          (LARS always, with its local rate in r)
//   0: v = momentum * v + (g + weight_decay * w);     w = w - r * v
// A step with a momentum of 0 neither uses nor changes v.
gf_status gf_optimizer_create(const size_t* counts, size_t tensors, int rate_inside, gf_optimizer** optimizer);

// Makes all further steps Adam, or with `decoupled` AdamW, whose weight decay is not part of the gradient. Settings of
// steps then have no momentum and no trust. `updates` is the number of updates so far: 0, or a checkpoint's number.
//   m = beta_1 * m + (1 - beta_1) * g; v = beta_2 * v + (1 - beta_2) * g * g; w = w - r * m' / (sqrt(v') + epsilon)
// g includes weight_decay * w; for AdamW w is first multiplied by 1 - r * weight_decay instead. m' and v' are m and v
// with bias correction. m is gf_optimizer_momentum, v gf_optimizer_mean_square.
gf_status gf_optimizer_set_adam(gf_optimizer* optimizer, double beta_1, double beta_2, double epsilon, int decoupled,
                                uint64_t updates);

// Sets the array of a tensor's weights: FLOAT32, FLOAT16 or BFLOAT16. The array must stay alive, and every step changes
// it. Master weights of 16-bit weights are initialized from the array.
gf_status gf_optimizer_set_parameter(gf_optimizer* optimizer, size_t tensor, void* data, gf_dtype dtype);

// Makes a step with the averaged gradients of a pool, times `gradient_scale`: 1, or 1 / loss scale. GF_ERROR_VALUE if
// the pool has no averaged gradients (no gf_pool_wait has succeeded, or a tensor was made ready since), or if this
// optimizer has already made a step with them. Several optimizers may each make a step. `settings` has `number`
// elements: one for each tensor, or a single one for all tensors.
gf_status gf_optimizer_step(gf_optimizer* optimizer, const gf_pool* pool, const gf_step_settings* settings,
                            size_t number, double gradient_scale);

// Makes a step as gf_optimizer_step does, but changes weights and momentum only where gradients were sent. After a
// dropped iteration it changes nothing.
gf_status gf_optimizer_step_sparse(gf_optimizer* optimizer, const gf_sparse_pool* pool,
                                   const gf_step_settings* settings, size_t number, double gradient_scale);

// Makes a step as gf_optimizer_step does, on all weights. After a dropped iteration it changes nothing.
gf_status gf_optimizer_step_top_k(gf_optimizer* optimizer, const gf_top_k_pool* pool, const gf_step_settings* settings,
                                  size_t number, double gradient_scale);

// Return momentum, Adam's means of squares and master weights of a tensor, for checkpoints: one float per element, to
// read and write. Valid until the optimizer is freed, master weights only until gf_optimizer_set_parameter. NULL if
// there are none.
float* gf_optimizer_momentum(gf_optimizer* optimizer, size_t tensor);
float* gf_optimizer_mean_square(gf_optimizer* optimizer, size_t tensor);
float* gf_optimizer_master(gf_optimizer* optimizer, size_t tensor);

// Frees an optimizer. The weights still belong to the program.
void gf_optimizer_free(gf_optimizer* optimizer);

// ---- parameter server ----------------------------------------------------------------------------------------------
// Weights on servers, which are threads of ranks. Ranks push gradients and pull weights (docs/parameter-server.md).

typedef struct gf_parameter_server gf_parameter_server;

// Policies: BSP applies one push of every rank together, as a round, for which all ranks wait. ASP applies each push
// when it arrives. SSP also applies each push when it arrives, but no rank gets more than `staleness` pushes ahead of
// the slowest rank.
typedef enum gf_policy { GF_POLICY_BSP = 0, GF_POLICY_ASP = 1, GF_POLICY_SSP = 2 } gf_policy;

// Reasons why the round of a push changes nothing: a gradient is not finite, or a rank has given up.
typedef enum gf_skip { GF_SKIP_NO = 0, GF_SKIP_NONFINITE = 1, GF_SKIP_ABANDONED = 2 } gf_skip;

// Options of a parameter server, the same on all ranks: GF_PARAMETER_SERVER_OPTIONS_INIT, the defaults, with changed
// fields. NULL: the defaults.
typedef struct gf_parameter_server_options {
  size_t size;  // sizeof(gf_parameter_server_options): tells the library which fields the program knows
  gf_policy policy;
  int64_t staleness;        // bound of GF_POLICY_SSP
  int lars;                 // 1: settings may have a trust coefficient
  size_t servers;           // number of ranks that serve; 0: all
  gf_dtype wire;            // dtype of gradients and weights in messages; GF_NO_DTYPE: float32
  size_t fusion_threshold;  // bytes that are sent together, in one piece for each server
} gf_parameter_server_options;

#define GF_PARAMETER_SERVER_OPTIONS_INIT \
  {sizeof(gf_parameter_server_options), GF_POLICY_BSP, 3, 0, 0, GF_NO_DTYPE, GF_AUTO_THRESHOLD}

// Creates a parameter server. `weights`: one float32 array for each tensor, in the order of gradients from
// backpropagation. Only rank 0 reads `weights`; on other ranks it may be NULL. Collective.
gf_status gf_parameter_server_create(gf_communicator* communicator, const size_t* counts, size_t tensors,
                                     const float* const* weights, const gf_parameter_server_options* options,
                                     gf_parameter_server** server);

// Gives an array in node memory, in the dtype of the wire, for the gradient of a tensor. The program may write it until
// the current push ends. Waits as gf_parameter_server_ready does; that function does not copy a gradient that is in
// this array. Successive pushes alternate between two such arrays. NULL if the tensor has no elements.
gf_status gf_parameter_server_gradient(gf_parameter_server* server, size_t tensor, void** gradient);

// Copies the gradient of a tensor for the current push: FLOAT32, FLOAT16 or BFLOAT16. Any thread can call this
// function. Waits while pushes before the last push are under way.
gf_status gf_parameter_server_ready(gf_parameter_server* server, size_t tensor, const void* gradient, gf_dtype dtype);

// Ends the current push, and gives its number. A tensor that is not ready counts as zeros if another push of the round
// has it; otherwise the round does not change it. `settings` has `number` elements: one for each tensor, or a single
// one for all tensors. Settings and `loss_scale` must be the same in all pushes of a round. The learning rate is
// outside of the momentum, as with `rate_inside` 0 of gf_optimizer_create; with LARS it is inside. `skip` is a gf_skip:
// the reason why the round is to change nothing, or GF_SKIP_NO.
gf_status gf_parameter_server_push(gf_parameter_server* server, const gf_step_settings* settings, size_t number,
                                   float loss_scale, int skip, uint64_t* push);

// Makes a push and a pull (see gf_parameter_server_pull) in one. The pull brings the weights of the moment at which the
// policy lets this rank continue, without any later pushes.
gf_status gf_parameter_server_push_pull(gf_parameter_server* server, const gf_step_settings* settings, size_t number,
                                        float loss_scale, int skip, int exact, uint64_t* push, uint64_t* pull);

// Waits until the policy lets this rank continue after a push. Sets `*skipped` to the largest gf_skip of its round,
// unless `skipped` is NULL. After `timeout` seconds it returns GF_ERROR_TIMEOUT, and the push continues; with a
// negative `timeout`, only a call's own limit holds. All timeouts below work in this way.
gf_status gf_parameter_server_wait_push(gf_parameter_server* server, uint64_t push, double timeout, int* skipped);

// Requests the weights that include all pushes of this rank so far, in float32 if `exact`. Ends the previous pull;
// GF_ERROR_VALUE while that pull is under way.
gf_status gf_parameter_server_pull(gf_parameter_server* server, int exact, uint64_t* pull);

// Waits until all weights of a pull have arrived.
gf_status gf_parameter_server_wait_pull(gf_parameter_server* server, uint64_t pull, double timeout);

// Copies the weights of a tensor, once they have arrived.
gf_status gf_parameter_server_take(gf_parameter_server* server, uint64_t pull, size_t tensor, float* weights);

// Gives the weights of a tensor in node memory, once the pull has arrived, in the dtype of the wire, or in FLOAT32 for
// an exact pull. Copies nothing if a server of the node has the whole tensor. Read-only, and unchanged until the next
// pull of this rank or gf_parameter_server_close. NULL if the tensor has no elements.
gf_status gf_parameter_server_weights(gf_parameter_server* server, uint64_t pull, size_t tensor, const void** weights);

// Waits until all ranks have called this function and all pushes are applied. Gives a pull of the exact weights, which
// have already arrived.
gf_status gf_parameter_server_finish(gf_parameter_server* server, double timeout, uint64_t* pull);

// Closes a parameter server. A rank that serves waits until all other ranks have closed too, unless its process has
// another parameter server open. Closing the last parameter server waits for all of them, so ranks can close several in
// different orders.
gf_status gf_parameter_server_close(gf_parameter_server* server);

// Frees a parameter server. If it was not closed, this rank gives up.
void gf_parameter_server_free(gf_parameter_server* server);

// ---- former names ---------------------------------------------------------------------------------------------------

#define gf_pool_abandon gf_pool_rollback
#define gf_sparse_pool_abandon gf_sparse_pool_rollback
#define gf_top_k_pool_abandon gf_top_k_pool_rollback
#define gf_top_k_pool_take_back gf_top_k_pool_rollback

#ifdef __cplusplus
}
#endif

#endif
