/* nvml.c - utilisation and memory of the card from NVML, opened at run time; see exec/device_stats.h.
 *
 * A thread samples ten times a second (NVML renews its figure about six times).  Memory counts from what the card held
 * before our context was made, so other programs on the card must not change theirs. */
#include "device.h"
#include "exec/device_stats.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

typedef struct nvml_device *nvml_handle;
typedef struct {
    unsigned gpu, memory; /* percent */
} nvml_utilization;
typedef struct {
    unsigned long long total, free, used; /* bytes */
} nvml_memory;

static struct {
    void *library;
    int (*init)(void);
    int (*shutdown)(void);
    int (*find)(const char *bus, nvml_handle *device);
    int (*utilization)(nvml_handle device, nvml_utilization *out);
    int (*memory)(nvml_handle device, nvml_memory *out);
    nvml_handle device;
    unsigned long long before; /* bytes in use before we came */
    pthread_t thread;
    bool running;

    pthread_mutex_t lock; /* of what follows */
    bool stop;
    double util_sum;
    long samples;
    unsigned long long used, most;
} state = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Function pointers come as object pointers from dlsym. */
static bool find_function(void *to, const char *name) {
    void *at = dlsym(state.library, name);
    memcpy(to, &at, sizeof at);
    return at != NULL;
}

static bool find_all(void) {
    state.library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    return state.library && find_function(&state.init, "nvmlInit_v2") &&
           find_function(&state.shutdown, "nvmlShutdown") &&
           find_function(&state.find, "nvmlDeviceGetHandleByPciBusId_v2") &&
           find_function(&state.utilization, "nvmlDeviceGetUtilizationRates") &&
           find_function(&state.memory, "nvmlDeviceGetMemoryInfo");
}

static void sample(void) {
    nvml_utilization u;
    nvml_memory m;
    if (state.utilization(state.device, &u) != 0 || state.memory(state.device, &m) != 0) return;
    pthread_mutex_lock(&state.lock);
    state.util_sum += u.gpu;
    state.samples++;
    state.used = m.used;
    if (m.used > state.most) state.most = m.used;
    pthread_mutex_unlock(&state.lock);
}

static void *sample_until_stopped(void *unused) {
    const struct timespec pause = {.tv_nsec = 100 * 1000 * 1000};
    for (bool stop = false; !stop;) {
        sample();
        nanosleep(&pause, NULL);
        pthread_mutex_lock(&state.lock);
        stop = state.stop;
        pthread_mutex_unlock(&state.lock);
    }
    return unused;
}

void device_stats_open(const char *bus) {
    nvml_memory m;
    if (state.running || !find_all() || state.init() != 0) return;
    if (state.find(bus, &state.device) != 0 || state.memory(state.device, &m) != 0) return;
    state.before = m.used;
    state.used = state.most = m.used;
    state.util_sum = 0;
    state.samples = 0;
    state.stop = false;
    state.running = pthread_create(&state.thread, NULL, sample_until_stopped, NULL) == 0;
}

void device_stats_close(void) {
    if (state.running) {
        pthread_mutex_lock(&state.lock);
        state.stop = true;
        pthread_mutex_unlock(&state.lock);
        pthread_join(state.thread, NULL);
        state.running = false;
        state.shutdown();
    }
    if (state.library) dlclose(state.library);
    state.library = NULL;
}

void device_stats_reset(void) {
    pthread_mutex_lock(&state.lock);
    state.util_sum = 0;
    state.samples = 0;
    pthread_mutex_unlock(&state.lock);
}

unsigned long long device_stats_held(void) {
    nvml_memory m;
    if (!state.running || state.memory(state.device, &m) != 0) return 0;
    return m.used > state.before ? m.used - state.before : 0;
}

static double gib_since(unsigned long long bytes) {
    return bytes > state.before ? (double)(bytes - state.before) / 0x1p30 : 0;
}

bool device_stats_read(device_stats *out) {
    *out = (device_stats){0};
    pthread_mutex_lock(&state.lock);
    bool any = state.running && state.samples > 0;
    if (any)
        *out = (device_stats){state.util_sum / (double)state.samples, gib_since(state.used), gib_since(state.most)};
    pthread_mutex_unlock(&state.lock);
    return any;
}
