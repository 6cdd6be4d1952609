// A device driver without a device: what libamdhip64 and libcuda have in common for one that loads
// modules and launches kernels. Launches go to a callback, which emulates them on host memory.
#pragma once
#include <stddef.h>
#include <stdint.h>

#define MAX_DEVICES 8

enum {
  success = 0,
  invalid_value = 1,
  no_device = 100,
  invalid_device = 101,
  invalid_image = 200,
  no_binary_for_gpu = 209,
  invalid_handle = 400,
  not_found = 500,
  capture_unsupported = 900,
  capture_implicit = 906,
};

struct device {
  char arch[64];  // as gcnArchName tells it
  uint32_t mach;  // processor number in a code object's e_flags
  size_t lds;     // bytes a block
};

struct module {
  const void* image;
  int device;
};

struct function {
  const struct module* module;
  char name[128];
  int max_threads, static_lds;
  int max_dynamic;  // CUDA: dynamic shared memory that was asked for
};

struct stream {
  int device;
  int capturing;
};

// Runs a kernel; returns an error code.
typedef int (*launch_callback)(int device, const void* image, const char* kernel,
                               const unsigned sizes[6], unsigned dynamic_lds, const void* params);
// Fills in max_threads and static_lds; returns 0 where the image lacks the kernel.
typedef int (*describe_callback)(const void* image, const char* kernel, int* max_threads,
                                 int* static_lds);

#pragma GCC visibility push(hidden)

extern struct device devices[MAX_DEVICES];
extern int num_devices;

// STAND_IN_DEVICES in the environment names devices for a process that arranges none.
void initialize(void);
// The error that a test asked this function to return next, else 0.
int injected(const char* function);
int load(int device, const void* image, struct module** module);
int find(struct module* module, const char* name, struct function** function);
int attribute(int* value, int which, const struct function* function);
int capture_status(const struct stream* stream, int* status);
int launch(int device, struct function* function, const unsigned sizes[6], unsigned dynamic_lds,
           void** params);

#pragma GCC visibility pop
