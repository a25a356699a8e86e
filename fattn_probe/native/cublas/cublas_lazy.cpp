// cuBLAS, loaded at the first call. Attention never calls it, so a build links and starts without it.
#include "cublas_v2.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

namespace {

void *open_cublas() {
    for (const char *name : {"libcublas.so.13", "libcublas.so.12"}) {
        if (void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) {
            return library;
        }
    }
    return nullptr;
}

void *find(const char *name) {
    static void *const library = open_cublas();
    void *const symbol = library ? dlsym(library, name) : nullptr;
    if (symbol == nullptr) {
        std::fprintf(stderr,
                     "fattn-probe: %s is needed, but %s. Install cuBLAS (`pip install nvidia-cublas`, or CUDA's own) "
                     "where the dynamic linker finds it.\n",
                     name, library ? "this libcublas does not have it" : "libcublas.so.13 and .12 cannot be opened");
        std::abort();
    }
    return symbol;
}

// Calls the library's function of this name; the first argument only carries its type.
template <typename... P, typename... A> cublasStatus_t call(cublasStatus_t (*)(P...), const char *name, A... args) {
    return reinterpret_cast<cublasStatus_t (*)(P...)>(find(name))(args...);
}

} // namespace

const char *cublasGetStatusString(cublasStatus_t status) {
    return reinterpret_cast<const char *(*)(cublasStatus_t)>(find("cublasGetStatusString"))(status);
}

cublasStatus_t cublasCreate_v2(cublasHandle_t *handle) { return call(cublasCreate_v2, "cublasCreate_v2", handle); }

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) { return call(cublasDestroy_v2, "cublasDestroy_v2", handle); }

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
    return call(cublasSetStream_v2, "cublasSetStream_v2", handle, stream);
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void *workspace, size_t size) {
    return call(cublasSetWorkspace_v2, "cublasSetWorkspace_v2", handle, workspace, size);
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
    return call(cublasSetMathMode, "cublasSetMathMode", handle, mode);
}

cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n,
                              int k, const float *alpha, const float *A, int lda, const float *B, int ldb,
                              const float *beta, float *C, int ldc) {
    return call(cublasSgemm_v2, "cublasSgemm_v2", handle, transa, transb, m, n, k, alpha, A, lda, B, ldb, beta, C, ldc);
}

cublasStatus_t cublasSgemmBatched(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m,
                                  int n, int k, const float *alpha, const float *const A[], int lda,
                                  const float *const B[], int ldb, const float *beta, float *const C[], int ldc,
                                  int batchCount) {
    return call(cublasSgemmBatched, "cublasSgemmBatched", handle, transa, transb, m, n, k, alpha, A, lda, B, ldb, beta,
                C, ldc, batchCount);
}

cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb,
                                         int m, int n, int k, const float *alpha, const float *A, int lda,
                                         long long strideA, const float *B, int ldb, long long strideB,
                                         const float *beta, float *C, int ldc, long long strideC, int batchCount) {
    return call(cublasSgemmStridedBatched, "cublasSgemmStridedBatched", handle, transa, transb, m, n, k, alpha, A, lda,
                strideA, B, ldb, strideB, beta, C, ldc, strideC, batchCount);
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n,
                            int k, const void *alpha, const void *A, cudaDataType Atype, int lda, const void *B,
                            cudaDataType Btype, int ldb, const void *beta, void *C, cudaDataType Ctype, int ldc,
                            cublasComputeType_t computeType, cublasGemmAlgo_t algo) {
    return call(cublasGemmEx, "cublasGemmEx", handle, transa, transb, m, n, k, alpha, A, Atype, lda, B, Btype, ldb,
                beta, C, Ctype, ldc, computeType, algo);
}

cublasStatus_t cublasGemmBatchedEx(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m,
                                   int n, int k, const void *alpha, const void *const A[], cudaDataType Atype, int lda,
                                   const void *const B[], cudaDataType Btype, int ldb, const void *beta,
                                   void *const C[], cudaDataType Ctype, int ldc, int batchCount,
                                   cublasComputeType_t computeType, cublasGemmAlgo_t algo) {
    return call(cublasGemmBatchedEx, "cublasGemmBatchedEx", handle, transa, transb, m, n, k, alpha, A, Atype, lda, B,
                Btype, ldb, beta, C, Ctype, ldc, batchCount, computeType, algo);
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb,
                                          int m, int n, int k, const void *alpha, const void *A, cudaDataType Atype,
                                          int lda, long long strideA, const void *B, cudaDataType Btype, int ldb,
                                          long long strideB, const void *beta, void *C, cudaDataType Ctype, int ldc,
                                          long long strideC, int batchCount, cublasComputeType_t computeType,
                                          cublasGemmAlgo_t algo) {
    return call(cublasGemmStridedBatchedEx, "cublasGemmStridedBatchedEx", handle, transa, transb, m, n, k, alpha, A,
                Atype, lda, strideA, B, Btype, ldb, strideB, beta, C, Ctype, ldc, strideC, batchCount, computeType,
                algo);
}

cublasStatus_t cublasStrsmBatched(cublasHandle_t handle, cublasSideMode_t side, cublasFillMode_t uplo,
                                  cublasOperation_t trans, cublasDiagType_t diag, int m, int n, const float *alpha,
                                  const float *const A[], int lda, float *const B[], int ldb, int batchCount) {
    return call(cublasStrsmBatched, "cublasStrsmBatched", handle, side, uplo, trans, diag, m, n, alpha, A, lda, B, ldb,
                batchCount);
}
