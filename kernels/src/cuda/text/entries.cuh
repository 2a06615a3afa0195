// The kernels of one module: those that move bytes, or everything for one element type. A module for a type is
// compiled with R2CCL_TYPE, its name R2CCL_NAME, and R2CCL_IS_INTEGER.

#define R2CCL_ENTRY(KIND, OP, TYPE, PARAMETERS, BODY, COMBINE)                                     \
    R2CCL_KERNEL(r2ccl_##KIND##_##OP##_##TYPE, PARAMETERS, (r2ccl::BODY<R2CCL_TYPE, r2ccl::COMBINE>))

#define R2CCL_ENTRIES(OP, TYPE, COMBINE)                                                           \
    R2CCL_ENTRY(reduce, OP, TYPE, ReduceParameters, reduce, COMBINE)                               \
    R2CCL_ENTRY(low_latency, OP, TYPE, LowLatencyParameters, low_latency, COMBINE)                 \
    R2CCL_ENTRY(push, OP, TYPE, PushParameters, push, COMBINE)                                     \
    R2CCL_ENTRY(relay, OP, TYPE, RelayParameters, relay, COMBINE)

// The name is expanded before it becomes a part of others.
#define R2CCL_ENTRIES_OF(OP, TYPE, COMBINE) R2CCL_ENTRIES(OP, TYPE, COMBINE)

#if defined(R2CCL_TYPE)
R2CCL_ENTRIES_OF(sum, R2CCL_NAME, Sum)
R2CCL_ENTRIES_OF(prod, R2CCL_NAME, Prod)
R2CCL_ENTRIES_OF(max, R2CCL_NAME, Max)
R2CCL_ENTRIES_OF(min, R2CCL_NAME, Min)
R2CCL_ENTRIES_OF(scaled, R2CCL_NAME, Scaled)
#if R2CCL_IS_INTEGER
R2CCL_ENTRIES_OF(mean, R2CCL_NAME, Mean)
#endif
#else
R2CCL_KERNEL(r2ccl_copy, CopyParameters, r2ccl::copy)
R2CCL_KERNEL(r2ccl_pull, PullParameters, r2ccl::pull)
#endif
