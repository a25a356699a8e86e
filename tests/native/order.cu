// Kernels, copies and streams that something orders, or nothing does; lanes that execute a warp instruction at two places.
#include <cstdio>
#include <cstdlib>
#include <cstring>

extern "C" void fattn_probe_written_before(const void * start, size_t bytes);

static __device__ void wait() {
    cudaGridDependencySynchronize();
}

static __global__ void writes(int * x, int value) {
    x[blockIdx.x * 64 + threadIdx.x] = value; // writes
}
static __global__ void writes_after_wait(int * x, int value) {
    wait();
    x[blockIdx.x * 64 + threadIdx.x] = value;
}
static __global__ void triggers_then_waits(int * x, int value) {
    cudaTriggerProgrammaticLaunchCompletion();
    wait();
    x[64 + threadIdx.x] = value;
}
static __global__ void waits_then_triggers(int * x, int value) {
    wait();
    cudaTriggerProgrammaticLaunchCompletion();
    x[64 + threadIdx.x] = value;
}
static __global__ void never_waits(int * x, int value) {
    x[64 + threadIdx.x] = value;
}
static __global__ void adds(int * x, int value) {
    atomicAdd(x + threadIdx.x, value);
}
static __global__ void reads(int * x, int from) {
    x[200 + threadIdx.x] = x[from + 5]; // reads
}
static __global__ void reads_after_wait(int * x, int from) {
    wait();
    x[200 + threadIdx.x] = x[from + 5];
}
static __global__ void reads_after_another_waits(int * x, int from) {
    if (threadIdx.x == 3) {
        wait();
    }
    __syncthreads();
    x[200 + threadIdx.x] = x[from + 5];
}
static __global__ void reads_after_ptx(int * x, int from) {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    x[200 + threadIdx.x] = x[from + 5];
}
static __global__ void reads_before_wait(int * x, int from) {
    const int y = x[from + 5]; // reads_before_wait
    wait();
    x[200 + threadIdx.x] = y;
}
static __global__ void overwrites_before_wait(int * x, int) {
    x[threadIdx.x] = 1; // overwrites_before_wait
    wait();
}

static __device__ __forceinline__ unsigned load(const void * row) {
    unsigned result;
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(result) : "r"((unsigned) __cvta_generic_to_shared(row)));
    return result;
}
static __global__ void matrix_in_branches(int * x, int) {
    __shared__ __align__(16) unsigned rows[64];
    rows[threadIdx.x] = 7;
    __syncwarp();
    if (threadIdx.x % 32 < 16) {
        x[threadIdx.x] = load(rows + threadIdx.x / 32 * 32 + threadIdx.x % 8 * 4); // matrix: one
    } else {
        x[threadIdx.x] = load(rows + threadIdx.x / 32 * 32 + threadIdx.x % 8 * 4) + 1; // matrix: other
    }
}
static __global__ void matrix_in_a_loop(int * x, int n) {
    __shared__ __align__(16) unsigned rows[64];
    rows[threadIdx.x] = 7;
    __syncwarp();
    for (int i = 0; i < n + 9; i++) {
        x[threadIdx.x] += load(rows + threadIdx.x / 32 * 32 + threadIdx.x % 8 * 4);
    }
}
static __global__ void shuffles_in_branches(int * x, int) {
    if (threadIdx.x % 32 < 16) {
        x[threadIdx.x] = __shfl_xor_sync(0xFFFFFFFF, threadIdx.x, 16); // shuffle: one
    } else {
        x[threadIdx.x] = __shfl_xor_sync(0xFFFFFFFF, threadIdx.x, 16) + 1; // shuffle: other
    }
}
static __global__ void syncwarps_in_branches(int * x, int) {
    if (threadIdx.x % 32 < 16) {
        x[threadIdx.x] = 1;
        __syncwarp();
    } else {
        __syncwarp();
        x[threadIdx.x] = 2;
    }
}
static __global__ void votes_in_branches(int * x, int) {
    if (threadIdx.x % 32 < 16) {
        x[threadIdx.x] = __ballot_sync(0xFFFFFFFF, 1);
    } else {
        x[threadIdx.x] = __ballot_sync(0xFFFFFFFF, threadIdx.x & 1);
    }
}
static __global__ void shuffles_between_branches(int * x, int n) {
    int sum = threadIdx.x;
    for (int i = 0; i < n + 5; i++) {
        if (threadIdx.x % 2 == 0) {
            sum += i;
        }
        const int other = __shfl_xor_sync(0xFFFFFFFF, sum, 1);
        if (threadIdx.x % 2 == 0) {
            sum += other;
        }
    }
    x[threadIdx.x] = sum;
}

typedef void (*Kernel)(int *, int);
static const struct { const char * name; Kernel kernel; } kernels[] = {
#define ENTRY(name) {#name, name}
    ENTRY(writes), ENTRY(writes_after_wait), ENTRY(triggers_then_waits), ENTRY(waits_then_triggers), ENTRY(never_waits), ENTRY(adds), ENTRY(reads),
    ENTRY(reads_after_wait), ENTRY(reads_after_another_waits), ENTRY(reads_after_ptx), ENTRY(reads_before_wait),
    ENTRY(overwrites_before_wait), ENTRY(matrix_in_branches), ENTRY(matrix_in_a_loop), ENTRY(shuffles_in_branches),
    ENTRY(syncwarps_in_branches), ENTRY(votes_in_branches), ENTRY(shuffles_between_branches),
};

static int * data, * host;
static cudaStream_t streams[10];
static cudaEvent_t event;

static void launch(Kernel kernel, char stream, bool programmatic) {
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = 1;
    config.blockDim = 64;
    config.stream = streams[stream - '0'];
    config.attrs = &attribute;
    config.numAttrs = programmatic;
    cudaLaunchKernelEx(&config, kernel, data, 0); // launch
}

// Steps: `1:NAME` launches on stream 1, `1+NAME` too with programmatic dependent launch, `1!` records the event,
// `2?` waits for it, `1=` synchronises with a stream, `!=` with the event, `*=` with the device, `1<` copies to the host,
// `1>` and `1#` to the device from pinned and from pageable memory, `1@` to another place of the device, `1~` fills.
// `1^`: kernels of earlier ops write the data. Streams 0 and 9 are the default ones, 1 to 4 are created, 5 to 8 are created as blocking ones.
static void step(const char * word) {
    const cudaStream_t stream = streams[word[0] >= '0' && word[0] <= '9' ? word[0] - '0' : 0];
    static int pageable[1024];
    switch (word[1]) {
    case ':': case '+':
        for (const auto & entry : kernels) {
            if (strcmp(entry.name, word + 2) == 0) {
                return launch(entry.kernel, word[0], word[1] == '+');
            }
        }
        exit(2);
    case '!': cudaEventRecord(event, stream); return;
    case '?': cudaStreamWaitEvent(stream, event, 0); return;
    case '=':
        word[0] == '!' ? cudaEventSynchronize(event) : word[0] == '*' ? cudaDeviceSynchronize() : cudaStreamSynchronize(stream);
        return;
    case '<': cudaMemcpyAsync(host, data, 256, cudaMemcpyDeviceToHost, stream); return; // copy
    case '>': cudaMemcpyAsync(data, host, 256, cudaMemcpyHostToDevice, stream); return; // copy in
    case '#': cudaMemcpyAsync(data, pageable, 256, cudaMemcpyHostToDevice, stream); return;
    case '@': cudaMemcpyAsync(data + 128, data, 256, cudaMemcpyDeviceToDevice, stream); return; // copy on
    case '^': fattn_probe_written_before(data, 256); return;
    case '~': cudaMemsetAsync(data, 0, 256, stream); return;
    default: exit(2);
    }
}

int main(int count, char ** words) {
    cudaMalloc((void **) &data, 4096);
    cudaMallocHost((void **) &host, 4096);
    cudaMemset(data, 0, 4096);
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    for (int i = 1; i < 9; i++) {
        cudaStreamCreateWithFlags(&streams[i], i < 5 ? cudaStreamNonBlocking : cudaStreamDefault);
    }
    streams[9] = cudaStreamPerThread;
    cudaDeviceSynchronize();
    for (int i = 1; i < count; i++) {
        step(words[i]);
    }
    puts("done");
}
