// tensor_cores ACCUMULATOR K: matrix instructions from stdin, computed by portable code and with AVX-512; both results
// to stdout, one after the other. Exit code 3: this processor has no AVX-512.
#include "environment.h"
#include "tensor_core.h"
#include "tensor_core_avx512.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <immintrin.h>

namespace simt {

// Of what `tensor_core.cpp` needs from the simulator, all: its functions take the portable way.
const Environment &environment() {
    static const Environment portable = [] {
        Environment made = {};
        made.portable = true;
        return made;
    }();
    return portable;
}

} // namespace simt

namespace {

constexpr int lanes = 32;
using Function = decltype(simt::mma_f16_accumulate_f32) *;
using Fast = decltype(simt::mma_f16_accumulate_f32_avx512) *;

struct Instruction {
    uint32_t a[4][lanes], b[2][lanes], c[4][lanes];
};

} // namespace

int main(int, char **words) {
    if (!simt::has_avx512()) {
        return 3;
    }
    _MM_SET_FLUSH_ZERO_MODE(_MM_FLUSH_ZERO_ON); // as while kernels run
    _MM_SET_DENORMALS_ZERO_MODE(_MM_DENORMALS_ZERO_ON);
    const bool f32 = strcmp(words[1], "f32") == 0;
    const int K = atoi(words[2]);
    const Function portable = f32 ? simt::mma_f16_accumulate_f32 : simt::mma_f16_accumulate_f16;
    const Fast fast = f32 ? simt::mma_f16_accumulate_f32_avx512 : simt::mma_f16_accumulate_f16_avx512;
    Instruction in;
    while (fread(&in, sizeof(in), 1, stdin) == 1) {
        uint32_t results[2][4][lanes] = {};
        portable(K, in.a, in.b, in.c, results[0]);
        if (!fast(K, in.a, in.b, in.c, results[1])) { // not finite: left to portable code
            memcpy(results[1], results[0], sizeof(results[1]));
        }
        fwrite(results, sizeof(results), 1, stdout);
    }
    return 0;
}
