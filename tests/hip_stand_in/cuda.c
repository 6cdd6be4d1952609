// libcuda, as far as the driver needs it. Contexts are 0x1000 + device.
#include "stand_in.h"

#define MAX_DEPTH 8

static _Thread_local uintptr_t contexts[MAX_DEPTH];
static _Thread_local int depth;

static uintptr_t top(void) { return depth ? contexts[depth - 1] : 0; }

int cuInit(unsigned flags) {
  initialize();
  return flags ? invalid_value : success;
}

int cuDeviceGetCount(int* count) {
  *count = num_devices;
  return success;
}

int cuDeviceGet(int* device, int index) {
  *device = index;
  return index < num_devices ? success : invalid_device;
}

// Compute capabilities stand for the architecture: gfx950 is 9.5.
int cuDeviceGetAttribute(int* value, int which, int device) {
  switch (which) {
    case 75:
      *value = devices[device].arch[3] - '0';
      return success;
    case 76:
      *value = devices[device].arch[4] - '0';
      return success;
    case 97:
      *value = (int)devices[device].lds;
      return success;
    default:
      return invalid_value;
  }
}

int cuDevicePrimaryCtxRetain(uintptr_t* context, int device) {
  *context = 0x1000 + device;
  return success;
}

int cuCtxGetCurrent(uintptr_t* context) {
  *context = top();
  return success;
}

int cuCtxPushCurrent_v2(uintptr_t context) {
  if (depth == MAX_DEPTH) return invalid_value;
  contexts[depth++] = context;
  return success;
}

int cuCtxPopCurrent_v2(uintptr_t* context) {
  if (!depth) return 201;
  *context = contexts[--depth];
  return success;
}

int cuModuleLoadData(struct module** module, const void* image) {
  return top() ? load((int)(top() - 0x1000), image, module) : 201;
}

int cuModuleGetFunction(struct function** function, struct module* module, const char* name) {
  return find(module, name, function);
}

int cuFuncGetAttribute(int* value, int which, const struct function* function) {
  return attribute(value, which, function);
}

int cuFuncSetAttribute(struct function* function, int which, int value) {
  if (which != 8) return invalid_value;
  function->max_dynamic = value;
  return success;
}

int cuStreamIsCapturing(const struct stream* stream, int* status) {
  return capture_status(stream, status);
}

int cuLaunchKernel(struct function* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned dynamic_lds,
                   const struct stream* stream, void** params, void** extra) {
  const unsigned sizes[6] = {grid_x, grid_y, grid_z, block_x, block_y, block_z};
  const int device = (int)(top() - 0x1000);
  if (extra || dynamic_lds > (unsigned)function->max_dynamic) return invalid_value;
  if (stream && stream->device != device) return invalid_handle;
  return launch(device, function, sizes, dynamic_lds, params);
}

// CUlaunchConfig and CUlaunchAttribute; of the attributes, that a launch may overlap the one ahead of it.
struct attribute {
  int id, padding, value[16];
};

struct config {
  unsigned sizes[6], dynamic_lds;
  const struct stream* stream;
  const struct attribute* attributes;
  unsigned num_attributes;
};

static int overlapped;

int stand_in_overlapped(void) { return overlapped; }

int cuLaunchKernelEx(const struct config* config, struct function* function, void** params,
                     void** extra) {
  const int device = (int)(top() - 0x1000);
  for (unsigned i = 0; i < config->num_attributes; ++i) {
    if (config->attributes[i].id != 6 || config->attributes[i].value[0] != 1) return invalid_value;
    ++overlapped;
  }
  if (extra || config->dynamic_lds > (unsigned)function->max_dynamic) return invalid_value;
  if (config->stream && config->stream->device != device) return invalid_handle;
  return launch(device, function, config->sizes, config->dynamic_lds, params);
}

int cuGetErrorName(int code, const char** name) {
  *name = code == invalid_value    ? "CUDA_ERROR_INVALID_VALUE"
          : code == invalid_handle ? "CUDA_ERROR_INVALID_HANDLE"
                                   : 0;
  return *name ? success : invalid_value;
}

int cuGetErrorString(int code, const char** text) {
  *text = code == invalid_handle ? "invalid resource handle" : 0;
  return *text ? success : invalid_value;
}
