/* libcuda.so.1: `gpu` is the number of the GPU that a function is about. */
#include "shared.h"

int cuInit(unsigned flags) { BEGIN(-1) return 0; }

int cuDriverGetVersion(int *version) { BEGIN(-1) *version = atoi(getenv("CUDA_VERSION")); return 0; }

int cuDeviceGetCount(int *count) { BEGIN(-1) for (*count = 0; visible(*count) >= 0;) ++*count; return 0; }

int cuDeviceGet(int *device, int number) { BEGIN(number) *device = visible(number); return 0; }

int cuDeviceGetName(char *text, int size, int gpu) {
    BEGIN(gpu) strncpy(text, getenv("CARD"), size);
    return 0;
}

int cuDeviceGetUuid_v2(unsigned char *uuid, int gpu) {
    BEGIN(gpu) memset(uuid, 0, 16);
    uuid[15] = gpu + 1;
    return 0;
}

int cuDeviceGetUuid(unsigned char *uuid, int gpu) {
    BEGIN(gpu) memset(uuid, 0, 16);
    uuid[15] = gpu + 1;
    return 0;
}

int cuDeviceTotalMem_v2(size_t *size, int gpu) { BEGIN(gpu) *size = atoll(getenv("CARD_BYTES")); return 0; }

int cuDeviceGetPCIBusId(char *text, int size, int gpu) {
    BEGIN(gpu) snprintf(text, size, "0000:%02x:00.0", gpu + 1);
    return 0;
}

int cuDeviceGetAttribute(int *value, int which, int gpu) {
    BEGIN(gpu) int sm = atoi(getenv("CARD_SM"));
    *value = which == 75 ? sm / 10 : which == 76 ? sm % 10 : atoi(getenv("CARD_UNITS"));
    return 0;
}

int cuGetErrorString(int status, const char **text) {
    *text = status == 100 ? "no CUDA-capable device is detected"
        : status == 802 ? "system not yet initialized" : "unknown error";
    return 0;
}
