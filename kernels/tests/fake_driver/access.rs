//! Memory that kernels and copies may touch, and what becomes of those that touch other memory.

use ccl_kernels::cuda::gpu::{DeviceRegion, Error, Gpu, Invitation, Mapped, Shape};
use ccl_kernels::cuda::{CopyParameters, Entry};
use cudarc::driver::sys;

use super::{gpu, inside, words};

/// A launch of a copy of bytes between any addresses.
fn copy(gpu: &Gpu, from: u64, to: u64, bytes: u64) -> Result<(), Error> {
    let destinations = std::array::from_fn(|k| if k == 0 { to } else { 0 });
    let parameters =
        CopyParameters { source: from, destinations, bytes, destination_count: 1, unused: 0 };
    let (stream, shape) = (gpu.stream()?, Shape { blocks: 1, threads: 32 });
    // SAFETY: the driver stops kernels that touch what they may not.
    unsafe { gpu.launch(&stream, Entry::Copy, shape, &parameters) }?;
    stream.synchronise()
}

fn code(result: Result<(), Error>) -> String {
    match result {
        Err(Error::Driver { code, .. }) => code,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_kernel_that_goes_astray_ends_the_device() {
    inside("access::a_kernel_that_goes_astray_ends_the_device", 1, || {
        let gpu = gpu(0);
        let buffer = gpu.allocate(100).unwrap();
        let at = buffer.region().address();
        copy(&gpu, at, at + 50, 50).unwrap();
        assert_eq!(code(copy(&gpu, at, at + 51, 50)), "CUDA_ERROR_ILLEGAL_ADDRESS");
        let later = gpu.allocate(1).map(drop);
        assert_eq!(code(later), "CUDA_ERROR_ILLEGAL_ADDRESS", "everything fails from then on");
    });
}

#[test]
fn a_copy_outside_of_memory_is_refused() {
    inside("access::a_copy_outside_of_memory_is_refused", 1, || {
        let gpu = gpu(0);
        let (stream, buffer) = (gpu.stream().unwrap(), gpu.allocate(100).unwrap());
        // SAFETY: the driver refuses it.
        let beyond = unsafe { DeviceRegion::new(buffer.region().address() + 1, 100) };
        let refused = gpu.copy_plainly(&stream, beyond, buffer.region());
        assert_eq!(code(refused), "CUDA_ERROR_INVALID_VALUE");
        stream.synchronise().unwrap();
    });
}

#[test]
fn memory_of_another_device_has_to_be_opened() {
    inside("access::memory_of_another_device_has_to_be_opened", 2, || {
        let (here, there) = (gpu(0), gpu(1));
        let (target, source) = (here.allocate(64).unwrap(), there.allocate(64).unwrap());
        let extra = there.allocate(64).unwrap();
        source.write(0, &[7; 64]).unwrap();
        let mut context = std::ptr::null_mut();
        // SAFETY: device 1 exists; the context is written where it is told.
        unsafe { sys::cuDevicePrimaryCtxRetain(&raw mut context, 1) }.result().unwrap();
        // The context of device 0 becomes that of this thread.
        here.synchronise().unwrap();
        // SAFETY: the context is that of device 1.
        unsafe { sys::cuCtxEnablePeerAccess(context, 0) }.result().unwrap();
        // SAFETY: as above.
        let again = unsafe { sys::cuCtxEnablePeerAccess(context, 0) };
        assert_eq!(again, sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
        copy(&here, source.region().address(), target.region().address(), 64).unwrap();
        assert_eq!(words(&target, 16), [0x0707_0707; 16]);
        here.synchronise().unwrap();
        // SAFETY: as above.
        unsafe { sys::cuCtxDisablePeerAccess(context) }.result().unwrap();
        let closed = copy(&here, extra.region().address(), target.region().address(), 64);
        assert_eq!(code(closed), "CUDA_ERROR_ILLEGAL_ADDRESS");
        copy(&there, extra.region().address(), source.region().address(), 64).unwrap();
    });
}

#[test]
fn a_process_with_the_same_number_is_not_this_one() {
    inside("access::a_process_with_the_same_number_is_not_this_one", 1, || {
        let gpu = gpu(0);
        let buffer = gpu.allocate(64).unwrap();
        let allocation = gpu.allocation(buffer.region().address()).unwrap();
        let own = gpu.invitation(&allocation).unwrap();
        assert!(matches!(gpu.map(&own).unwrap(), Mapped::Near(_)));
        // A process cannot import its own memory.
        let elsewhere = Invitation { word: !own.word, ..own };
        let error = gpu.map(&elsewhere).unwrap_err().to_string();
        assert!(error.contains("import memory"), "{error}");
    });
}

#[test]
fn memory_of_the_host_has_to_be_registered() {
    inside("access::memory_of_the_host_has_to_be_registered", 1, || {
        let gpu = gpu(0);
        let (buffer, mut own) = (gpu.allocate(64).unwrap(), vec![0x11u8; 64]);
        let (start, at) = (own.as_mut_ptr(), own.as_ptr().expose_provenance() as u64);
        // SAFETY: the vector lives until it is unregistered.
        unsafe { sys::cuMemHostRegister_v2(start.cast(), 64, 0) }.result().unwrap();
        copy(&gpu, at, buffer.region().address(), 64).unwrap();
        assert_eq!(words(&buffer, 16), [0x1111_1111; 16]);
        // SAFETY: the same memory.
        let again = unsafe { sys::cuMemHostRegister_v2(start.cast(), 64, 0) };
        assert_eq!(again, sys::CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
        // SAFETY: it was registered.
        unsafe { sys::cuMemHostUnregister(start.cast()) }.result().unwrap();
        // SAFETY: the driver refuses it.
        let again = unsafe { sys::cuMemHostUnregister(start.cast()) };
        assert_eq!(again, sys::CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
        let refused = copy(&gpu, at, buffer.region().address(), 64);
        assert_eq!(code(refused), "CUDA_ERROR_ILLEGAL_ADDRESS");
    });
}
