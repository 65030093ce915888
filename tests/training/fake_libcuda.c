/* A stand-in for CUDA's driver: it does at once what is put into a stream, and writes down what was called. */
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define SHIFT 0x5000000000ull /* device addresses are host addresses plus this */

static int contexts, streams;

EXPORT uint64_t fake_registered, fake_registered_bytes, fake_last_stream, fake_writes;
EXPORT int fake_flags, fake_retained, fake_write_error, fake_register_error, fake_capturing;
EXPORT int fake_needs_context, fake_loses_writes, fake_synchronized, fake_context_depth;

EXPORT void fake_reset(void) {
    fake_registered = fake_registered_bytes = fake_last_stream = fake_writes = 0;
    fake_flags = fake_retained = fake_write_error = fake_register_error = fake_capturing = 0;
    fake_needs_context = fake_loses_writes = fake_synchronized = fake_context_depth = 0;
}

EXPORT int cuInit(unsigned flags) { return flags ? 1 : 0; }
EXPORT int cuDeviceGet(int *device, int ordinal) { return ordinal > 1 ? 101 : (*device = ordinal, 0); }
EXPORT int cuDevicePrimaryCtxRetain(void **context, int device) {
    (void)device;
    *context = &contexts;
    fake_retained++;
    return 0;
}
EXPORT int cuDevicePrimaryCtxRelease_v2(int device) { (void)device; fake_retained--; return 0; }
EXPORT int cuCtxPushCurrent_v2(void *context) { fake_context_depth++; return context == &contexts ? 0 : 201; }
EXPORT int cuCtxPopCurrent_v2(void **context) { *context = &contexts; fake_context_depth--; return 0; }
EXPORT int cuCtxSynchronize(void) { fake_synchronized++; return 0; }

EXPORT int cuGetErrorName(int error, const char **name) {
    *name = error == 712   ? "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"
            : error == 801 ? "CUDA_ERROR_NOT_SUPPORTED"
            : error == 101 ? "CUDA_ERROR_INVALID_DEVICE"
            : error == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS"
                           : 0;
    return *name ? 0 : 1;
}

EXPORT int cuMemHostRegister_v2(void *page, size_t bytes, unsigned flags) {
    if (fake_register_error) return fake_register_error;
    if (fake_registered) return 712;
    fake_registered = (uint64_t)page;
    fake_registered_bytes = bytes;
    fake_flags = (int)flags;
    return 0;
}
EXPORT int cuMemHostUnregister(void *page) {
    if ((uint64_t)page != fake_registered) return 713;
    fake_registered = 0;
    return 0;
}
EXPORT int cuMemHostGetDevicePointer_v2(uint64_t *device, void *host, unsigned flags) {
    *device = (uint64_t)host + SHIFT;
    return flags ? 1 : 0;
}

EXPORT int cuStreamCreate(void **stream, unsigned flags) { *stream = &streams; return flags == 1 ? 0 : 1; }
EXPORT int cuStreamDestroy_v2(void *stream) { return stream == &streams ? 0 : 1; }
EXPORT int cuStreamIsCapturing(void *stream, int *status) { (void)stream; *status = fake_capturing; return 0; }

static int put(void *stream, uint64_t device, uint32_t value) {
    uint64_t host = device - SHIFT;
    if (fake_needs_context && !fake_context_depth) return 201;
    if (host < fake_registered || host + 4 > fake_registered + fake_registered_bytes) return 700;
    fake_last_stream = (uint64_t)stream;
    if (!fake_loses_writes) memcpy((void *)host, &value, 4);
    return 0;
}
EXPORT int cuStreamWriteValue32_v2(void *stream, uint64_t device, uint32_t value, unsigned flags) {
    if (flags) return 1;
    fake_writes++;
    return fake_write_error ? fake_write_error : put(stream, device, value);
}
