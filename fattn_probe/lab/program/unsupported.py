"""CUDA headers and names that the simulator does not support, each with a message."""

LIBRARY = "a library of NVIDIA, which the simulator does not have"
AMD_LIBRARY = "a library of AMD, which the simulator does not have"
TEXTURE = "textures and surfaces are not simulated"
GRAPH = "CUDA graphs are not simulated: launch the kernels one by one"
DRIVER = "the driver API is not simulated: use the runtime (cuda_runtime.h)"
WHOLE_GRID = "blocks cannot wait for one another: one runs to its end before its host thread starts the next"

WAITING = (
    "a thread that waits for another one in libcu++ would keep it from running: use CUDA's own atomics and barriers"
)

HEADERS = {
    "thrust/": LIBRARY,
    "cub/": LIBRARY,
    "cublas_v2.h": LIBRARY,
    "cublas.h": LIBRARY,
    "cufft.h": LIBRARY,
    "curand.h": LIBRARY,
    "curand_kernel.h": LIBRARY,
    "cusparse.h": LIBRARY,
    "cusolverDn.h": LIBRARY,
    "cudnn.h": LIBRARY,
    "nccl.h": LIBRARY,
    "cutlass/": LIBRARY,
    "cute/": LIBRARY,
    "cuda/barrier": "libcu++ is not simulated",
    "cuda/pipeline": "libcu++ is not simulated",
    "cuda/atomic": "libcu++ is not simulated: use atomicAdd() and its kind",
    **dict.fromkeys([f"cuda/std/{name}" for name in ("atomic", "barrier", "latch", "semaphore")], WAITING),
    "cuda_pipeline.h": "its pipelines are not simulated: use <cuda_pipeline_primitives.h>, or cp.async by asm",
    "cooperative_groups/memcpy_async.h": "use <cuda_pipeline_primitives.h>, or cp.async by asm",
    "rocwmma/": "AMD's matrix instructions are not simulated",
    "hipblas/": AMD_LIBRARY,
    "rocblas/": AMD_LIBRARY,
    "hipcub/": AMD_LIBRARY,
    "rocprim/": AMD_LIBRARY,
    "hiprand/": AMD_LIBRARY,
    "nvrtc.h": "there is no compiler while a program runs",
}
"""Messages by name; the name of a folder ends in a slash."""

CALLS = {
    **dict.fromkeys(["tex1D", "tex2D", "tex3D", "tex1Dfetch", "tex2DLayered", "surf2Dread", "surf2Dwrite"], TEXTURE),
    **dict.fromkeys(["cudaCreateTextureObject", "cudaBindTexture", "cudaTextureObject_t", "cudaMallocArray"], TEXTURE),
    **dict.fromkeys(["cudaGraphCreate", "cudaStreamBeginCapture", "cudaGraphLaunch"], GRAPH),
    **dict.fromkeys(["cuInit", "cuModuleLoad", "cuLaunchKernel", "cuCtxCreate"], DRIVER),
    "cudaLaunchCooperativeKernel": WHOLE_GRID,
    "__cluster_dims__": "clusters of blocks are not simulated",
    "this_cluster": "clusters of blocks are not simulated",
    "cudaMemcpy3D": "three-dimensional copies are not simulated",
    "cudaMalloc3D": "three-dimensional allocations are not simulated",
}
