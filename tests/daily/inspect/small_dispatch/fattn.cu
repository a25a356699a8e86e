#include "common.cuh"
#include "fattn-tile.cuh"

template <int D>
static void ggml_cuda_flash_attn_ext_tile_switch(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {
    const ggml_tensor * Q    = dst->src[0];
    const ggml_tensor * K    = dst->src[1];
    const ggml_tensor * mask = dst->src[3];
    const int gqa_ratio = Q->ne[2] / K->ne[2];

    // unaligned data goes without
    bool use_gqa_opt = mask && K->ne[1] % STRIDE == 0;
    for (const ggml_tensor * t : {Q, K, mask}) {
        if (t == nullptr) {
            continue;
        }
        for (int i = 1; i < 4; ++i) {
            if (t->nb[i] % 16 != 0) {
                use_gqa_opt = false;
                break;
            }
        }
    }

    if (use_gqa_opt && gqa_ratio > 4) {
        ggml_cuda_flash_attn_ext_tile_case<D, 8>(ctx, dst);
        return;
    }

    if (use_gqa_opt && gqa_ratio > 2) {
        ggml_cuda_flash_attn_ext_tile_case<D, 4>(ctx, dst);
        return;
    }

    ggml_cuda_flash_attn_ext_tile_case<D, 1>(ctx, dst);
}

static void ggml_cuda_flash_attn_ext_tile(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {
    switch (dst->src[1]->ne[0]) {
        case  40:
        case  64: {
            GGML_ASSERT(dst->src[2]->ne[0] == 64);
            ggml_cuda_flash_attn_ext_tile_switch< 64>(ctx, dst);
        } break;
        default:
            GGML_ABORT("fatal error");
            break;
    }
}

#define VEC_CASE(D, type_K)                                                  \
    if (Q->ne[0] == (D) && K->type == (type_K)) {                            \
        ggml_cuda_flash_attn_ext_tile_case<D, 1>(ctx, dst);                  \
        return;                                                              \
    }                                                                        \

#define VEC_CASES(type_K)  \
    VEC_CASE( 64, type_K)  \
    VEC_CASE(128, type_K)  \

static void ggml_cuda_flash_attn_ext_vec(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {
    ggml_tensor * Q = dst->src[0];
    ggml_tensor * K = dst->src[1];

    VEC_CASES(GGML_TYPE_F16)
    VEC_CASES(GGML_TYPE_Q8_0)

    GGML_ABORT("fatal error");
}

enum best_kernel {
    BEST_KERNEL_NONE = 0,
    BEST_KERNEL_VEC  = 100,
    BEST_KERNEL_TILE = 200,
};

static best_kernel get_best_kernel(const ggml_backend_cuda_context & ctx, const ggml_tensor * dst) {
    const ggml_tensor * Q    = dst->src[0];
    const ggml_tensor * K    = dst->src[1];
    const ggml_tensor * mask = dst->src[3];
    const int cc = ctx.cc;
    const bool can_use_vec = Q->ne[0] <= 256 &&
        Q->ne[0] % 64 == 0 && K->ne[1] % STRIDE == 0;
    const bool unused = cc > 0 && mask;

    if (mask && mask->ne[2] != 1) {
        return BEST_KERNEL_NONE;
    }
    int ratio = 1;
    const int most = Q->ne[0] == 64 ? 8 : 4;
    while (ratio < most) {
        ratio *= 2;
    }
    if (has_tensor_cores(cc) && !CC_IS_AMD(cc)) {
        if (can_use_vec) {
            if (K->type == GGML_TYPE_F16) {
                if (cc >= CC_NEW && Q->ne[1] == 1 &&
                        !(Q->ne[2] > 64 || K->ne[1] >= 8192)) {
                    return BEST_KERNEL_VEC;
                }
            } else {
                if (Q->ne[1] <= 2) {
                    return BEST_KERNEL_VEC;
                }
            }
        }
        return BEST_KERNEL_TILE;
    }
    return unused ? BEST_KERNEL_TILE : BEST_KERNEL_NONE;
}

void ggml_cuda_flash_attn_ext(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {
    switch (get_best_kernel(ctx, dst)) {
        case BEST_KERNEL_NONE:
            GGML_ABORT("fatal error");
        case BEST_KERNEL_VEC:
            ggml_cuda_flash_attn_ext_vec(ctx, dst);
            break;
        case BEST_KERNEL_TILE:
            ggml_cuda_flash_attn_ext_tile(ctx, dst);
            break;
    }
}

bool ggml_cuda_flash_attn_ext_supported(const ggml_backend_cuda_context & ctx, const ggml_tensor * dst) {
    return get_best_kernel(ctx, dst) != BEST_KERNEL_NONE;
}

int main(int argc, char ** argv) {
    ggml_tensor Q = {}, K = {}, V = {}, mask = {}, dst = {};
    Q.ne[0] = K.ne[0] = V.ne[0] = 64;
    Q.ne[1] = atoi(argv[1]);
    Q.ne[2] = atoi(argv[2]);
    K.ne[1] = 256;
    K.ne[2] = 1;
    K.type = argc > 3 && argv[3][0] == 'q' ? GGML_TYPE_Q8_0 : GGML_TYPE_F16;
    K.nb[1] = argc > 3 && argv[3][0] == 'u' ? 130 : 128;
    mask.ne[2] = 1;
    dst.src[0] = &Q; dst.src[1] = &K; dst.src[2] = &V; dst.src[3] = &mask;
    ggml_backend_cuda_context ctx = {900, 0};
    if (!ggml_cuda_flash_attn_ext_supported(ctx, &dst)) {
        return 1;
    }
    ggml_cuda_flash_attn_ext(ctx, &dst);
    printf("%d\n", (int) ctx.launched);
}
