static bool ggml_cuda_compute_forward(ggml_backend_cuda_context & ctx, struct ggml_tensor * dst) {
    switch (dst->op) {
        case GGML_OP_ADD:
        case GGML_OP_ADD1: // TODO: more efficient implementation
            ggml_cuda_op_add(ctx, dst);
            break;
        case GGML_OP_UNARY:
            switch (ggml_get_unary_op(dst)) {
                case GGML_UNARY_OP_ABS:
                    ggml_cuda_op_abs(ctx, dst);
                    break;
            }
            break;
        case GGML_OP_NONE:
        case GGML_OP_VIEW:
                break;
        case GGML_OP_CPY:
            ggml_cuda_cpy(ctx, dst->src[0], dst->src[1]);
            break;
        case GGML_OP_MUL_MAT:
            ggml_cuda_mul_mat(ctx, dst->src[0], dst->src[1], dst);
            break;
        case GGML_OP_SOLVE_TRI:
            ggml_cuda_op_solve_tri(ctx, dst);
            break;
        case GGML_OP_FLASH_ATTN_EXT:
            ggml_cuda_flash_attn_ext(ctx, dst);
            break;
    }
    return true;
}

static bool supports_op(const ggml_tensor * op) {
    switch (op->op) {
        case GGML_OP_POOL_2D:
            return ggml_cuda_pool(op);
    }
}

static void ggml_cuda_mul_mat(ggml_backend_cuda_context & ctx) {
    if (ggml_cuda_should_use_mmf(type)) {
        ggml_cuda_mul_mat_f(ctx);
    }
    ggml_cuda_mul_mat_cublas(ctx);
}
