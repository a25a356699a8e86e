// The part of cuBLAS's C interface that ggml-cuda uses, so that it compiles without cuBLAS (421 MB).
// Values and signatures are the library's ABI (CUDA 12 and 13).
#pragma once

#include <cuda_runtime.h>
#include <library_types.h>

#include <cstddef>

#define CUBLAS_VER_MAJOR 13
#define CUBLAS_VER_MINOR 0

typedef struct cublasContext *cublasHandle_t;

typedef enum {
    CUBLAS_STATUS_SUCCESS = 0,
    CUBLAS_STATUS_NOT_INITIALIZED = 1,
    CUBLAS_STATUS_ALLOC_FAILED = 3,
    CUBLAS_STATUS_INVALID_VALUE = 7,
    CUBLAS_STATUS_ARCH_MISMATCH = 8,
    CUBLAS_STATUS_MAPPING_ERROR = 11,
    CUBLAS_STATUS_EXECUTION_FAILED = 13,
    CUBLAS_STATUS_INTERNAL_ERROR = 14,
    CUBLAS_STATUS_NOT_SUPPORTED = 15,
} cublasStatus_t;

typedef enum { CUBLAS_FILL_MODE_LOWER = 0, CUBLAS_FILL_MODE_UPPER = 1 } cublasFillMode_t;
typedef enum { CUBLAS_DIAG_NON_UNIT = 0, CUBLAS_DIAG_UNIT = 1 } cublasDiagType_t;
typedef enum { CUBLAS_SIDE_LEFT = 0, CUBLAS_SIDE_RIGHT = 1 } cublasSideMode_t;
typedef enum { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1 } cublasOperation_t;
typedef enum { CUBLAS_GEMM_DEFAULT = -1, CUBLAS_GEMM_DEFAULT_TENSOR_OP = 99 } cublasGemmAlgo_t;
typedef enum { CUBLAS_DEFAULT_MATH = 0, CUBLAS_TENSOR_OP_MATH = 1, CUBLAS_TF32_TENSOR_OP_MATH = 3 } cublasMath_t;
typedef enum { CUBLAS_COMPUTE_16F = 64, CUBLAS_COMPUTE_32F = 68 } cublasComputeType_t;

#define cublasCreate cublasCreate_v2
#define cublasDestroy cublasDestroy_v2
#define cublasSetStream cublasSetStream_v2
#define cublasSetWorkspace cublasSetWorkspace_v2
#define cublasSgemm cublasSgemm_v2

namespace lazy_cublas {

// The library's function of this name. Attention calls no such function, so cuBLAS is only opened at the first call.
__attribute__((visibility("hidden"))) void *find(const char *name);

template <class Signature> struct Function;
template <class Result, class... P> struct Function<Result(P...)> {
    const char *name;
    Result operator()(P... arguments) const { return reinterpret_cast<Result (*)(P...)>(find(name))(arguments...); }
};

} // namespace lazy_cublas

constexpr lazy_cublas::Function<const char *(cublasStatus_t status)> cublasGetStatusString = {"cublasGetStatusString"};
constexpr lazy_cublas::Function<cublasStatus_t(cublasHandle_t *handle)> cublasCreate_v2 = {"cublasCreate_v2"};
constexpr lazy_cublas::Function<cublasStatus_t(cublasHandle_t handle)> cublasDestroy_v2 = {"cublasDestroy_v2"};
constexpr lazy_cublas::Function<cublasStatus_t(cublasHandle_t handle, cudaStream_t stream)> cublasSetStream_v2 = {
    "cublasSetStream_v2"};
constexpr lazy_cublas::Function<cublasStatus_t(cublasHandle_t handle, void *workspace, size_t size)>
    cublasSetWorkspace_v2 = {"cublasSetWorkspace_v2"};
constexpr lazy_cublas::Function<cublasStatus_t(cublasHandle_t handle, cublasMath_t mode)> cublasSetMathMode = {
    "cublasSetMathMode"};
constexpr lazy_cublas::Function<cublasStatus_t(
    cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n, int k, const float *alpha,
    const float *A, int lda, const float *B, int ldb, const float *beta, float *C, int ldc)>
    cublasSgemm_v2 = {"cublasSgemm_v2"};
constexpr lazy_cublas::Function<cublasStatus_t(cublasHandle_t handle, cublasOperation_t transa,
                                               cublasOperation_t transb, int m, int n, int k, const float *alpha,
                                               const float *const A[], int lda, const float *const B[], int ldb,
                                               const float *beta, float *const C[], int ldc, int batchCount)>
    cublasSgemmBatched = {"cublasSgemmBatched"};
constexpr lazy_cublas::Function<cublasStatus_t(
    cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n, int k, const float *alpha,
    const float *A, int lda, long long strideA, const float *B, int ldb, long long strideB, const float *beta, float *C,
    int ldc, long long strideC, int batchCount)>
    cublasSgemmStridedBatched = {"cublasSgemmStridedBatched"};
constexpr lazy_cublas::Function<cublasStatus_t(
    cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n, int k, const void *alpha,
    const void *A, cudaDataType Atype, int lda, const void *B, cudaDataType Btype, int ldb, const void *beta, void *C,
    cudaDataType Ctype, int ldc, cublasComputeType_t computeType, cublasGemmAlgo_t algo)>
    cublasGemmEx = {"cublasGemmEx"};
constexpr lazy_cublas::Function<cublasStatus_t(
    cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n, int k, const void *alpha,
    const void *const A[], cudaDataType Atype, int lda, const void *const B[], cudaDataType Btype, int ldb,
    const void *beta, void *const C[], cudaDataType Ctype, int ldc, int batchCount, cublasComputeType_t computeType,
    cublasGemmAlgo_t algo)>
    cublasGemmBatchedEx = {"cublasGemmBatchedEx"};
constexpr lazy_cublas::Function<cublasStatus_t(
    cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n, int k, const void *alpha,
    const void *A, cudaDataType Atype, int lda, long long strideA, const void *B, cudaDataType Btype, int ldb,
    long long strideB, const void *beta, void *C, cudaDataType Ctype, int ldc, long long strideC, int batchCount,
    cublasComputeType_t computeType, cublasGemmAlgo_t algo)>
    cublasGemmStridedBatchedEx = {"cublasGemmStridedBatchedEx"};
constexpr lazy_cublas::Function<cublasStatus_t(
    cublasHandle_t handle, cublasSideMode_t side, cublasFillMode_t uplo, cublasOperation_t trans, cublasDiagType_t diag,
    int m, int n, const float *alpha, const float *const A[], int lda, float *const B[], int ldb, int batchCount)>
    cublasStrsmBatched = {"cublasStrsmBatched"};
