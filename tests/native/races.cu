// Kernels whose blocks race in global memory, so that what is found first depends on the order of the blocks.
#include <cstdio>
#include <cstdlib>
#include <cstring>

constexpr int BLOCKS = 48, THREADS = 64, SIZE = BLOCKS * THREADS;

// Blocks take their time, each another one.
static __device__ float delay(int turns) {
    float x = 1.0f;
    for (int i = 0; i < turns; i++) {
        x = x * 1.0001f + 0.1f;
    }
    return x;
}
static __device__ int own() {
    delay(blockIdx.x * 37 % 11 * 40);
    return blockIdx.x * blockDim.x + threadIdx.x;
}

static __global__ void reads_its_neighbour(int * x, int) {
    const int i = own();
    x[i] = x[(i + THREADS) % SIZE] + blockIdx.x; // reads_its_neighbour
}
static __global__ void reads_what_none_has_written(int * x, int n) {
    int *     fresh = x + n;
    const int i     = own();
    fresh[i]        = i;
    x[i]            = fresh[(i + 5 * THREADS) % SIZE]; // reads_what_none_has_written
}
static __global__ void writes_one_place(int * x, int) {
    own();
    x[threadIdx.x] = blockIdx.x; // writes_one_place
}
static __global__ void writes_back_or_another_value(int * x, int) {
    own();
    x[threadIdx.x] = blockIdx.x == 20 ? 0 : 7; // writes_back_or_another_value
}
static __global__ void writes_what_all_have_read(int * x, int n) {
    x[n + own()]   = x[threadIdx.x]; // writes_what_all_have_read
    x[threadIdx.x] = 7;
}
// A race, and later blocks with faults of their own.
static __global__ void has_several_faults(int * x, int n) {
    __shared__ int shared[THREADS];
    const int      i = own();
    if (blockIdx.x % 7 == 3) {
        shared[threadIdx.x] = i;
        x[i]                = shared[(threadIdx.x + 32) % THREADS];
    } else if (blockIdx.x % 7 == 5) {
        x[i] = x[4 * n + threadIdx.x];
    } else if (blockIdx.x > 1) {
        x[i] = x[i - 2 * THREADS]; // has_several_faults
    } else {
        x[i] = i;
    }
}

static __device__ int next_ticket;

// In the order of the blocks, the first one calls __threadfence() before any other reads: no race is searched for.
static __global__ void fences_after_reading(int * x, int n) {
    const int i = own();
    if (blockIdx.x > 0) {
        x[n + i] = x[i - THREADS] != 0;
    }
    x[i] = 1;
    __threadfence();
    if (threadIdx.x == 0) {
        atomicAdd(&next_ticket, 1);
    }
}

// Words that lie in 16 bytes, each of another block, and a counter of all.
static __global__ void writes_words(int * x, int n) {
    own();
    if (threadIdx.x < 4) {
        x[blockIdx.x + threadIdx.x * BLOCKS] = 1; // writes_words
        atomicAdd(x + n, 1);                      // counts
    }
}
static __global__ void reads_a_word(int * x, int n) {
    if (threadIdx.x == 0) {
        x[n + 9] = x[5]; // reads_a_word
    }
}
static __global__ void reads_the_count(int * x, int n) {
    if (threadIdx.x == 0) {
        x[n + 9] = x[n]; // reads_the_count
    }
}

// Right: the last block reads what it has written, as all have.
static __global__ void last_block_reads(int * x, int n) {
    own();
    x[threadIdx.x] = 7;
    if (blockIdx.x == BLOCKS - 1) {
        x[n + threadIdx.x] = x[threadIdx.x];
    }
}
// Blocks write parts of words.
static __global__ void halves_of_words(int * x, int) {
    short * const halves = (short *) x;
    const int     i      = 2 * blockIdx.x + 1 + (threadIdx.x & 1);
    if (threadIdx.x < 2) {
        delay(blockIdx.x % 5 * 40);
        halves[i] = i;
    }
}

// Blocks change parts of words in place: of each word another block changes the other half.
static __global__ void halves_in_place(int * x, int) {
    short * const halves = (short *) x;
    const int     i      = 2 * blockIdx.x + 1 + threadIdx.x;
    if (threadIdx.x < 2) {
        delay(blockIdx.x % 5 * 40);
        halves[i] = halves[i] * 2 + i;
    }
}
// So do these, but each also reads a half that another block changes.
static __global__ void halves_of_another(int * x, int) {
    short * const halves = (short *) x;
    const int     i      = 2 * blockIdx.x + 1 + threadIdx.x;
    if (threadIdx.x < 2) {
        delay(blockIdx.x % 5 * 40);
        halves[i] = halves[i] * 2 + halves[i + 1]; // halves_of_another
    }
}

struct Entry {
    const char * name;
    void (*kernel)(int *, int);
    void (*second)(int *, int); // on another stream, with nothing between
};
#define ENTRY(name) {#name, name, nullptr}
static const Entry entries[] = {
    ENTRY(reads_its_neighbour), ENTRY(reads_what_none_has_written), ENTRY(writes_one_place), ENTRY(writes_back_or_another_value),
    ENTRY(writes_what_all_have_read), ENTRY(last_block_reads), ENTRY(has_several_faults), ENTRY(fences_after_reading), ENTRY(halves_of_words), ENTRY(halves_in_place), ENTRY(halves_of_another),
    {"reads_a_word", writes_words, reads_a_word}, {"reads_the_count", writes_words, reads_the_count},
};

int main(int, char ** words) {
    int *        x;
    cudaStream_t streams[2];
    for (cudaStream_t & stream : streams) {
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    }
    cudaMalloc((void **) &x, 3 * SIZE * sizeof(int));
    cudaMemset(x, 0, SIZE * sizeof(int));
    cudaMemset(x + 2 * SIZE, 0, SIZE * sizeof(int));
    cudaDeviceSynchronize();
    for (const Entry & entry : entries) {
        if (strcmp(entry.name, words[1]) == 0) {
            void (*kernel)(int *, int) = entry.kernel;
            const int other            = entry.second != nullptr ? 2 * SIZE : SIZE;
            kernel<<<BLOCKS, THREADS, 0, streams[0]>>>(x, other);
            if (entry.second != nullptr) {
                void (*second)(int *, int) = entry.second;
                second<<<1, THREADS, 0, streams[1]>>>(x, other);
            }
            cudaDeviceSynchronize();
            int * const host = (int *) malloc(3 * SIZE * sizeof(int));
            cudaMemcpy(host, x, 3 * SIZE * sizeof(int), cudaMemcpyDeviceToHost);
            unsigned sum = next_ticket;
            for (int i = 0; i < 3 * SIZE; i++) {
                sum = sum * 31 + host[i];
            }
            printf("%d %u\n", next_ticket, sum);
            return 0;
        }
    }
    return 2;
}
