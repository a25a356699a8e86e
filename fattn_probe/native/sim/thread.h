// A simulated CUDA thread: a fiber in a warp of a block, run by one host worker.
#pragma once

#include "lanes.h"
#include "unchecked.h"

#include <vector_types.h>

#include <cstddef>
#include <cstdint>

namespace simt {

struct Warp;

// The reason why a fiber does not run.
enum class Wait : uint8_t { none, warp, convergence, block, done };

// How a fiber passes a loop of matrix instructions (ahead.h): in step with its warp; as the first lane, which records
// them; or after that lane.
enum class Ahead : uint8_t { off, records, follows };

constexpr size_t stack_bytes = 256 << 10;

struct Fiber {
    void *stack_pointer = nullptr;
    uint3 thread_idx = {};
    uint32_t lane = 0;
    Wait wait = Wait::none;
    Warp *warp = nullptr;
    char *stack_top = nullptr;
    // Running ahead: the instructions passed but not yet executed, and where the next address of a load goes.
    Ahead ahead = Ahead::off;
    uint32_t passed = 0;
    const void **next_address = nullptr;
    const void **last_address = nullptr;
    // Where it waits: the source line of a barrier, the name of a warp instruction. For reports.
    const char *place = "";
    int line = 0;
    LaneMask active = 0;     // the result of __activemask()
    uint32_t printed = 0;    // calls of printf
    uint32_t copy_group = 0; // groups of cp.async that it has committed
    uint32_t branches = 0;   // see branch()
    bool waited = false;     // with cudaGridDependencySynchronize(), for what its kernel depends on
    // For the checker: an address in the code just after the warp instruction that it executes.
    const void *site = nullptr;

    // Its index in the block, x fastest: warp 0 has threads 0 to 31.
    uint32_t thread_number() const;
};

// __thread, not thread_local: these are read at every turn, and must not be wrapped in a call that initialises them.
#define SIMT_THREAD_LOCAL __thread __attribute__((tls_model("initial-exec")))
extern SIMT_THREAD_LOCAL Fiber *self; // nullptr in host code
extern SIMT_THREAD_LOCAL uint3 blockIdx;
extern SIMT_THREAD_LOCAL dim3 blockDim;
extern SIMT_THREAD_LOCAL dim3 gridDim;

// The second test of `a || b`, where nvcc knows the first: evaluating it counts as a branch, which ends a basic block
// (build/rewrite_products.py).
SIMT_UNCHECKED inline bool branch(bool test) {
    ++self->branches;
    return test;
}
SIMT_UNCHECKED inline uint32_t branches() { return self->branches; }

// __syncthreads(); file and line are the caller's.
void sync_block(const char *file, int line);

// __trap(): ends the case with a finding.
[[noreturn]] void trap(const char *file = __builtin_FILE(), int line = __builtin_LINE());

// Ends the case, naming a PTX or AMD instruction that the simulator does not know.
[[noreturn]] void unknown_ptx(const char *mnemonic, const char *file, int line);

// Ends the case, naming a CUDA feature that the simulator does not have.
[[noreturn]] void report_unsupported(const char *what, const char *file, int line);

// static_assert of HIP's device code, as a function: it is checked where it is reached. g++ before 13 refuses an
// assertion that fails in a branch of `if constexpr` that is not taken (CWG 2518); clang does not, and llama.cpp has
// such branches for waves of 64.
constexpr void assert_constant(bool holds, const char *message = "static_assert", const char *file = __builtin_FILE(),
                               int line = __builtin_LINE()) {
    if (!holds) {
        report_unsupported(message, file, line);
    }
}

// This block's dynamic shared memory, and room for one static shared variable (the same for every thread).
void *dynamic_shared_memory();
void *static_shared_memory(const void *site, size_t bytes, size_t alignment);

// `extern __shared__ T name[]` becomes `T * const name = dynamic_shared<T>()`.
template <class T> T *dynamic_shared() { return static_cast<T *>(dynamic_shared_memory()); }

// `__shared__ T name` becomes `T & name = static_shared<T>([]{})`: the lambda's type distinguishes the variables.
template <class T, class Site> T &static_shared(Site) {
    static const char site = 0;
    return *static_cast<T *>(static_shared_memory(&site, sizeof(T), alignof(T) < 16 ? 16 : alignof(T)));
}

} // namespace simt
