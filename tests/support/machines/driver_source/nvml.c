/* libnvidia-ml.so.1 */
#include "shared.h"

int nvmlInit_v2(void) { BEGIN(-1) ++initialised; return 0; }

int nvmlShutdown(void) { BEGIN(-1) --initialised; return 0; }

int nvmlSystemGetDriverVersion(char *text, unsigned size) {
    BEGIN(-1) strncpy(text, getenv("DRIVER"), size);
    return 0;
}

int nvmlDeviceGetCount_v2(unsigned *count) { BEGIN(-1) *count = atoi(getenv("NVML_GPUS")); return 0; }

int nvmlDeviceGetHandleByIndex_v2(unsigned gpu, void **handle) {
    BEGIN(gpu) *handle = (void *)(long)(gpu + 1);
    return 0;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *pci, void **handle) {
    long gpu = strtol(strchr(pci, ':') + 1, NULL, 16) - 1;
    BEGIN(gpu) *handle = (void *)(gpu + 1);
    return 0;
}

int nvmlDeviceGetName(void *h, char *text, unsigned size) {
    GPU strncpy(text, getenv("CARD"), size);
    return 0;
}

int nvmlDeviceGetUUID(void *h, char *text, unsigned size) {
    GPU snprintf(text, size, "GPU-00000000-0000-0000-0000-%012lx", gpu + 1);
    return 0;
}

int nvmlDeviceGetCudaComputeCapability(void *h, int *major, int *minor) {
    GPU int sm = atoi(getenv("CARD_SM"));
    *major = sm / 10;
    *minor = sm % 10;
    return 0;
}

int nvmlDeviceGetMemoryInfo(void *h, unsigned long long *sizes) {
    GPU sizes[0] = atoll(getenv("CARD_BYTES"));
    return 0;
}

int nvmlDeviceGetMigMode(void *h, unsigned *now, unsigned *next) {
    GPU *now = *next = getenv("MIG") != NULL;
    return 0;
}

int nvmlDeviceGetUtilizationRates(void *h, unsigned *rates) {
    GPU rates[0] = value("busy", gpu, 87);
    rates[1] = 5;
    return 0;
}

int nvmlDeviceGetClockInfo(void *h, int which, unsigned *mhz) {
    GPU *mhz = which == 1 ? 1980 : 2619;
    return 0;
}

int nvmlDeviceGetPowerUsage(void *h, unsigned *mw) { GPU *mw = 650000; return 0; }

int nvmlDeviceGetTemperature(void *h, int which, unsigned *degrees) { GPU *degrees = 61; return 0; }

int nvmlDeviceGetCurrentClocksEventReasons(void *h, unsigned long long *bits) {
    GPU *bits = value("reasons", gpu, 4);
    return 0;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *h, unsigned long long *bits) { GPU *bits = 32; return 0; }

int nvmlDeviceGetPciInfo_v3(void *h, Pci *pci) {
    GPU memset(pci, 0, sizeof *pci);
    snprintf(pci->bus_id, 32, "00000000:%02lX:00.0", gpu + 1);
    return 0;
}

int nvmlDeviceGetNvLinkState(void *h, unsigned link, unsigned *on) {
    GPU if (link >= value("all links", gpu, 18)) return 3;
    *on = link < value("links", gpu, 4);
    return 0;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *h, unsigned link, Pci *pci) {
    GPU memset(pci, 0, sizeof *pci);
    strcpy(pci->bus_id, "00000000:A1:00.0");
    return 0;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(void *h, unsigned link, unsigned *type) {
    GPU *type = 2 * value("switch", gpu, 0);
    return 0;
}

int nvmlDeviceGetNvLinkErrorCounter(void *h, unsigned link, int which, unsigned long long *count) {
    GPU *count = link ? 0 : value("link errors", gpu, 0);
    return 0;
}

int nvmlDeviceGetTotalEccErrors(void *h, int which, int since, unsigned long long *count) {
    GPU *count = value(which ? "uncorrected" : "corrected", gpu, 0);
    return 0;
}

int nvmlDeviceGetRemappedRows(
    void *h, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    GPU *corrected = value("remapped", gpu, 0);
    *uncorrected = 0;
    *pending = value("pending", gpu, 0);
    *failed = value("failed", gpu, 0);
    return 0;
}

int nvmlDeviceGetRetiredPagesPendingStatus(void *h, unsigned *pending) {
    GPU *pending = value("retired", gpu, 0);
    return 0;
}

int nvmlDeviceGetFieldValues(void *h, int count, Field *field) {
    GPU field->status = field->id == 230 ? 0 : 3;
    field->value = value("recovery", gpu, 0);
    return 0;
}

int nvmlDeviceGetPcieReplayCounter(void *h, unsigned *count) {
    GPU *count = value("replays", gpu, 0);
    return 0;
}

int nvmlDeviceGetMaxPcieLinkGeneration(void *h, unsigned *most) { GPU *most = 5; return 0; }

int nvmlDeviceGetGpuMaxPcieLinkGeneration(void *h, unsigned *most) { GPU *most = 5; return 0; }

int nvmlDeviceGetMaxPcieLinkWidth(void *h, unsigned *most) { GPU *most = 16; return 0; }

int nvmlDeviceGetPcieThroughput(void *h, int way, unsigned *kb) {
    GPU *kb = value("traffic", gpu, 20000000);
    return 0;
}

int nvmlDeviceGetCurrPcieLinkGeneration(void *h, unsigned *now) {
    GPU *now = value("generation", gpu, 5);
    return 0;
}

int nvmlDeviceGetCurrPcieLinkWidth(void *h, unsigned *now) { GPU *now = value("width", gpu, 16); return 0; }

int nvmlDeviceGetGpuFabricInfoV(void *h, Fabric *fabric) {
    GPU if (fabric->version != (sizeof(Fabric) | 2 << 24)) return 25;
    fabric->state = value("fabric", gpu, 0);
    fabric->status = value("fabric status", gpu, 0);
    fabric->health = value("fabric health", gpu, 0xaa);
    return 0;
}

int nvmlDeviceGetPersistenceMode(void *h, unsigned *on) { GPU *on = 1; return 0; }

int nvmlEventSetCreate(void **set) { BEGIN(-1) *set = malloc(1); return 0; }

int nvmlDeviceRegisterEvents(void *h, unsigned long long kinds, void *set) { GPU return 0; }

int nvmlEventSetWait_v2(void *set, Event *event, unsigned ms) {
    BEGIN(-1) static int gpu = -1;
    while (++gpu < 16) {
        long xid = value("xid", gpu, 0);
        if (!xid) continue;
        event->device = (void *)(long)(gpu + 1);
        event->kind = 8;
        event->data = xid;
        return 0;
    }
    usleep(1000 * ms);
    return 10;
}

int nvmlDeviceGetTopologyCommonAncestor(void *h, void *other, unsigned *level) { GPU *level = 30; return 0; }

const char *nvmlErrorString(int status) {
    return status == 3 ? "Not Supported" : status == 4 ? "Insufficient Permissions" : status == 15 ? "GPU is lost"
        : status == 9 ? "Driver Not Loaded" : "Unknown Error";
}
