//! Collectives that kernels do between ranks of one host.
//!
//! Every test prepares its ranks, and asks in the end which way its calls went: what goes through the host
//! is tested beside this.

mod endings;
mod results;
mod uneven;
mod ways;

use std::fs;
use std::path::PathBuf;

use ccl::cuda::{DeviceRegion, Paths};
use ccl::{
    Collective, Config, DataType, OperationOn, Rank, ReduceOp, Reduction, Region, Request, UniqueId,
};

use super::nvrtc::ARCHITECTURE;
use super::ranks::KERNELS;
use super::{Member, download, shape};

/// Staging memory: calls of up to a quarter have low latency, and larger ones than this go in pieces.
const STAGING_BYTES: usize = 4096;
const GUARD: u8 = 0x5a;

/// A rank for which `R2CCL_CUDA_P2P` has this value.
pub(crate) fn member(device: usize, place: (u32, u32), id: &UniqueId, peers: &str) -> Member {
    Member::with(device, place, id, &config(peers))
}

/// That of such a rank.
pub(crate) fn config(peers: &str) -> Config {
    let mut config = super::config(STAGING_BYTES);
    config.settings.cuda_peers = peers.parse().unwrap();
    config.settings.cuda_kernels = std::env::var_os(KERNELS).map(Into::into);
    config
}

/// How ranks hear that two of them have called different operations. The same bytes come, so nobody waits in vain: it is found out
/// in one of the next calls.
fn quarrel_about_operations(
    member: &Member,
    rank: u32,
    enqueue: impl Fn(ReduceOp) -> Result<(), ccl::Error>,
) -> ccl::Error {
    let mut last = enqueue(if rank == 0 { ReduceOp::Max } else { ReduceOp::Min });
    loop {
        if let Err(error) = last {
            break error;
        }
        last = enqueue(ReduceOp::Sum).and_then(|()| member.cuda.wait());
    }
}

/// The file with the kernels of a module for these devices. Those of older ones, and for other devices, may lie beside it.
fn newest_kernels(module: &str) -> PathBuf {
    let folder = std::env::var_os(KERNELS).unwrap();
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let is_meant = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let end = format!(".compute_{ARCHITECTURE}.ptx");
        name.starts_with(&format!("{module}-")) && name.ends_with(&end)
    };
    let made = |path: &PathBuf| fs::metadata(path).unwrap().modified().unwrap();
    files.filter(is_meant).max_by_key(made).unwrap()
}

pub(crate) fn request(
    collective: Collective,
    count: usize,
    datatype: DataType,
    op: ReduceOp,
) -> Request {
    Request { collective, count, datatype, reduction: Reduction::Builtin(op), root: Rank(1) }
}

pub(crate) fn sums(datatypes: &[DataType]) -> Vec<Request> {
    let sum = |datatype| request(Collective::AllReduce, 1, datatype, ReduceOp::Sum);
    datatypes.iter().map(|datatype| sum(*datatype)).collect()
}

/// A member whose calls of these types go without the host.
pub(crate) fn prepared(
    member: Member,
    datatypes: &[DataType],
    memory: &[DeviceRegion<'_>],
) -> Member {
    member.cuda.prepare(&sums(datatypes), memory).unwrap();
    // So that nobody has made a call while another one is still being told.
    member.host().barrier().unwrap();
    member
}

/// Any bits, different on every rank.
pub(crate) fn noise(bytes: usize, seed: u32) -> Vec<u8> {
    let mut state = u64::from(seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

/// One collective out of place and in place, against the same one on the host, in buffers that begin
/// `shift` bytes into an allocation. `shown`: the others have mapped these buffers.
pub(crate) fn compare(
    member: &Member,
    request: Request,
    shift: usize,
    contribution: &[u8],
    shown: bool,
) {
    let (me, ranks) = (member.me() as usize, member.size() as usize);
    let (inputs, outputs, apart) = shape(request.collective, me, ranks);
    let block = request.bytes();
    let input = &contribution[..inputs * block];
    let before = vec![GUARD; outputs * block + 16];
    let mut expected = before[..outputs * block].to_vec();
    let mut sent = input.to_vec();
    let operation = ccl::Operation::Collective {
        request,
        input: Some(Region::of_mut(&mut sent)),
        output: Some(Region::of_mut(&mut expected)),
    };
    member.host().run(operation).unwrap();
    let has_output = match request.collective {
        Collective::Reduce | Collective::Gather => request.root.index() == me,
        _ => true,
    };
    let upload = |bytes: &[u8]| member.upload(&[&vec![GUARD; shift], bytes].concat());
    let enqueue = |input, output| {
        let operation =
            OperationOn::Collective { request, input: Some(input), output: Some(output) };
        member.cuda.enqueue(operation, &member.stream).unwrap();
        member.stream.synchronise().unwrap();
    };
    let (from, to) = (upload(input), upload(&before));
    if shown {
        member.cuda.prepare(&[], &[from.region(), to.region()]).unwrap();
    }
    enqueue(from.region().part(shift, input.len()), to.region().part(shift, outputs * block));
    assert!(download(&from)[shift..] == *input, "rank {me}: {request:?}: the input changed");
    let is = &download(&to)[shift..];
    assert!(is[outputs * block..] == before[outputs * block..], "rank {me}: {request:?}: behind");
    assert!(!has_output || is[..outputs * block] == expected, "rank {me}: {request:?}");

    // In place, where the larger of both lies.
    let at = |shift: isize, sign: isize| (shift * sign).max(0).unsigned_abs() * block;
    let (input_at, output_at) = (at(apart, -1), at(apart, 1));
    let mut both = vec![GUARD; inputs.max(outputs) * block];
    both[input_at..][..input.len()].copy_from_slice(input);
    let shared = upload(&both);
    if shown {
        member.cuda.prepare(&[], &[shared.region()]).unwrap();
    }
    enqueue(
        shared.region().part(shift + input_at, input.len()),
        shared.region().part(shift + output_at, outputs * block),
    );
    let is = &download(&shared)[shift + output_at..][..outputs * block];
    assert!(!has_output || is == expected, "rank {me}, in place: {request:?}");
}

/// The way of all calls since then.
fn assert_direct(member: &Member, before: Paths) -> Paths {
    let (paths, reason) = member.cuda.paths();
    assert_eq!(paths.host, before.host, "{reason:?}: {paths:?}");
    assert!(paths.low_latency + paths.push > before.low_latency + before.push, "{paths:?}");
    member.cuda.check().unwrap();
    paths
}

const SOME: [DataType; 3] = [DataType::Float32, DataType::Int64, DataType::Uint8];
