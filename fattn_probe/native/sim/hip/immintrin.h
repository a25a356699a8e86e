// Older releases include this header in ggml-impl.h; it uses type names that are macros for AMD GPUs.
#pragma push_macro("_Float16")
#pragma push_macro("__bf16")
#undef _Float16
#undef __bf16
#include_next <immintrin.h>
#pragma pop_macro("_Float16")
#pragma pop_macro("__bf16")
