//! The rows of the table.

use super::{Field, KIB, MIB, Setting, values};
use crate::fault;

/// Every setting there is, in the order of the documentation.
pub const TABLE: &[Setting] = &[
    Setting {
        name: "R2CCL_TIMEOUT",
        default: "300",
        help: "Deadline of a collective; after it the call fails and names the ranks it waited for.",
        field: Field::Seconds { of: |s| &mut s.timeout, least: 0.001, most: 1e6 },
    },
    Setting {
        name: "R2CCL_BOOTSTRAP_TIMEOUT",
        default: "120",
        help: "How long the ranks of a new communicator wait for each other.",
        field: Field::Seconds { of: |s| &mut s.bootstrap_timeout, least: 0.001, most: 1e6 },
    },
    Setting {
        name: "R2CCL_BOOTSTRAP",
        default: "",
        help: "Where rank 0 listens and the others connect; empty: taken from the launcher.",
        field: Field::Syntax {
            set: |s, text| values::optional(text).map(|value| s.bootstrap = value),
            allowed: "host:port, IPv6 addresses in brackets",
        },
    },
    Setting {
        name: "R2CCL_JOB_KEY",
        default: "",
        help: "Pass phrase that every process of the job must know. Without it the key is derived \
               from the job identity of the launcher, which other users of the cluster may guess.",
        field: Field::Syntax {
            set: |s, text| values::optional(text).map(|value| s.job_key = value),
            allowed: "any text",
        },
    },
    Setting {
        name: "R2CCL_NIC",
        default: "",
        help: "Which interfaces are used: prefixes (`eth,ib`), exact names (`=eth0`), or all except \
               (`^docker`, `^=eth1`); empty: all that are up and neither loopback nor bridges.",
        field: Field::Syntax {
            set: |s, text| text.parse().map(|value| s.interfaces = value),
            allowed: "interface names separated by commas, after `^`, `=` or `^=`",
        },
    },
    Setting {
        name: "R2CCL_NIC_WAIT",
        default: "5",
        help: "How long a rank that has nothing but loopback or bridges, and peers on other hosts, waits for an \
               interface that is switched on and has no carrier or no address yet.",
        field: Field::Seconds { of: |s| &mut s.nic_wait, least: 0.0, most: 1e6 },
    },
    Setting {
        name: "R2CCL_NET",
        default: "auto",
        help: "What carries data between hosts: `verbs` of RDMA devices, `tcp`, or `auto`: verbs on rails \
               that have them at both ends, else TCP. Where a connection over verbs cannot be used, one over \
               TCP takes its place.",
        field: Field::Syntax {
            set: |s, text| text.parse().map(|value| s.network = value),
            allowed: "auto, tcp or verbs",
        },
    },
    Setting {
        name: "R2CCL_IB_HCA",
        default: "",
        help: "Which RDMA devices are used, as in `NCCL_IB_HCA`: prefixes (`mlx5`), with a port (`mlx5_1:1`), \
               exact names (`=mlx5_0,mlx5_1`), or all except (`^mlx5_2`, `^=mlx5_2:1`); empty: all.",
        field: Field::Syntax {
            set: |s, text| text.parse().map(|value| s.rdma_devices = value),
            allowed: "device or device:port, separated by commas, after `^`, `=` or `^=`",
        },
    },
    Setting {
        name: "R2CCL_RAILS",
        default: "",
        help: "Local addresses to use as NICs in place of the discovered interfaces.",
        field: Field::Syntax {
            set: |s, text| values::list(text).map(|value| s.rails = value),
            allowed: "IP addresses separated by commas",
        },
    },
    Setting {
        name: "R2CCL_HOST_ID",
        default: "",
        help: "Identity of the host; ranks with different ones never share memory, even on one machine.",
        field: Field::Syntax {
            set: |s, text| values::optional(text).map(|value| s.host_identity = value),
            allowed: "any text",
        },
    },
    Setting {
        name: "R2CCL_SHM",
        default: "1",
        help: "Whether ranks of one host exchange data through shared memory.",
        field: Field::Switch { of: |s| &mut s.shared_memory },
    },
    Setting {
        name: "R2CCL_CMA",
        default: "auto",
        help: "Whether ranks of one host have the system copy large ordinary buffers of collectives from one process to \
               another (cross memory attach, `process_vm_readv`). `auto`: where that is found to be faster than \
               shared memory. If it is `0` on one rank, none does it; `always` is for all ranks or none.",
        field: Field::Syntax {
            set: |s, text| text.parse().map(|value| s.cross_memory_attach = value),
            allowed: "0, auto or always",
        },
    },
    Setting {
        name: "R2CCL_TILE_BYTES",
        default: "0",
        help: "Payload of one tile inside a host; 0: 512 KiB, and less, 32 KiB at least, where the rings between two ranks each \
               would have more than 8 MiB together, or those to all ranks 16. Where three or more ranks send to all, \
               half of it. Of either kind of rings all have 512 MiB together at most: beyond that any value is cut, to \
               4 KiB at least. With 0 a tile between two ranks is shorter than 32 KiB from 91 ranks on a host, and \
               has 4 KiB from 182.",
        field: Field::Bytes {
            of: |s| &mut s.tile_bytes,
            least: 0,
            most: 16 * MIB,
            multiple: 4 * KIB,
        },
    },
    Setting {
        name: "R2CCL_SHM_SLOTS",
        default: "0",
        help: "Tiles of the largest size in flight in each direction between two ranks of a host, twice as many to \
               all of them; of short ones there can be more. 0: 4 where a host has two ranks, else 2, and 8 to all.",
        field: Field::Count { of: |s| &mut s.shm_slots, least: 0, most: 64 },
    },
    Setting {
        name: "R2CCL_NET_CONNECTIONS",
        default: "0",
        help: "Connections between two ranks over each pair of NICs, where one does not fill them: where a network gives \
               one flow less than a NIC, as bonded links do. 0: 8 for Amazon's NICs, 4 for Google's, two for each port \
               of a bond that balances by layer3+4, one for others. Each is a rail of its own, in faults and reports too. \
               Of two ranks that say different numbers the larger one counts.",
        field: Field::Count { of: |s| &mut s.net_connections, least: 0, most: 16 },
    },
    Setting {
        name: "R2CCL_NET_TILE_BYTES",
        default: "131072",
        help: "Payload of one tile between hosts.",
        field: Field::Bytes {
            of: |s| &mut s.net_tile_bytes,
            least: 4 * KIB,
            most: 16 * MIB,
            multiple: 4 * KIB,
        },
    },
    Setting {
        name: "R2CCL_NET_SLOTS",
        default: "0",
        help: "Tiles in flight in each direction between two ranks of different hosts; 0: 8 for each rail, \
               and 16 at least.",
        field: Field::Count { of: |s| &mut s.net_slots, least: 0, most: 1024 },
    },
    Setting {
        name: "R2CCL_CUDA_STAGING_BYTES",
        default: "8388608",
        help: "Pinned memory for a piece of a collective on memory of a GPU, in bytes; there are two such \
               pieces. The same on all ranks.",
        field: Field::Bytes {
            of: |s| &mut s.cuda_staging_bytes,
            least: 4 * KIB,
            most: 1024 * MIB,
            multiple: 4 * KIB,
        },
    },
    Setting {
        name: "R2CCL_CUDA_P2P",
        default: "1",
        help: "Whether kernels do collectives on memory of GPUs between ranks of one host: `0`: they do not, \
               `staged`: through memory of the library, `1`: also in buffers of the program that others can map.",
        field: Field::Syntax {
            set: |s, text| text.parse().map(|value| s.cuda_peers = value),
            allowed: "0, staged or 1",
        },
    },
    Setting {
        name: "R2CCL_CUDA_COPY_ENGINE_BYTES",
        default: "4194304",
        help: "From so many bytes on that go from one rank to another, the copy engines of GPUs do an AllGather, a \
               Broadcast or an AllToAll of ranks of one host in memory that is registered as a symmetric window; \
               smaller ones are for kernels. 0: never. A guess that was never measured. The same on all ranks.",
        field: Field::Bytes {
            of: |s| &mut s.cuda_copy_engine_bytes,
            least: 0,
            most: 1024 * MIB,
            multiple: 1,
        },
    },
    Setting {
        name: "R2CCL_CUDA_NETWORK",
        default: "0",
        help: "Whether kernels and NICs do collectives on memory of GPUs between hosts of which each has one rank, or as \
               many as each other: `0`: they do not, `pinned`: through pinned memory, `1`: through memory of the GPU \
               where NICs reach it.",
        field: Field::Syntax {
            set: |s, text| text.parse().map(|value| s.cuda_network = value),
            allowed: "0, pinned or 1",
        },
    },
    Setting {
        name: "R2CCL_CUDA_KERNELS",
        default: "",
        help: "Folder with compiled kernels for GPUs; it is trusted as the program is. Empty: NVRTC compiles them \
               when they are needed.",
        field: Field::Syntax {
            set: |s, text| values::optional(text).map(|value| s.cuda_kernels = value),
            allowed: "the name of a folder",
        },
    },
    Setting {
        name: "R2CCL_CUDA_CACHE",
        default: "auto",
        help: "Folder in which kernels are kept that NVRTC has compiled; made if it is missing, and not used if \
               others can write it. `auto`: `r2ccl/kernels` in `$XDG_CACHE_HOME`, else in `$HOME/.cache`. Empty: \
               every process compiles.",
        field: Field::Syntax {
            set: |s, text| text.parse().map(|value| s.cuda_cache = value),
            allowed: "auto, the name of a folder, or nothing",
        },
    },
    Setting {
        name: "R2CCL_HOT_REPAIR",
        default: "1",
        help: "Whether a collective survives the death of a rail on the rails that are left; else the \
               call fails.",
        field: Field::Switch { of: |s| &mut s.hot_repair },
    },
    Setting {
        name: "R2CCL_RAIL_SUSPICION",
        default: "0.015",
        help: "A rail whose peer has confirmed nothing for so long, with bytes on the way, is \
               suspect; it is probed after a third of that.",
        field: Field::Seconds { of: |s| &mut s.rail_suspicion, least: 0.001, most: 60.0 },
    },
    Setting {
        name: "R2CCL_RAIL_GRACE",
        default: "0.05",
        help: "A suspected rail is given up when it stays silent for so long after another one of the \
               same peer has answered; sooner if that one answered quickly, but not before a quarter of it.",
        field: Field::Seconds { of: |s| &mut s.rail_grace, least: 0.001, most: 60.0 },
    },
    Setting {
        name: "R2CCL_RAIL_LAST",
        default: "1",
        help: "A suspected rail is given up after so long although no other rail has answered either.",
        field: Field::Seconds { of: |s| &mut s.rail_last, least: 0.001, most: 600.0 },
    },
    Setting {
        name: "R2CCL_RAIL_PATIENCE",
        default: "5",
        help: "How long a call, or a rank that leaves, waits for a rail to return when all rails to a peer \
               are dead.",
        field: Field::Seconds { of: |s| &mut s.rail_patience, least: 0.0, most: 1e6 },
    },
    Setting {
        name: "R2CCL_RAIL_HOLD",
        default: "1",
        help: "How long a rail stays out of use that dies within ten seconds of its return; twice as \
               long each time, up to 64 s; 0: never.",
        field: Field::Seconds { of: |s| &mut s.rail_hold, least: 0.0, most: 64.0 },
    },
    Setting {
        name: "R2CCL_ALGO",
        default: "",
        help: "Algorithm by hand: one name for every collective that has it, or `allreduce:ring,broadcast:chain`; \
               a name that does not exist is an error, one that cannot be had with the rails that are left \
               gives way; empty: the planner chooses.",
        field: Field::Syntax {
            set: |s, text| values::list(text).map(|value| s.algorithms = value),
            allowed: "`algorithm` or `collective:algorithm`, separated by commas",
        },
    },
    Setting {
        name: "R2CCL_TUNING",
        default: "",
        help: "File of measured rates and latencies that plans are made with; rank 0 reads it, or, if it is \
               not there, all ranks measure when the communicator is made, and rank 0 writes it; empty: \
               plans are made with what the kernel says of the NICs.",
        field: Field::Syntax {
            set: |s, text| values::optional(text).map(|value| s.tuning = value),
            allowed: "the name of a file",
        },
    },
    Setting {
        name: "R2CCL_DUMP",
        default: "",
        help: "Folder into which a rank writes what it knows (rails, what happened to them, the error) \
               when its communicator fails; empty: it does not.",
        field: Field::Syntax {
            set: |s, text| values::optional(text).map(|value| s.dump = value),
            allowed: "the name of a folder",
        },
    },
    Setting {
        name: "R2CCL_FAULT",
        default: "",
        help: "Faults of rails that the library imitates, to rehearse them: see \
               [faults.md](faults.md#rehearsal). Times count from the moment when the first communicator \
               has been made; empty: none.",
        field: Field::Syntax {
            set: |s, text| values::optional(text).map(|value| s.rehearsal = value),
            allowed: fault::ALLOWED,
        },
    },
    Setting {
        name: "R2CCL_LOG",
        default: "warn",
        help: "Filter of the log on standard error, such as `info` or `ccl=debug,ccl_transport=trace`. \
               Rust programs that link the library have their own subscriber of tracing.",
        field: Field::Syntax {
            set: |s, text| {
                s.log = text.to_owned();
                Ok(())
            },
            allowed: "a filter of the tracing crate",
        },
    },
];
