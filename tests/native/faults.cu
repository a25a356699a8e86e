// Kernels with one fault each, then kernels that are right although they look like it.
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <initializer_list>
#include <new>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "focus.h"

// A signal handler must not allocate or lock: the code that it interrupts may be about to.
#define UNCHECKED __attribute__((no_sanitize("thread", "undefined")))
UNCHECKED static void check_not_in_a_handler() {
    stack_t stack;
    if (sigaltstack(nullptr, &stack) == 0 && (stack.ss_flags & SS_ONSTACK) != 0) {
        _exit(3);
    }
}
UNCHECKED void * operator new(size_t bytes) {
    check_not_in_a_handler();
    return malloc(bytes);
}
void operator delete(void * memory) noexcept {
    free(memory);
}
void operator delete(void * memory, size_t) noexcept {
    free(memory);
}
static int (*lock)(pthread_mutex_t *);
extern "C" UNCHECKED int pthread_mutex_lock(pthread_mutex_t * mutex) noexcept {
    if (lock == nullptr) {
        lock = (int (*)(pthread_mutex_t *)) dlsym(RTLD_NEXT, "pthread_mutex_lock");
    }
    check_not_in_a_handler();
    return lock(mutex);
}

// The fault is that of thread (5, 1, 0) of block (1, 0, 0), where a single thread's.
static __device__ bool is_faulty() {
    return blockIdx.x == 1 && threadIdx.x == 5 && threadIdx.y == 1;
}
static __device__ int thread_number() {
    return threadIdx.y * blockDim.x + threadIdx.x;
}

__global__ void read_past_the_end(int * data, int n) {
    if (is_faulty()) {
        data[0] = data[n]; // fault: read_past_the_end
    }
}
__global__ void write_past_the_end(int * data, int n) {
    if (is_faulty()) {
        data[n] = 1; // fault: write_past_the_end
    }
}
__global__ void write_before_the_start(int * data, int) {
    if (is_faulty()) {
        data[-1] = 1; // fault: write_before_the_start
    }
}
__global__ void wide_read_past_the_end(int * data, int n) {
    if (is_faulty()) {
        *(int4 *) data = *(const int4 *) (data + n - 2); // fault: wide_read_past_the_end
    }
}
__global__ void dynamic_shared_past_the_end(int * data, int) {
    extern __shared__ int shared[];
    shared[thread_number()] = 1;
    if (is_faulty()) {
        shared[128] = data[0]; // fault: dynamic_shared_past_the_end
    }
}
__global__ void static_shared_past_the_end(int * data, int n) {
    __shared__ int shared[64];
    shared[thread_number()] = 1;
    if (is_faulty()) {
        shared[n / 3] = data[0]; // fault: static_shared_past_the_end
    }
}
__global__ void misaligned_16(int * data, int) {
    if (is_faulty()) {
        *(int4 *) data = *(const int4 *) (data + 1); // fault: misaligned_16
    }
}
__global__ void misaligned_8(int * data, int) {
    if (is_faulty()) {
        *(int2 *) data = *(const int2 *) (data + 1); // fault: misaligned_8
    }
}
__global__ void misaligned_8_in_parts(int * data, int) {
    if (is_faulty()) {
        const float2 * pairs = (const float2 *) (data + 1);
        data[0]              = pairs[1].x > pairs[1].y; // fault: misaligned_8_in_parts
    }
}
__global__ void misaligned_4(int * data, int) {
    if (is_faulty()) {
        *(int *) ((char *) data + 6) = 1; // fault: misaligned_4
    }
}
__global__ void misaligned_copy(int * data, int) {
    extern __shared__ int shared[];
    if (is_faulty()) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"((unsigned) __cvta_generic_to_shared(shared)), "l"(data + 2)); // fault: misaligned_copy
    }
    asm volatile("cp.async.wait_all;");
}
__global__ void misaligned_matrix(int * data, int) {
    extern __shared__ int shared[];
    shared[thread_number()]      = 0;
    shared[thread_number() + 64] = 0;
    __syncthreads();
    int a, b, row = threadIdx.x % 16;
    const int * address = shared + 4 * row + (is_faulty() ? 1 : 0);
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.b16 {%0, %1}, [%2];" : "=r"(a), "=r"(b) : "l"(address)); // fault: misaligned_matrix
    data[0] = a + b;
}
__global__ void use_after_free(int * data, int) {
    if (is_faulty()) {
        data[3] = 1; // fault: use_after_free
    }
}
__global__ void given_back_to_the_pool(int * data, int) {
    if (is_faulty()) {
        data[3] = 1; // fault: given_back_to_the_pool
    }
}
__global__ void handed_out_by_the_pool(int * data, int) { data[3] = 1; }
__global__ void unwritten_since_the_pool_had_it(int * data, int) {
    if (is_faulty()) {
        data[3] = data[2] + 1; // fault: unwritten_since_the_pool_had_it
    }
}
__global__ void past_what_the_pool_hands_out(int * data, int n) {
    if (is_faulty()) {
        data[2 * n / 3] = 1; // fault: past_what_the_pool_hands_out
    }
}
static __device__ __noinline__ int sum_of_a_large_array(int n) { // fault: stack_overflow
    volatile char local[400 << 10];
    local[n] = 1;
    return local[n];
}
__global__ void stack_overflow(int * data, int n) {
    if (is_faulty()) {
        data[0] = sum_of_a_large_array(n);
    }
}
__global__ void traps(int *, int) {
    if (is_faulty()) {
        __trap(); // fault: traps
    }
}
__global__ void unknown_instruction(int * data, int) {
    if (is_faulty()) {
        asm volatile("frobnicate.sync.b32 %0, %1;" : "=r"(data[0]) : "r"(data[1])); // fault: unknown_instruction
    }
}
// The return addresses of its callers lead nowhere.
static __device__ __noinline__ void smash_the_stack(bool wait) {
    volatile size_t local[4];
    for (int i = 0; i < 12; i++) {
        local[i] = 0x12345;
    }
    if (wait) {
        __syncthreads(); // fault: smashed_stack
    } else {
        *(volatile int *) nullptr = 1; // fault: crash_on_a_smashed_stack
    }
}
__global__ void smashed_stack(int * data, int) {
    if (blockIdx.x == 1 && thread_number() != 37) {
        smash_the_stack(true);
        data[0] = 1;
    }
}
__global__ void crash_on_a_smashed_stack(int * data, int) {
    if (is_faulty()) {
        smash_the_stack(false);
        data[0] = 1;
    }
}
// The stack of thread (28, 1, 0) is nearly full when it waits for one that never comes, or finds a race.
__global__ void full_stack(int * data, int n) {
    if (blockIdx.x == 1 && thread_number() >= 60) {
        volatile char * local = (volatile char *) __builtin_alloca(thread_number() == 60 ? n : 16);
        local[0]              = 1;
        __syncthreads(); // fault: full_stack
        data[0] = local[0];
    }
}
__global__ void race_on_a_full_stack(int * data, int n) {
    __shared__ int shared[64];
    shared[thread_number()] = 1;
    if (blockIdx.x == 1 && thread_number() == 60) {
        volatile char * local = (volatile char *) __builtin_alloca(n);
        local[0]              = 1;
        data[0]               = shared[61] + local[0]; // fault: race_on_a_full_stack
    }
}
__global__ void barrier_not_reached(int * data, int) {
    if (blockIdx.x == 1 && thread_number() != 37) {
        __syncthreads(); // fault: barrier_not_reached
        data[0] = 1;
    }
}
__global__ void barriers_at_two_places(int * data, int) {
    if (blockIdx.x == 1 && threadIdx.y == 1) {
        data[0] = 1;
        __syncthreads(); // fault: barriers_at_two_places
    } else {
        __syncthreads();
    }
}
__global__ void shuffle_from_a_missing_lane(int * data, int) {
    data[threadIdx.x] = __shfl_down_sync(0xFFFFFFFF, threadIdx.x, 1); // fault: shuffle_from_a_missing_lane
}
__global__ void sum_over_missing_lanes(int * data, int) {
    int x = threadIdx.x;
    for (int offset = 16; offset > 0; offset >>= 1) {
        x += __shfl_xor_sync(0xFFFFFFFF, x, offset, 32); // fault: sum_over_missing_lanes
    }
    data[threadIdx.x] = x;
}
__global__ void product_overflows(int * data, int n) {
    if (is_faulty()) {
        data[0] = data[3] + n * 20000000; // fault: product_overflows
    }
}
__global__ void index_loses_bits(int * data, int n) {
    const long long stride = n;
    if (is_faulty()) {
        const int row = stride * 20000000; // fault: index_loses_bits
        data[0]       = row;
    }
}
__global__ void argument_loses_bits(int * data, int n) {
    data[0] = n;
}
__global__ void uninitialized_global(int * data, int) {
    data[thread_number()] = 1;
    if (is_faulty()) {
        data[0] = data[100]; // fault: uninitialized_global
    }
}
__global__ void uninitialized_vector(int * data, int) {
    if (thread_number() < 63) {
        data[thread_number()] = 1;
    }
    if (is_faulty()) {
        const int4 four = *(const int4 *) (data + 60); // fault: uninitialized_vector
        data[0]         = four.x + four.w;
    }
}
__global__ void copy_of_unwritten(int * data, int) {
    if (is_faulty()) {
        data[0] = data[100]; // fault: copy_of_unwritten
    }
}
__global__ void two_blocks_write(int * data, int) {
    data[thread_number()] = blockIdx.x; // fault: two_blocks_write
}
__global__ void block_reads_after_a_write(int * data, int) {
    if (blockIdx.x == 0) {
        data[thread_number()] = 1;
    } else if (is_faulty()) {
        data[128] = data[2]; // fault: block_reads_after_a_write
    }
}
__global__ void block_writes_after_a_read(int * data, int) {
    if (blockIdx.x == 0) {
        data[128 + thread_number()] = data[thread_number()];
    } else if (is_faulty()) {
        ((char *) data)[9] = 1; // fault: block_writes_after_a_read
    }
}
__global__ void block_writes_what_both_read(int * data, int) {
    const int4 four = *(const int4 *) (data + 4 * (threadIdx.x % 16));
    if (blockIdx.x == 0) {
        data[128 + thread_number()] = four.x;
    } else if (is_faulty() && four.y == 0) {
        data[6] = 1; // fault: block_writes_what_both_read
    }
}
__global__ void block_reads_an_atomic(int * data, int) {
    if (blockIdx.x == 0) {
        atomicAdd(data, 1);
    } else if (is_faulty()) {
        data[128] = data[0]; // fault: block_reads_an_atomic
    }
}
__global__ void lane_missing(int * data, int) {
    if (blockIdx.x == 0 || thread_number() != 37) {
        data[thread_number()] = __shfl_xor_sync(0xFFFFFFFF, thread_number(), 1); // fault: lane_missing
    }
}
__global__ void lanes_in_two_instructions(int * data, int) {
    if (threadIdx.x < 16) {
        data[0] = __shfl_xor_sync(0xFFFFFFFF, 1, 1); // fault: lanes_in_two_instructions
    } else {
        data[1] = __any_sync(0xFFFFFFFF, 1);
    }
}
__global__ void uninitialized(int * data, int) {
    extern __shared__ int shared[];
    if (!is_faulty()) {
        shared[thread_number()] = 1;
    }
    __syncthreads();
    data[thread_number()] = shared[thread_number()]; // fault: uninitialized
}
__global__ void read_after_write(int * data, int) {
    __shared__ int shared[32];
    if (threadIdx.y == 0) {
        shared[threadIdx.x] = threadIdx.x;
    } else {
        data[threadIdx.x] = shared[threadIdx.x]; // fault: read_after_write
    }
}
__global__ void write_after_read(int * data, int) {
    __shared__ int shared[32];
    shared[threadIdx.x] = 0;
    __syncthreads();
    if (threadIdx.y == 1) {
        data[threadIdx.x] = shared[threadIdx.x];
    } else {
        shared[threadIdx.x] = -1; // fault: write_after_read
    }
}
__global__ void write_after_write(int * data, int) {
    __shared__ int shared[1];
    if (threadIdx.x == 0) {
        shared[0] = thread_number(); // fault: write_after_write
    }
    __syncthreads();
    data[thread_number()] = shared[0];
}
__global__ void lanes_not_in_step(int * data, int) {
    __shared__ int shared[1];
    if (threadIdx.y == 0 && threadIdx.x == 5) {
        shared[0] = 1;
    }
    if (threadIdx.y == 0 && threadIdx.x == 0) {
        data[0] = shared[0]; // fault: lanes_not_in_step
    }
}
__global__ void vector_race(int * data, int) {
    __shared__ int4 shared[32];
    if (threadIdx.y == 0) {
        shared[threadIdx.x] = make_int4(1, 2, 3, 4);
    } else {
        *(int4 *) (data + 4 * threadIdx.x) = shared[threadIdx.x]; // fault: vector_race
    }
}
__global__ void copy_not_waited_for(int * data, int) {
    extern __shared__ int shared[];
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"((unsigned) __cvta_generic_to_shared(shared + 4 * threadIdx.x)), "l"(data));
    __syncwarp();
    data[4 + thread_number()] = shared[4 * threadIdx.x]; // fault: copy_not_waited_for
    asm volatile("cp.async.wait_all;");
}
__global__ void matrix_race(int * data, int) {
    extern __shared__ int shared[];
    shared[thread_number()]      = 0;
    shared[thread_number() + 64] = 0;
    __syncthreads();
    if (threadIdx.y == 1) {
        shared[threadIdx.x] = 1;
    } else {
        int a, b;
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.b16 {%0, %1}, [%2];" : "=r"(a), "=r"(b) : "l"(shared + 4 * (threadIdx.x % 16))); // fault: matrix_race
        data[thread_number()] = a + b;
    }
}
__global__ void pair_race(int * data, int) {
    __shared__ half2 shared[32];
    if (threadIdx.y == 0) {
        shared[threadIdx.x] = __floats2half2_rn(1.0f, threadIdx.x);
    } else {
        const half2 sum   = shared[threadIdx.x] + shared[threadIdx.x]; // fault: pair_race
        data[threadIdx.x] = (float) sum.x;
    }
}
__global__ void matrix_loaded_past_the_end(int * data, int) {
    extern __shared__ int shared[];
    shared[thread_number()]      = 0;
    shared[thread_number() + 64] = 0;
    __syncthreads();
    int a, b;
    int * to = is_faulty() ? shared + 128 : &a;
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.b16 {%0, %1}, [%2];" : "=r"(*to), "=r"(b) : "l"(shared + 4 * (threadIdx.x % 16))); // fault: matrix_loaded_past_the_end
    data[thread_number()] = *to + b;
}
__global__ void product_of_unwritten(int * data, int) {
    extern __shared__ int shared[];
    const int zero = 0;
    const int * factor = is_faulty() ? shared : &zero;
    float d[4] = {};
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(zero), "r"(zero), "r"(zero), "r"(zero), "r"(zero), "r"(*factor)); // fault: product_of_unwritten
    data[thread_number()] = d[0];
}
// Every block from 3 on has faults, a late block long before an early one. In a block threads 5, 9 and 40 have them, and
// after the barrier the last warp runs first.
static __device__ bool has_one_of_many_faults() {
    volatile int turns = 0;
    for (int i = 0; thread_number() == 0 && i < 2000 * (int) (16 - blockIdx.x); i++) {
        turns = turns + 1;
    }
    __syncthreads();
    const int thread = thread_number();
    return blockIdx.x >= 3 && (thread == 5 || thread == 9 || thread == 40);
}
__global__ void many_reads_past_the_end(int * data, int n) {
    if (has_one_of_many_faults()) {
        data[0] = data[n + thread_number()]; // fault: many_reads_past_the_end
    }
}
__global__ void faults_of_many_kinds(int * data, int n) {
    if (has_one_of_many_faults()) {
        if (blockIdx.x % 2 == 1) {
            data[0] = data[n + thread_number()]; // fault: faults_of_many_kinds
        }
        __trap();
    }
}
__global__ void many_races(int * data, int) {
    __shared__ int shared[64];
    shared[thread_number()] = 0;
    has_one_of_many_faults(); // a barrier
    if (blockIdx.x >= 3) {
        data[thread_number()] = shared[thread_number()]; // fault: many_races
        shared[thread_number() ^ 32] = 1;
    }
}

__global__ void same_value_twice(int * data, int) {
    __shared__ int shared[1];
    shared[0] = 7;
    __syncthreads();
    data[thread_number()] = shared[0];
}
__global__ void atomic_counter(int * data, int) {
    __shared__ int shared[1];
    if (thread_number() == 0) {
        shared[0] = 0;
    }
    __syncthreads();
    atomicAdd(shared, 1);
    __syncthreads();
    data[thread_number()] = shared[0];
}
__global__ void lanes_in_step(int * data, int) {
    __shared__ int shared[64];
    shared[thread_number()] = thread_number();
    __syncwarp();
    data[thread_number()] = shared[thread_number() ^ 1];
}
__global__ void waits_for_its_copy(int * data, int) {
    extern __shared__ int shared[];
    int * own = shared + 4 * threadIdx.x;
    if (threadIdx.y == 0) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"((unsigned) __cvta_generic_to_shared(own)), "l"(data));
        asm volatile("cp.async.wait_all;");
    }
    __syncthreads();
    data[4 + thread_number()] = own[0];
}
__global__ void blocks_write_the_same(int * data, int) {
    data[thread_number()] = 7;
}
__global__ void blocks_count(int * data, int) {
    atomicAdd(data, 1);
    atomicAdd(data + 1 + thread_number(), (int) blockIdx.x);
}
__global__ void blocks_write_neighbours(int * data, int) {
    ((char *) data)[2 * thread_number() + blockIdx.x] = blockIdx.x + 1;
}
__global__ void blocks_share_16_bytes(int * data, int) {
    const int four = 4 * (thread_number() / 2), of_pair = thread_number() % 2;
    if (blockIdx.x == 0) {
        data[128 + thread_number()] = data[four + of_pair];
    } else {
        data[four + 2 + of_pair] = 1;
    }
}
__global__ void last_block_adds(int * data, int) { // as CUDA's sample threadFenceReduction
    __shared__ int turn;
    if (thread_number() == 0) {
        data[1 + blockIdx.x] = 1;
        __threadfence();
        turn = atomicAdd(data, 1);
    }
    __syncthreads();
    if (turn == 1) {
        data[100 + thread_number()] = data[1] + data[2];
    }
}
__global__ void lanes_there_are(int * data, int) {
    data[threadIdx.x] = __shfl_xor_sync(0xFFFFFFFF, threadIdx.x, 1) + __shfl_sync(0xFFFFFFFF, threadIdx.x, 19);
}
__global__ void whole_block_returns(int * data, int) {
    if (blockIdx.x == 0) {
        return;
    }
    __syncthreads();
    data[thread_number()] = 1;
}

struct Entry {
    const char * name;
    void (*kernel)(int *, int);
    int blocks;
    dim3 threads;
};
#define ENTRY(name) {#name, name, 2, dim3(32, 2)}
#define MANY(name) {#name, name, 16, dim3(32, 2)}
#define NARROW(name) {#name, name, 1, 20}
static const Entry entries[] = {
    ENTRY(read_past_the_end), ENTRY(write_past_the_end), ENTRY(write_before_the_start), ENTRY(wide_read_past_the_end),
    ENTRY(dynamic_shared_past_the_end), ENTRY(static_shared_past_the_end), ENTRY(misaligned_16), ENTRY(misaligned_8),
    ENTRY(misaligned_copy), ENTRY(misaligned_matrix), ENTRY(use_after_free), ENTRY(given_back_to_the_pool), ENTRY(handed_out_by_the_pool),
    ENTRY(unwritten_since_the_pool_had_it), ENTRY(past_what_the_pool_hands_out), ENTRY(stack_overflow), ENTRY(traps),
    ENTRY(misaligned_8_in_parts), ENTRY(misaligned_4), ENTRY(barriers_at_two_places), NARROW(shuffle_from_a_missing_lane),
    NARROW(sum_over_missing_lanes), ENTRY(product_overflows), ENTRY(index_loses_bits), ENTRY(uninitialized_global),
    ENTRY(two_blocks_write), ENTRY(block_reads_after_a_write), ENTRY(block_writes_after_a_read),
    ENTRY(block_reads_an_atomic), ENTRY(blocks_write_the_same), ENTRY(blocks_count), ENTRY(blocks_write_neighbours),
    ENTRY(uninitialized_vector), ENTRY(copy_of_unwritten), ENTRY(block_writes_what_both_read), ENTRY(matrix_race),
    ENTRY(pair_race), ENTRY(matrix_loaded_past_the_end), ENTRY(product_of_unwritten), ENTRY(blocks_share_16_bytes),
    ENTRY(last_block_adds), NARROW(lanes_there_are), ENTRY(unknown_instruction), ENTRY(barrier_not_reached), ENTRY(smashed_stack), ENTRY(crash_on_a_smashed_stack), ENTRY(full_stack), ENTRY(race_on_a_full_stack), ENTRY(lane_missing), ENTRY(lanes_in_two_instructions),
    ENTRY(uninitialized), ENTRY(read_after_write), ENTRY(write_after_read), ENTRY(write_after_write),
    ENTRY(lanes_not_in_step), ENTRY(vector_race), ENTRY(copy_not_waited_for), ENTRY(same_value_twice),
    MANY(many_reads_past_the_end), MANY(faults_of_many_kinds), MANY(many_races), ENTRY(atomic_counter), ENTRY(lanes_in_step), ENTRY(waits_for_its_copy), ENTRY(whole_block_returns),
};

extern "C" void fattn_probe_name_allocation(const void * start, const char * name);

// faults NAME INTS [NAME_OF_THE_ALLOCATION]: a buffer of INTS ints of zeros is handed in.
// As upstream's: a buffer that it has back is there for the next op.
struct ggml_cuda_pool_leg {
    void * kept = nullptr;
    void * alloc(size_t size, size_t *) {
        void * ptr = kept;
        kept       = nullptr;
        return ptr;
    }
    void free(void * ptr, size_t) { kept = ptr; }
};

int main(int count, char ** words) {
    const int n = atoi(words[2]);
    int *     data;
    simt::focus.scout = getenv("SCOUT") != nullptr;
    cudaMalloc((void **) &data, n * sizeof(int));
    cudaMemset(data, 0, n * sizeof(int));
    if (count > 3) {
        fattn_probe_name_allocation(data, words[3]);
    }
    if (strcmp(words[1], "use_after_free") == 0) {
        cudaFree(data);
    }
    if (strstr(words[1], "_the_pool") != nullptr) {
        ggml_cuda_pool_leg pool;
        pool.free(data, n * sizeof(int));
        if (strcmp(words[1], "given_back_to_the_pool") != 0) {
            const bool half = strcmp(words[1], "past_what_the_pool_hands_out") == 0;
            data            = (int *) pool.alloc(n * sizeof(int) / (half ? 2 : 1), nullptr);
        }
    }
    if (strncmp(words[1], "uninitialized_", 14) == 0) {
        cudaMalloc((void **) &data, n * sizeof(int));
    }
    if (strcmp(words[1], "copy_of_unwritten") == 0) {
        int * unwritten;
        cudaMalloc((void **) &unwritten, n * sizeof(int));
        cudaMemcpy(data, unwritten, n * sizeof(int), cudaMemcpyDeviceToDevice);
    }
    if (strcmp(words[1], "argument_loses_bits") == 0) {
        const long long stride = 10000000000 + n;
        argument_loses_bits<<<2, dim3(32, 2)>>>(data, stride); // fault: argument_loses_bits
    }
    for (const Entry & entry : entries) {
        if (strcmp(entry.name, words[1]) == 0) {
            void (*kernel)(int *, int) = entry.kernel;
            kernel<<<entry.blocks, entry.threads, 512>>>(data, n);
            return 0;
        }
    }
    return 2;
}
