// Setters of the op that some versions of llama.cpp lack, detected by overload resolution instead of version numbers.
//
// A call of `ggml_...(ggml_tensor *, ...)` inside `absent` sees the fallback below and, by argument-dependent lookup,
// the function of ggml.h if it is declared. That function wins, because it is not a template.
#pragma once

#include "ggml.h"

#include <cstdint>
#include <type_traits>

namespace absent {

struct Nothing {};

template <typename... Args> Nothing ggml_flash_attn_ext_set_prec(const Args &...) { return {}; }
template <typename... Args> Nothing ggml_flash_attn_ext_add_sinks(const Args &...) { return {}; }
template <typename... Args> Nothing ggml_flash_attn_ext_set_n_kv_max(const Args &...) { return {}; }

// Each of these calls ggml's setter if ggml has it, and returns whether ggml has it.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations" // set_prec, since 2026: it still sets the same op param
template <typename Tensor> bool set_prec(Tensor *dst, ggml_prec prec) {
    ggml_flash_attn_ext_set_prec(dst, prec);
    return std::is_void_v<decltype(ggml_flash_attn_ext_set_prec(dst, prec))>;
}
#pragma GCC diagnostic pop

template <typename Tensor> bool add_sinks(Tensor *dst, Tensor *sinks) {
    ggml_flash_attn_ext_add_sinks(dst, sinks);
    return std::is_void_v<decltype(ggml_flash_attn_ext_add_sinks(dst, sinks))>;
}

template <typename Tensor> bool set_n_kv_max(Tensor *dst, int32_t n_kv_max) {
    ggml_flash_attn_ext_set_n_kv_max(dst, n_kv_max);
    return std::is_void_v<decltype(ggml_flash_attn_ext_set_n_kv_max(dst, n_kv_max))>;
}

} // namespace absent
