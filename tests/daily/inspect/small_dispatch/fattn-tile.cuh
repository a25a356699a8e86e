#pragma once
#include "common.cuh"

template <int D, int ncols1, int ncols2>
void launch_fattn(ggml_backend_cuda_context & ctx, ggml_tensor * dst, kernel_t kernel) {
    kernel(ctx.launched, dst);
}

template <int D, int ncols1, int ncols2, bool use_softcap>
void flash_kernel(int64_t & launched, ggml_tensor * dst) {
    launched = D*ncols1*ncols2 + use_softcap + dst->ne[0];
}

template <int D, int ncols2>
void ggml_cuda_flash_attn_ext_tile_case(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {
    const ggml_tensor * Q = dst->src[0];
    kernel_t kernel;
    if (dst->softcap == 0.0f) {
        constexpr bool use_softcap = false;
        kernel = flash_kernel<D, 1, ncols2, use_softcap>;
    } else {
        constexpr bool use_softcap = true;
        kernel = flash_kernel<D, 1, ncols2, use_softcap>;
    }

    if constexpr (ncols2 <= 4) {
        if (Q->ne[1] > 8/ncols2) {
            constexpr int cols_per_block = 16;
            launch_fattn<D, cols_per_block/ncols2, ncols2>
                (ctx, dst, kernel);
            return;
        }
    }
#ifdef NEVER_DEFINED
    if constexpr (ncols2 <= 2) {
        launch_fattn<D, 2, ncols2>(ctx, dst, kernel);
        return;
    }
#endif // NEVER_DEFINED
    launch_fattn<D, 8/ncols2, ncols2>(ctx, dst, kernel);
}
