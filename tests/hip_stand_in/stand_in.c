#include "stand_in.h"

#include <stdlib.h>
#include <string.h>

struct device devices[MAX_DEVICES];
int num_devices;

static launch_callback on_launch;
static describe_callback on_describe;
static int num_capturing, num_loads;
static char failing[64];
static int failing_code;

// What a test arranges and counts.

void stand_in_callbacks(launch_callback launch, describe_callback describe) {
  on_launch = launch;
  on_describe = describe;
}

// Devices by architecture, such as "gfx950:sramecc+:xnack-,gfx942".
void stand_in_devices(const char* archs) {
  static const struct device known[] = {
      {"gfx90a", 0x3f, 64 * 1024}, {"gfx942", 0x4c, 64 * 1024}, {"gfx950", 0x4f, 160 * 1024}};
  num_devices = 0;
  while (*archs && num_devices < MAX_DEVICES) {
    struct device* added = &devices[num_devices++];
    const size_t length = strcspn(archs, ",");
    memset(added, 0, sizeof *added);
    memcpy(added->arch, archs, length < sizeof added->arch ? length : sizeof added->arch - 1);
    added->lds = 64 * 1024;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
      if (strncmp(added->arch, known[i].arch, 6) == 0) {
        added->mach = known[i].mach;
        added->lds = known[i].lds;
      }
    }
    archs += length + (archs[length] == ',');
  }
}

void stand_in_reset(void) { num_capturing = num_loads = num_devices = failing[0] = 0; }

struct stream* stand_in_stream(int device) {
  struct stream* stream = calloc(1, sizeof *stream);
  stream->device = device;
  return stream;
}

void stand_in_capture(struct stream* stream, int capturing) {
  num_capturing += capturing - stream->capturing;
  stream->capturing = capturing;
}

void stand_in_fail(const char* function, int code) {
  strncpy(failing, function, sizeof failing - 1);
  failing_code = code;
}

int stand_in_loads(void) { return num_loads; }

int injected(const char* function) {
  if (strcmp(function, failing) != 0) return success;
  failing[0] = 0;
  return failing_code;
}

// What a driver does.

void initialize(void) {
  const char* archs = getenv("STAND_IN_DEVICES");
  if (archs) stand_in_devices(archs);
}

int load(int device, const void* image, struct module** module) {
  uint32_t flags;
  if (num_capturing) return capture_unsupported;
  if (memcmp(image, "\177ELF", 4) != 0) return invalid_image;
  memcpy(&flags, (const char*)image + 48, sizeof flags);
  if ((flags & 0xff) != devices[device].mach) return no_binary_for_gpu;
  num_loads++;
  *module = calloc(1, sizeof **module);
  (*module)->image = image;
  (*module)->device = device;
  return success;
}

int find(struct module* module, const char* name, struct function** function) {
  struct function found = {.module = module, .max_dynamic = 48 * 1024};
  strncpy(found.name, name, sizeof found.name - 1);
  if (!on_describe || !on_describe(module->image, name, &found.max_threads, &found.static_lds)) {
    return not_found;
  }
  *function = malloc(sizeof found);
  **function = found;
  return success;
}

int attribute(int* value, int which, const struct function* function) {
  if (which < 0 || which > 1) return invalid_value;
  *value = which == 0 ? function->max_threads : function->static_lds;
  return success;
}

int capture_status(const struct stream* stream, int* status) {
  if (!stream && num_capturing) return capture_implicit;
  *status = stream ? stream->capturing : 0;
  return success;
}

int launch(int device, struct function* function, const unsigned sizes[6], unsigned dynamic_lds,
           void** params) {
  if (device != function->module->device) return invalid_device;
  if (sizes[0] > INT32_MAX || sizes[1] > 65535 || sizes[2] > 65535) return invalid_value;
  if (sizes[3] * sizes[4] * sizes[5] > (unsigned)function->max_threads) return invalid_value;
  return on_launch(device, function->module->image, function->name, sizes, dynamic_lds, params[0]);
}
