/* A libnvidia-ml.so.1 without GPUs: three GPUs of one kind, whose settings any process can read and write.
 *
 * MOCK_NVML_KIND names the kind (the table below), MOCK_NVML_STATE a file that holds the GPUs for all processes.
 * Without a file they are this process's own. MOCK_NVML_MAY_SET=0: this user may change nothing. A capability that a kind lacks is the code that its functions return:
 * 3 (this GPU has none), 4 (this user may not), 13 (the driver is older than the function).
 *
 * Names, clocks and limits are those that people have published for these GPUs (nvidia-smi -q, data sheets).
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { GPUS = 3, CHANGES = 1024, UNINITIALIZED = 1, WRONG = 2, NONE = 3, MAY_NOT = 4, UNKNOWN = 6, SMALL = 7, OLD = 13 };

typedef unsigned int uint;
typedef unsigned long long wide;

struct kind {
    const char *key, *name;
    double clock_step_mhz;
    uint highest_mhz, lowest_mhz, memory_mhz, limits_w[2], default_w, idle_mhz;
    int sets, lists, counter, limits, reasons, mig, profiles; /* the code that the capability's functions return */
};

static const struct kind KINDS[] = {
    {"V100", "Tesla V100-SXM2-32GB", 7.5, 1530, 135, 877, {150, 300}, 300, 135, 0, 0, 0, 0, OLD, NONE, OLD},
    {"A100", "NVIDIA A100-SXM4-80GB", 15, 1410, 210, 1593, {100, 400}, 400, 210, 0, 0, 0, 0, 0, 0, 0},
    {"H100", "NVIDIA H100 80GB HBM3", 15, 1980, 345, 2619, {200, 700}, 700, 345, 0, 0, 0, 0, 0, 0, NONE},
    {"GH200", "NVIDIA GH200 480GB", 15, 1980, 345, 2619, {100, 900}, 900, 345, 0, 0, 0, 0, 0, 0, NONE},
    {"B200", "NVIDIA B200", 7.5, 1965, 120, 3996, {200, 1000}, 1000, 120, 0, 0, 0, 0, 0, 0, 0},
    {"B300", "NVIDIA B300 SXM6 AC", 7.5, 2032, 120, 3996, {200, 1100}, 1100, 120, 0, 0, 0, 0, 0, 0, 0},
    {"RTX", "NVIDIA GeForce RTX 4090 Laptop GPU", 15, 2040, 210, 9001, {5, 175}, 80, 210, NONE, NONE, NONE, NONE, 0, NONE,
     NONE},
};

/* One GPU: what tests change. `lock_mhz` is 0 while the clock is not locked. */
struct gpu {
    char name[96];
    uint limit_mw, lock_mhz, clock_mhz, power_mw, reasons, mig, profiles, smooths, processes;
    wide energy_mj;
};

/* All GPUs. Where `live`, counters grow by the power; `changed` counts the changes made, MHz or -W. */
struct host {
    int made, live, changed, kind;
    struct { int gpu, value; } changes[CHANGES];
    struct gpu gpus[GPUS];
};

static struct host *host;
static int opened;
static const char *UUIDS[GPUS] = {"GPU-aaaa1111-0000", "GPU-aaaa2222-0000", "GPU-bbbb3333-0000"};

static const struct kind *kind(void) { return &KINDS[host->kind]; }

static void make(const char *key) {
    memset(host, 0, sizeof *host);
    for (int i = 0; i < (int)(sizeof KINDS / sizeof *KINDS); i++)
        if (!strcmp(KINDS[i].key, key)) host->kind = i;
    for (int i = 0; i < GPUS; i++) {
        struct gpu *gpu = &host->gpus[i];
        snprintf(gpu->name, sizeof gpu->name, "%s", kind()->name);
        gpu->limit_mw = kind()->default_w * 1000, gpu->clock_mhz = kind()->idle_mhz;
        gpu->power_mw = 100000, gpu->energy_mj = 5000, gpu->reasons = 1;
    }
    host->live = host->made = 1;
}

/* Returns the GPUs, which are those of `key` from now on where it is not null. */
struct host *mock_host(const char *key) {
    const char *path = getenv("MOCK_NVML_STATE"), *named = getenv("MOCK_NVML_KIND");
    if (!host) {
        int file = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
        if (file >= 0) flock(file, LOCK_EX), (void)!ftruncate(file, sizeof *host);
        host = mmap(0, sizeof *host, PROT_READ | PROT_WRITE, file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, file, 0);
        if (!host->made) make(named ? named : "A100");
        if (file >= 0) flock(file, LOCK_UN), close(file); /* the mapping keeps the file, and would keep the lock */
    }
    if (key) make(key), opened = 0;
    return host;
}

#define CHECK(code) \
    do { \
        int wrong = opened ? (code) : UNINITIALIZED; \
        if (wrong) return wrong; \
    } while (0)

int nvmlInitWithFlags(uint flags) { return flags ? WRONG : (mock_host(0), opened++, 0); }
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return opened ? (opened--, 0) : UNINITIALIZED; }

int nvmlDeviceGetCount_v2(uint *count) {
    CHECK(0);
    *count = GPUS;
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(uint index, struct gpu **gpu) {
    CHECK(index < GPUS ? 0 : WRONG);
    *gpu = &host->gpus[index];
    return 0;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, struct gpu **gpu) {
    for (uint i = 0; i < GPUS; i++)
        if (!strcmp(uuid, UUIDS[i])) return nvmlDeviceGetHandleByIndex_v2(i, gpu);
    CHECK(UNKNOWN);
    return 0;
}

int nvmlDeviceGetUUID(struct gpu *gpu, char *uuid, uint size) {
    CHECK(0);
    snprintf(uuid, size, "%s", UUIDS[gpu - host->gpus]);
    return 0;
}

int nvmlDeviceGetName(struct gpu *gpu, char *name, uint size) {
    CHECK(0);
    snprintf(name, size, "%s", gpu->name);
    return 0;
}

int nvmlDeviceGetPciInfo_v3(struct gpu *gpu, char *info) {
    CHECK(0);
    snprintf(info + 36, 32, "00000000:%02X:00.0", (uint)(gpu - host->gpus) + 0x3B); /* after a short one and 5 numbers */
    return 0;
}

int nvmlDeviceGetMigMode(struct gpu *gpu, uint *now, uint *pending) {
    CHECK(kind()->mig);
    *now = *pending = gpu->mig;
    return 0;
}

static int list(uint *size, uint *mhz, double highest, double lowest, double step) {
    uint count = 0, room = mhz ? *size : 0;
    for (double at = highest; at >= lowest; at -= step, count++)
        if (count < room) mhz[count] = (uint)at;
    *size = count;
    return count <= room ? 0 : SMALL;
}

int nvmlDeviceGetSupportedMemoryClocks(struct gpu *gpu, uint *size, uint *mhz) {
    CHECK(kind()->lists);
    return list(size, mhz, kind()->memory_mhz, 405, kind()->memory_mhz - 405);
}

int nvmlDeviceGetSupportedGraphicsClocks(struct gpu *gpu, uint memory_mhz, uint *size, uint *mhz) {
    CHECK(kind()->lists);
    if (memory_mhz != kind()->memory_mhz) return list(size, mhz, 420, 210, 210); /* of an idle GPU */
    return list(size, mhz, kind()->highest_mhz, kind()->lowest_mhz, kind()->clock_step_mhz);
}

static int may_set(void) {
    const char *may = getenv("MOCK_NVML_MAY_SET");
    return kind()->sets ? kind()->sets : may && *may == '0' ? MAY_NOT : 0;
}

static int change(struct gpu *gpu, int value) {
    int place = __sync_fetch_and_add(&host->changed, 1) % CHANGES;
    host->changes[place].gpu = (int)(gpu - host->gpus), host->changes[place].value = value;
    return 0;
}

int nvmlDeviceSetGpuLockedClocks(struct gpu *gpu, uint low, uint high) {
    CHECK(may_set());
    if (low > high || !high) return WRONG;
    gpu->lock_mhz = high;
    return change(gpu, (int)high);
}

int nvmlDeviceResetGpuLockedClocks(struct gpu *gpu) {
    CHECK(may_set());
    gpu->lock_mhz = 0;
    return change(gpu, 0);
}

int nvmlDeviceGetClockInfo(struct gpu *gpu, int of, uint *mhz) {
    CHECK(of < 4 ? 0 : WRONG);
    *mhz = gpu->lock_mhz ? gpu->lock_mhz : gpu->clock_mhz;
    return 0;
}

int nvmlDeviceGetTotalEnergyConsumption(struct gpu *gpu, wide *energy_mj) {
    CHECK(kind()->counter);
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    *energy_mj = gpu->energy_mj;
    if (host->live) *energy_mj += (now.tv_sec * 10 + now.tv_nsec / 100000000) * (wide)gpu->power_mw / 10;
    return 0;
}

int nvmlDeviceGetPowerUsage(struct gpu *gpu, uint *power_mw) {
    CHECK(0);
    *power_mw = gpu->power_mw;
    return 0;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(struct gpu *gpu, wide *reasons) {
    CHECK(0);
    *reasons = gpu->reasons;
    return 0;
}

int nvmlDeviceGetCurrentClocksEventReasons(struct gpu *gpu, wide *reasons) {
    CHECK(kind()->reasons);
    return nvmlDeviceGetCurrentClocksThrottleReasons(gpu, reasons);
}

int nvmlDeviceGetPowerManagementLimitConstraints(struct gpu *gpu, uint *least_mw, uint *most_mw) {
    CHECK(kind()->limits);
    *least_mw = kind()->limits_w[0] * 1000, *most_mw = kind()->limits_w[1] * 1000;
    return 0;
}

int nvmlDeviceGetPowerManagementLimit(struct gpu *gpu, uint *limit_mw) {
    CHECK(kind()->limits);
    *limit_mw = gpu->limit_mw;
    return 0;
}

int nvmlDeviceGetPowerManagementDefaultLimit(struct gpu *gpu, uint *limit_mw) {
    CHECK(kind()->limits);
    *limit_mw = kind()->default_w * 1000;
    return 0;
}

int nvmlDeviceSetPowerManagementLimit(struct gpu *gpu, uint limit_mw) {
    CHECK(kind()->limits ? kind()->limits : may_set());
    if (limit_mw < kind()->limits_w[0] * 1000 || limit_mw > kind()->limits_w[1] * 1000) return WRONG;
    gpu->limit_mw = limit_mw;
    return change(gpu, -(int)(limit_mw / 1000));
}

int nvmlDeviceGetComputeRunningProcesses_v3(struct gpu *gpu, uint *count, void *processes) {
    CHECK(0);
    uint room = processes ? *count : 0;
    *count = gpu->processes;
    if (room < gpu->processes) return SMALL;
    if (processes) memset(processes, 0, gpu->processes * 24);
    return 0;
}

int nvmlDeviceWorkloadPowerProfileGetCurrentProfiles(struct gpu *gpu, uint *profiles) {
    CHECK(kind()->profiles);
    memset(profiles + 1, 0, 3 * 32); /* after the version: there are, requested, enforced */
    profiles[1 + 16] = gpu->profiles;
    return 0;
}

struct field {
    uint id, scope;
    long long times[2];
    int type, code;
    union { uint number; wide widest; } value;
};

int nvmlDeviceGetFieldValues(struct gpu *gpu, int count, struct field *fields) {
    CHECK(0);
    for (int i = 0; i < count; i++) {
        fields[i].code = fields[i].id == 251 ? kind()->profiles : NONE; /* power smoothing */
        fields[i].value.number = gpu->smooths;
    }
    return 0;
}
