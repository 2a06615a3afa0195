//! Everything that this driver does not have.

use std::collections::BTreeSet;
use std::sync::Mutex;

use crate::codes::Code;
use crate::outside::say;

/// Says its name the first time.
fn refuse(name: &'static str) -> u32 {
    static SAID: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    if SAID.lock().is_ok_and(|mut said| said.insert(name)) {
        say(&format!("{name} is not supported"));
    }
    Code::NotSupported.number()
}

/// Exports functions whose arguments nobody looks at.
macro_rules! unsupported {
    ($($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name() -> u32 {
                refuse(stringify!($name))
            }
        )*
    };
}

unsupported! {
    cuArray3DCreate_v2 cuArray3DGetDescriptor_v2 cuArrayCreate_v2 cuArrayDestroy
    cuArrayGetDescriptor_v2 cuArrayGetMemoryRequirements cuArrayGetPlane
    cuArrayGetSparseProperties cuCoredumpGetAttribute cuCoredumpGetAttributeGlobal
    cuCoredumpSetAttribute cuCoredumpSetAttributeGlobal cuCtxAttach cuCtxCreate_v4 cuCtxDestroy_v2
    cuCtxDetach cuCtxFromGreenCtx cuCtxGetCacheConfig cuCtxGetDevResource cuCtxGetDevice_v2
    cuCtxGetExecAffinity cuCtxGetId cuCtxGetLimit cuCtxGetSharedMemConfig cuCtxRecordEvent
    cuCtxResetPersistingL2Cache cuCtxSetCacheConfig cuCtxSetLimit cuCtxSetSharedMemConfig
    cuCtxSynchronize_v2 cuCtxWaitEvent cuDestroyExternalMemory cuDestroyExternalSemaphore
    cuDevResourceGenerateDesc cuDevSmResourceSplitByCount cuDeviceComputeCapability
    cuDeviceGetDevResource cuDeviceGetExecAffinitySupport cuDeviceGetGraphMemAttribute
    cuDeviceGetHostAtomicCapabilities cuDeviceGetLuid cuDeviceGetMemPool
    cuDeviceGetP2PAtomicCapabilities cuDeviceGetP2PAttribute cuDeviceGetProperties
    cuDeviceGetTexture1DLinearMaxWidth cuDeviceGraphMemTrim cuDeviceRegisterAsyncNotification
    cuDeviceSetGraphMemAttribute cuDeviceSetMemPool cuDeviceUnregisterAsyncNotification
    cuExternalMemoryGetMappedBuffer cuExternalMemoryGetMappedMipmappedArray
    cuFuncGetModule cuFuncGetName cuFuncGetParamInfo cuFuncIsLoaded
    cuFuncLoad cuFuncSetBlockShape cuFuncSetSharedMemConfig cuFuncSetSharedSize cuGetExportTable
    cuGetProcAddress_v2 cuGraphAddBatchMemOpNode cuGraphAddChildGraphNode
    cuGraphAddDependencies_v2 cuGraphAddEmptyNode cuGraphAddEventRecordNode
    cuGraphAddEventWaitNode cuGraphAddExternalSemaphoresSignalNode
    cuGraphAddExternalSemaphoresWaitNode cuGraphAddHostNode cuGraphAddKernelNode_v2
    cuGraphAddMemAllocNode cuGraphAddMemFreeNode cuGraphAddMemcpyNode cuGraphAddMemsetNode
    cuGraphAddNode_v2 cuGraphBatchMemOpNodeGetParams cuGraphBatchMemOpNodeSetParams
    cuGraphChildGraphNodeGetGraph cuGraphClone cuGraphConditionalHandleCreate cuGraphCreate
    cuGraphDebugDotPrint cuGraphDestroyNode cuGraphEventRecordNodeGetEvent
    cuGraphEventRecordNodeSetEvent cuGraphEventWaitNodeGetEvent cuGraphEventWaitNodeSetEvent
    cuGraphExecBatchMemOpNodeSetParams cuGraphExecChildGraphNodeSetParams
    cuGraphExecEventRecordNodeSetEvent cuGraphExecEventWaitNodeSetEvent
    cuGraphExecExternalSemaphoresSignalNodeSetParams
    cuGraphExecExternalSemaphoresWaitNodeSetParams cuGraphExecGetFlags
    cuGraphExecHostNodeSetParams cuGraphExecKernelNodeSetParams_v2 cuGraphExecMemcpyNodeSetParams
    cuGraphExecMemsetNodeSetParams cuGraphExecNodeSetParams cuGraphExecUpdate_v2
    cuGraphExternalSemaphoresSignalNodeGetParams cuGraphExternalSemaphoresSignalNodeSetParams
    cuGraphExternalSemaphoresWaitNodeGetParams cuGraphExternalSemaphoresWaitNodeSetParams
    cuGraphGetEdges_v2 cuGraphGetRootNodes cuGraphHostNodeGetParams cuGraphHostNodeSetParams
    cuGraphInstantiateWithParams cuGraphKernelNodeCopyAttributes cuGraphKernelNodeGetAttribute
    cuGraphKernelNodeGetParams_v2 cuGraphKernelNodeSetAttribute cuGraphKernelNodeSetParams_v2
    cuGraphMemAllocNodeGetParams cuGraphMemFreeNodeGetParams cuGraphMemcpyNodeGetParams
    cuGraphMemcpyNodeSetParams cuGraphMemsetNodeGetParams cuGraphMemsetNodeSetParams
    cuGraphNodeFindInClone cuGraphNodeGetDependencies_v2 cuGraphNodeGetDependentNodes_v2
    cuGraphNodeGetEnabled cuGraphNodeGetType cuGraphNodeSetEnabled cuGraphNodeSetParams
    cuGraphReleaseUserObject cuGraphRemoveDependencies_v2 cuGraphRetainUserObject
    cuGraphicsMapResources cuGraphicsResourceGetMappedMipmappedArray
    cuGraphicsResourceGetMappedPointer_v2 cuGraphicsResourceSetMapFlags_v2
    cuGraphicsSubResourceGetMappedArray cuGraphicsUnmapResources cuGraphicsUnregisterResource
    cuGreenCtxCreate cuGreenCtxDestroy cuGreenCtxGetDevResource cuGreenCtxGetId
    cuGreenCtxRecordEvent cuGreenCtxStreamCreate cuGreenCtxWaitEvent cuImportExternalMemory
    cuImportExternalSemaphore cuKernelGetAttribute cuKernelGetFunction cuKernelGetLibrary
    cuKernelGetName cuKernelGetParamInfo cuKernelSetAttribute cuKernelSetCacheConfig cuLaunch
    cuLaunchCooperativeKernelMultiDevice cuLaunchGrid cuLaunchGridAsync cuLibraryEnumerateKernels
    cuLibraryGetGlobal cuLibraryGetKernel cuLibraryGetKernelCount cuLibraryGetManaged
    cuLibraryGetModule cuLibraryGetUnifiedFunction cuLibraryLoadData cuLibraryLoadFromFile
    cuLibraryUnload cuLinkAddData_v2 cuLinkAddFile_v2 cuLinkComplete cuLinkCreate_v2 cuLinkDestroy
    cuLogsCurrent cuLogsDumpToFile cuLogsDumpToMemory cuLogsRegisterCallback
    cuLogsUnregisterCallback cuMemAddressFree cuMemAddressReserve cuMemAdvise_v2 cuMemAllocAsync
    cuMemAllocFromPoolAsync cuMemAllocManaged cuMemAllocPitch_v2 cuMemBatchDecompressAsync
    cuMemCreate cuMemDiscardAndPrefetchBatchAsync cuMemDiscardBatchAsync
    cuMemExportToShareableHandle cuMemFreeAsync cuMemGetAccess cuMemGetAllocationGranularity
    cuMemGetAllocationPropertiesFromHandle cuMemGetDefaultMemPool
    cuMemGetMemPool cuMemImportFromShareableHandle cuMemMap cuMemMapArrayAsync cuMemPoolCreate
    cuMemPoolDestroy cuMemPoolExportPointer cuMemPoolExportToShareableHandle cuMemPoolGetAccess
    cuMemPoolGetAttribute cuMemPoolImportFromShareableHandle cuMemPoolImportPointer
    cuMemPoolSetAccess cuMemPoolSetAttribute cuMemPoolTrimTo cuMemPrefetchAsync_v2
    cuMemPrefetchBatchAsync cuMemRangeGetAttribute cuMemRangeGetAttributes cuMemRelease
    cuMemRetainAllocationHandle cuMemSetAccess cuMemSetMemPool cuMemUnmap cuMemcpy2DAsync_v2
    cuMemcpy2DUnaligned_v2 cuMemcpy2D_v2 cuMemcpy3DAsync_v2 cuMemcpy3DBatchAsync_v2 cuMemcpy3DPeer
    cuMemcpy3DPeerAsync cuMemcpy3D_v2 cuMemcpyAtoA_v2 cuMemcpyAtoD_v2 cuMemcpyAtoHAsync_v2
    cuMemcpyAtoH_v2 cuMemcpyBatchAsync_v2 cuMemcpyDtoA_v2 cuMemcpyHtoAAsync_v2 cuMemcpyHtoA_v2
    cuMemsetD2D16Async cuMemsetD2D16_v2 cuMemsetD2D32Async cuMemsetD2D32_v2 cuMemsetD2D8Async
    cuMemsetD2D8_v2 cuMipmappedArrayCreate cuMipmappedArrayDestroy cuMipmappedArrayGetLevel
    cuMipmappedArrayGetMemoryRequirements cuMipmappedArrayGetSparseProperties
    cuModuleEnumerateFunctions cuModuleGetFunctionCount cuModuleGetSurfRef cuModuleGetTexRef
    cuModuleLoadFatBinary cuMulticastAddDevice cuMulticastBindAddr cuMulticastBindMem
    cuMulticastCreate cuMulticastGetGranularity cuMulticastUnbind
    cuOccupancyAvailableDynamicSMemPerBlock cuOccupancyMaxActiveClusters
    cuOccupancyMaxPotentialBlockSize cuOccupancyMaxPotentialBlockSizeWithFlags
    cuOccupancyMaxPotentialClusterSize cuParamSetSize cuParamSetTexRef cuParamSetf cuParamSeti
    cuParamSetv cuProfilerInitialize cuSignalExternalSemaphoresAsync cuStreamAddCallback
    cuStreamAttachMemAsync cuStreamBatchMemOp_v2 cuStreamBeginCaptureToGraph
    cuStreamCopyAttributes cuStreamGetAttribute cuStreamGetCaptureInfo_v3 cuStreamGetCtx_v2
    cuStreamGetGreenCtx cuStreamSetAttribute cuStreamUpdateCaptureDependencies_v2
    cuStreamWaitValue64_v2 cuStreamWriteValue64_v2
    cuSurfObjectCreate cuSurfObjectDestroy cuSurfObjectGetResourceDesc cuSurfRefGetArray
    cuSurfRefSetArray cuTensorMapEncodeIm2col cuTensorMapEncodeIm2colWide cuTensorMapEncodeTiled
    cuTensorMapReplaceAddress cuTexObjectCreate cuTexObjectDestroy cuTexObjectGetResourceDesc
    cuTexObjectGetResourceViewDesc cuTexObjectGetTextureDesc cuTexRefCreate cuTexRefDestroy
    cuTexRefGetAddressMode cuTexRefGetAddress_v2 cuTexRefGetArray cuTexRefGetBorderColor
    cuTexRefGetFilterMode cuTexRefGetFlags cuTexRefGetFormat cuTexRefGetMaxAnisotropy
    cuTexRefGetMipmapFilterMode cuTexRefGetMipmapLevelBias cuTexRefGetMipmapLevelClamp
    cuTexRefGetMipmappedArray cuTexRefSetAddress2D_v3 cuTexRefSetAddressMode cuTexRefSetAddress_v2
    cuTexRefSetArray cuTexRefSetBorderColor cuTexRefSetFilterMode cuTexRefSetFlags
    cuTexRefSetFormat cuTexRefSetMaxAnisotropy cuTexRefSetMipmapFilterMode
    cuTexRefSetMipmapLevelBias cuTexRefSetMipmapLevelClamp cuTexRefSetMipmappedArray
    cuUserObjectCreate cuUserObjectRelease cuUserObjectRetain
    cuWaitExternalSemaphoresAsync
}
