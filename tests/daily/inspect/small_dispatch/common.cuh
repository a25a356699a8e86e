#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#define STRIDE 256 // rows
#define CC_NEW 890
#define CC_OFFSET_AMD 0x1000000
#define CC_IS_AMD(cc) (cc >= CC_OFFSET_AMD)
#define GGML_ASSERT(x) do { if (!(x)) abort(); } while (0)
#define GGML_ABORT(...) abort()

enum ggml_type { GGML_TYPE_F16 = 1, GGML_TYPE_Q8_0 = 8 };
struct ggml_tensor { int64_t ne[4]; int64_t nb[4]; ggml_type type; float softcap; ggml_tensor * src[4]; };
struct ggml_backend_cuda_context { int cc; int64_t launched; };
typedef void (* kernel_t)(int64_t & launched, ggml_tensor * dst);
static bool has_tensor_cores(const int cc) { return cc >= 700; }
