// libamdhip64, as far as the driver needs it; signatures and codes are those of HIP 6 and 7.
#include <string.h>

#include "stand_in.h"

// The start of hipDeviceProp_tR0600: field by field, so that offsets are the compiler's.
struct properties {
  char name[256];
  char uuid[16];
  char luid[8];
  unsigned luidDeviceNodeMask;
  size_t totalGlobalMem, sharedMemPerBlock;
  int regsPerBlock, warpSize;
  size_t memPitch;
  int maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3], clockRate;
  size_t totalConstMem;
  int major, minor;
  size_t textureAlignment, texturePitchAlignment;
  int deviceOverlap, multiProcessorCount, kernelExecTimeoutEnabled, integrated, canMapHostMemory;
  int computeMode, maxTexture1D, maxTexture1DMipmap, maxTexture1DLinear, maxTexture2D[2];
  int maxTexture2DMipmap[2], maxTexture2DLinear[3], maxTexture2DGather[2], maxTexture3D[3];
  int maxTexture3DAlt[3], maxTextureCubemap, maxTexture1DLayered[2], maxTexture2DLayered[3];
  int maxTextureCubemapLayered[2], maxSurface1D, maxSurface2D[2], maxSurface3D[3];
  int maxSurface1DLayered[2], maxSurface2DLayered[3], maxSurfaceCubemap;
  int maxSurfaceCubemapLayered[2];
  size_t surfaceAlignment;
  int concurrentKernels, ECCEnabled, pciBusID, pciDeviceID, pciDomainID, tccDriver;
  int asyncEngineCount, unifiedAddressing, memoryClockRate, memoryBusWidth, l2CacheSize;
  int persistingL2CacheMaxSize, maxThreadsPerMultiProcessor, streamPrioritiesSupported;
  int globalL1CacheSupported, localL1CacheSupported;
  size_t sharedMemPerMultiprocessor;
  int regsPerMultiprocessor, managedMemory, isMultiGpuBoard, multiGpuBoardGroupID;
  int hostNativeAtomicSupported, singleToDoublePrecisionPerfRatio, pageableMemoryAccess;
  int concurrentManagedAccess, computePreemptionSupported, canUseHostPointerForRegisteredMem;
  int cooperativeLaunch, cooperativeMultiDeviceLaunch;
  size_t sharedMemPerBlockOptin;
  int pageableMemoryAccessUsesHostPageTables, directManagedMemAccessFromHost;
  int maxBlocksPerMultiProcessor, accessPolicyMaxWindowSize;
  size_t reservedSharedMemPerBlock;
  int hostRegisterSupported, sparseHipArraySupported, hostRegisterReadOnlySupported;
  int timelineSemaphoreInteropSupported, memoryPoolsSupported, gpuDirectRDMASupported;
  unsigned gpuDirectRDMAFlushWritesOptions;
  int gpuDirectRDMAWritesOrdering;
  unsigned memoryPoolSupportedHandleTypes;
  int deferredMappingHipArraySupported, ipcEventSupported, clusterLaunch;
  int unifiedFunctionPointers, reserved[63], hipReserved[32];
  char gcnArchName[256];
};

static _Thread_local int current;
static int last_error;

static int returned(int code) {
  if (code) last_error = code;
  return code;
}

int stand_in_last_error(void) { return last_error; }

int hipInit(unsigned flags) {
  initialize();
  return returned(flags ? invalid_value : success);
}

int hipGetDeviceCount(int* count) {
  *count = num_devices;
  return returned(num_devices ? injected("hipGetDeviceCount") : no_device);
}

int hipGetDevice(int* device) {
  *device = current;
  return returned(injected("hipGetDevice"));
}

int hipSetDevice(int device) {
  if (device < 0 || device >= num_devices) return returned(invalid_device);
  current = device;
  return success;
}

int hipGetDevicePropertiesR0600(struct properties* properties, int device) {
  if (device < 0 || device >= num_devices) return returned(invalid_device);
  memset(properties, 0xa5, sizeof *properties);
  properties->sharedMemPerBlock = devices[device].lds;
  strncpy(properties->gcnArchName, devices[device].arch, sizeof properties->gcnArchName);
  return success;
}

int hipModuleLoadData(struct module** module, const void* image) {
  int code = injected("hipModuleLoadData");
  return returned(code ? code : load(current, image, module));
}

int hipModuleGetFunction(struct function** function, struct module* module, const char* name) {
  return returned(find(module, name, function));
}

int hipFuncGetAttribute(int* value, int which, const struct function* function) {
  return returned(attribute(value, which, function));
}

int hipStreamIsCapturing(const struct stream* stream, int* status) {
  int code = injected("hipStreamIsCapturing");
  return returned(code ? code : capture_status(stream, status));
}

int hipStreamGetDevice(const struct stream* stream, int* device) {
  int code = injected("hipStreamGetDevice");
  *device = stream ? stream->device : current;
  return returned(code);
}

// As the real runtime, it goes where the stream is.
int hipModuleLaunchKernel(struct function* function, unsigned grid_x, unsigned grid_y,
                          unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                          unsigned dynamic_lds, const struct stream* stream, void** params,
                          void** extra) {
  const unsigned sizes[6] = {grid_x, grid_y, grid_z, block_x, block_y, block_z};
  int code = injected("hipModuleLaunchKernel");
  if (code || extra) return returned(code ? code : invalid_value);
  return returned(launch(stream ? stream->device : current, function, sizes, dynamic_lds, params));
}

int hipGetLastError(void) {
  int code = last_error;
  last_error = success;
  return code;
}

const char* hipGetErrorName(int code) {
  switch (code) {
    case invalid_value:
      return "hipErrorInvalidValue";
    case no_device:
      return "hipErrorNoDevice";
    case invalid_device:
      return "hipErrorInvalidDevice";
    case invalid_image:
      return "hipErrorInvalidImage";
    case no_binary_for_gpu:
      return "hipErrorNoBinaryForGpu";
    case not_found:
      return "hipErrorNotFound";
    case 700:
      return "hipErrorIllegalAddress";
    case capture_unsupported:
      return "hipErrorStreamCaptureUnsupported";
    default:
      return "hipErrorUnknown";
  }
}

const char* hipGetErrorString(int code) {
  switch (code) {
    case invalid_value:
      return "invalid argument";
    case no_binary_for_gpu:
      return "no kernel image is available for execution on the device";
    case 700:
      return "an illegal memory access was encountered";
    default:
      return "some other error";
  }
}
