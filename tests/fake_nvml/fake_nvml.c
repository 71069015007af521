/* A stand-in for libnvidia-ml.so.1, told what to say by the text file $FAKE_NVML, which is read
 * again at every call. One directive a line, the last that fits holds:
 *
 *   gpus N                      how many GPUs there are
 *   mig GPU N                   MIG instances of a GPU (0: MIG is off)
 *   set DEV KEY VALUE           what a call says; VALUE reaches to the end of the line
 *   rate DEV KEY PER_SECOND     the value grows by this much since the first nvmlInit
 *   fail DEV CALL CODE [MS]     the call returns CODE, from MS milliseconds after nvmlInit on
 *   sleep DEV CALL MS           the call takes so long
 *   xid DEV CODE                an Xid event; each line is told once
 *
 * DEV: number of a GPU, G.I for a MIG instance, * for all. CALL: the C function's name without
 * nvmlDevice, nvmlSystem or nvml, or * for all. Calls are counted in $FAKE_NVML_CALLS.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <fcntl.h>

#define OK 0
#define INVALID 2
#define NOT_SUPPORTED 3
#define NOT_FOUND 6
#define TIMEOUT 10
#define API __attribute__((visibility("default")))
#define GPUS 64
#define MIG 8

typedef struct { int gpu, instance; } Device;
typedef Device *Handle;
typedef int Ret;

static Device devices[GPUS][MIG + 1];
static double began = -1;
static long xids_told = 0;

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static double since(void) { return began < 0 ? 0 : now_s() - began; }

static FILE *script(void) {
    const char *path = getenv("FAKE_NVML");
    return path ? fopen(path, "re") : NULL;
}

static int names(const char *word, Handle dev) {
    char *end;
    if (!strcmp(word, "*")) return 1;
    if (!dev) return !strcmp(word, "-");
    long gpu = strtol(word, &end, 10);
    if (gpu != dev->gpu) return 0;
    if (*end == '.') return dev->instance == strtol(end + 1, NULL, 10);
    return dev->instance < 0;
}

/* The value of KEY for DEV; 0 if nothing is set. */
static int lookup(Handle dev, const char *key, char *out, size_t size) {
    char line[1024], d[32], k[64];
    int at, found = 0;
    double per = 0, plain = 0;
    FILE *file = script();
    if (!file) return 0;
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (sscanf(line, "set %31s %63s %n", d, k, &at) == 2 && names(d, dev) && !strcmp(k, key)) {
            snprintf(out, size, "%s", line + at);
            plain = atof(out);
            found = 1;
        }
        double rate;
        if (sscanf(line, "rate %31s %63s %lf", d, k, &rate) == 3 && names(d, dev) && !strcmp(k, key)) per = rate;
    }
    fclose(file);
    if (found && per) snprintf(out, size, "%.0f", plain + per * since());
    return found;
}

static unsigned long long number(Handle dev, const char *key, unsigned long long otherwise) {
    char text[256];
    return lookup(dev, key, text, sizeof text) ? strtoull(text, NULL, 0) : otherwise;
}

static long count_of(const char *what, int gpu) {
    char line[1024];
    long value = 0, g, n;
    FILE *file = script();
    if (!file) return 0;
    while (fgets(line, sizeof line, file)) {
        if (gpu < 0 && sscanf(line, "gpus %ld", &n) == 1) value = n;
        if (gpu >= 0 && sscanf(line, "mig %ld %ld", &g, &n) == 2 && g == gpu) value = n;
    }
    (void)what;
    fclose(file);
    return value;
}

/* What happens at the beginning of every call: it is counted, may sleep and may fail. */
static Ret enter(Handle dev, const char *call) {
    char line[1024], d[32], c[64];
    long code, ms;
    Ret result = OK;
    long pause = 0;
    const char *calls = getenv("FAKE_NVML_CALLS");
    if (calls) {
        int fd = open(calls, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        int n = snprintf(line, sizeof line, "%d %d %s\n", (int)getpid(), dev ? dev->gpu : -1, call);
        if (fd >= 0) { if (write(fd, line, n) < 0) {} close(fd); }
    }
    FILE *file = script();
    if (!file) return OK;
    while (fgets(line, sizeof line, file)) {
        ms = 0;
        if (sscanf(line, "fail %31s %63s %ld %ld", d, c, &code, &ms) >= 3 && names(d, dev) &&
            (!strcmp(c, call) || !strcmp(c, "*")) && since() * 1000 >= ms) result = code;
        if (sscanf(line, "sleep %31s %63s %ld", d, c, &ms) == 3 && names(d, dev) && !strcmp(c, call)) pause = ms;
    }
    fclose(file);
    if (pause) usleep(pause * 1000);
    return result;
}

#define ENTER(dev, call) do { Ret r_ = enter(dev, call); if (r_) return r_; } while (0)

static Ret text(Handle dev, const char *call, const char *key, const char *otherwise, char *out, unsigned size) {
    char value[256];
    ENTER(dev, call);
    snprintf(out, size, "%s", lookup(dev, key, value, sizeof value) ? value : otherwise);
    if (!strcmp(out, "\\xff")) { out[0] = (char)0xff; out[1] = 0; }
    return OK;
}

/* A number that only exists if the script sets it. */
static Ret given(Handle dev, const char *call, const char *key, unsigned long long *out) {
    char value[256];
    ENTER(dev, call);
    if (!lookup(dev, key, value, sizeof value)) return NOT_SUPPORTED;
    *out = strtoull(value, NULL, 0);
    return OK;
}

API Ret nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (began < 0) began = now_s();
    for (int g = 0; g < GPUS; g++)
        for (int i = 0; i <= MIG; i++) devices[g][i] = (Device){g, i - 1};
    return enter(NULL, "Init");
}
API Ret nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
API Ret nvmlShutdown(void) {
    began = -1;
    xids_told = 0;
    return enter(NULL, "Shutdown");
}
API const char *nvmlErrorString(Ret code) { (void)code; return "an error of the fake"; }
API Ret nvmlSystemGetDriverVersion(char *out, unsigned size) {
    return text(NULL, "GetDriverVersion", "driver", "570.99.01", out, size);
}
API Ret nvmlDeviceGetCount_v2(unsigned *out) {
    ENTER(NULL, "GetCount");
    *out = count_of("gpus", -1);
    return OK;
}
API Ret nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle *out) {
    if (index >= GPUS) return INVALID;
    *out = &devices[index][0];
    return enter(*out, "GetHandleByIndex");
}
API Ret nvmlDeviceGetUUID(Handle dev, char *out, unsigned size) {
    char plain[96];
    if (dev->instance < 0) snprintf(plain, sizeof plain, "GPU-%08d-0000-0000-0000-000000000000", dev->gpu);
    else snprintf(plain, sizeof plain, "MIG-%08d-0000-0000-0000-%012d", dev->gpu, dev->instance);
    return text(dev, "GetUUID", "uuid", plain, out, size);
}
API Ret nvmlDeviceGetName(Handle dev, char *out, unsigned size) {
    return text(dev, "GetName", "name", "NVIDIA H100 80GB HBM3", out, size);
}

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char busId[32];
} Pci;
API Ret nvmlDeviceGetPciInfo_v3(Handle dev, Pci *out) {
    char plain[64];
    memset(out, 0, sizeof *out);
    snprintf(plain, sizeof plain, "00000000:%02X:00.0", 0x10 + dev->gpu);
    return text(dev, "GetPciInfo", "pci", plain, out->busId, sizeof out->busId);
}

typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory2;
API Ret nvmlDeviceGetMemoryInfo(Handle dev, Memory *out) {
    ENTER(dev, "GetMemoryInfo");
    out->total = number(dev, "memory_total", 80ull << 30);
    out->used = number(dev, "memory", 0) + number(dev, "memory_reserved", 0);
    out->free = out->total - out->used;
    return OK;
}
API Ret nvmlDeviceGetMemoryInfo_v2(Handle dev, Memory2 *out) {
    ENTER(dev, "GetMemoryInfo_v2");
    if (out->version != 0x02000028) return 25;
    out->total = number(dev, "memory_total", 80ull << 30);
    out->reserved = number(dev, "memory_reserved", 0);
    out->used = number(dev, "memory", 0);
    out->free = out->total - out->used - out->reserved;
    return OK;
}

typedef struct { unsigned gpu, memory; } Rates;
API Ret nvmlDeviceGetUtilizationRates(Handle dev, Rates *out) {
    unsigned long long value;
    Ret r = given(dev, "GetUtilizationRates", "utilization", &value);
    if (r) return r;
    out->gpu = value;
    out->memory = number(dev, "memory_utilization", 0);
    return OK;
}

#define UNSIGNED(function, call, key)                       \
    API Ret function(Handle dev, unsigned *out) {           \
        unsigned long long value;                           \
        Ret r = given(dev, call, key, &value);              \
        if (!r) *out = value;                               \
        return r;                                           \
    }
#define LONG(function, call, key) \
    API Ret function(Handle dev, unsigned long long *out) { return given(dev, call, key, out); }
UNSIGNED(nvmlDeviceGetPowerUsage, "GetPowerUsage", "power")
UNSIGNED(nvmlDeviceGetEnforcedPowerLimit, "GetEnforcedPowerLimit", "power_limit")
UNSIGNED(nvmlDeviceGetArchitecture, "GetArchitecture", "architecture")
LONG(nvmlDeviceGetTotalEnergyConsumption, "GetTotalEnergyConsumption", "energy")
LONG(nvmlDeviceGetCurrentClocksEventReasons, "GetCurrentClocksEventReasons", "throttle")
LONG(nvmlDeviceGetCurrentClocksThrottleReasons, "GetCurrentClocksThrottleReasons", "throttle")

typedef struct { unsigned version; int sensor; int temperature; } Temperature;
API Ret nvmlDeviceGetTemperatureV(Handle dev, Temperature *out) {
    unsigned long long value;
    Ret r = given(dev, "GetTemperatureV", "temperature", &value);
    if (!r) out->temperature = value;
    return r;
}
API Ret nvmlDeviceGetTemperature(Handle dev, int sensor, unsigned *out) {
    unsigned long long value;
    (void)sensor;
    Ret r = given(dev, "GetTemperature", "temperature", &value);
    if (!r) *out = value;
    return r;
}
API Ret nvmlDeviceGetClockInfo(Handle dev, int kind, unsigned *out) {
    unsigned long long value;
    Ret r = given(dev, "GetClockInfo", kind == 2 ? "memory_clock" : "sm_clock", &value);
    if (!r) *out = value;
    return r;
}
API Ret nvmlDeviceGetPcieThroughput(Handle dev, int counter, unsigned *out) {
    unsigned long long value;
    Ret r = given(dev, "GetPcieThroughput", counter ? "pcie_rx" : "pcie_tx", &value);
    if (!r) *out = value;
    return r;
}
API Ret nvmlDeviceGetTotalEccErrors(Handle dev, int kind, int counter, unsigned long long *out) {
    (void)counter;
    return given(dev, "GetTotalEccErrors", kind ? "ecc_uncorrected" : "ecc_corrected", out);
}

typedef struct {
    uint32_t field, scope;
    int64_t timestamp, latency;
    unsigned type;
    Ret result;
    union { double d; unsigned u; unsigned long long ull; } value;
} Field;
API Ret nvmlDeviceGetFieldValues(Handle dev, int count, Field *out) {
    char key[32], value[64];
    ENTER(dev, "GetFieldValues");
    for (int i = 0; i < count; i++) {
        snprintf(key, sizeof key, "field%u", out[i].field);
        out[i].type = 3;
        out[i].result = lookup(dev, key, value, sizeof value) ? OK : NOT_SUPPORTED;
        out[i].value.ull = out[i].result ? 0 : strtoull(value, NULL, 0);
    }
    return OK;
}

typedef struct {
    unsigned pid;
    unsigned long long memory;
    unsigned gpuInstance, computeInstance;
} Process;
API Ret nvmlDeviceGetComputeRunningProcesses_v3(Handle dev, unsigned *count, Process *out) {
    char value[256], *at = value, *end;
    unsigned found = 0, room = *count;
    ENTER(dev, "GetComputeRunningProcesses");
    if (!lookup(dev, "pids", value, sizeof value)) value[0] = 0;
    for (unsigned long pid; pid = strtoul(at, &end, 10), end != at; at = end, found++)
        if (found < room && out) out[found] = (Process){pid, 1 << 20, 0xffffffffu, 0xffffffffu};
    *count = found;
    return found > room ? 7 : OK;
}

API Ret nvmlDeviceGetMigMode(Handle dev, unsigned *current, unsigned *pending) {
    ENTER(dev, "GetMigMode");
    *current = *pending = count_of("mig", dev->gpu) > 0;
    return OK;
}
API Ret nvmlDeviceGetMaxMigDeviceCount(Handle dev, unsigned *out) {
    ENTER(dev, "GetMaxMigDeviceCount");
    *out = MIG - 1;
    return OK;
}
API Ret nvmlDeviceGetMigDeviceHandleByIndex(Handle dev, unsigned index, Handle *out) {
    if ((long)index >= count_of("mig", dev->gpu)) return NOT_FOUND;
    *out = &devices[dev->gpu][index + 1];
    return enter(*out, "GetMigDeviceHandleByIndex");
}
API Ret nvmlDeviceGetGpuInstanceId(Handle dev, unsigned *out) {
    *out = dev->instance + 1;
    return enter(dev, "GetGpuInstanceId");
}
API Ret nvmlDeviceGetComputeInstanceId(Handle dev, unsigned *out) {
    *out = 0;
    return enter(dev, "GetComputeInstanceId");
}

typedef struct {
    Handle device;
    unsigned long long type, data;
    unsigned gpuInstance, computeInstance;
} Event;
API Ret nvmlEventSetCreate(void **out) {
    *out = &xids_told;
    return enter(NULL, "EventSetCreate");
}
API Ret nvmlEventSetFree(void *set) { (void)set; return enter(NULL, "EventSetFree"); }
API Ret nvmlDeviceRegisterEvents(Handle dev, unsigned long long types, void *set) {
    (void)types; (void)set;
    return enter(dev, "RegisterEvents");
}
API Ret nvmlEventSetWait_v2(void *set, Event *out, unsigned timeout) {
    char line[1024];
    long gpu, code, number = 0, told = xids_told;
    (void)set; (void)timeout;
    ENTER(NULL, "EventSetWait");
    FILE *file = script();
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "xid %ld %ld", &gpu, &code) != 2 || number++ < told) continue;
        *out = (Event){&devices[gpu][0], 8, code, 0xffffffffu, 0xffffffffu};
        xids_told++;
        fclose(file);
        return OK;
    }
    if (file) fclose(file);
    return TIMEOUT;
}
