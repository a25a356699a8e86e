"""AMD's HIP headers and device library, and the command with which clang compiles llama.cpp's attention kernels.

The compiler is Debian's clang, and the bitcode library Debian's `rocm-device-libs`; the headers come from ROCm's own
repositories. Together these replace an installed ROCm, and contain only what the kernels' device code needs.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from fattn_probe.base.process import run

COMMITS = {"clr": "f9f995c6d0", "HIP": "c5e11fcac8"}
"""The headers' repositories, at HIP 6.3.0. Version 6.2 reads the low half of two bf16 values as an integer."""
HEADERS = {"clr": "hipamd/include", "HIP": "include"}
CLANG = "clang++-19"
ARCHITECTURES = ("gfx906", "gfx908", "gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1151", "gfx1200", "gfx1201")
DEFINES = (
    *("GGML_USE_HIP", "GGML_BACKEND_BUILD", "GGML_BACKEND_SHARED", "GGML_SHARED", "GGML_CUDA_FA_ALL_QUANTS"),
    *("NDEBUG", "__HIP_ROCclr__=1"),
)
"""The flags of a release build of ggml-hip (ggml/src/ggml-hip/CMakeLists.txt), and CMake's own flags for HIP."""
ISA_VERSION = "@__oclc_ISA_version = linkonce_odr protected local_unnamed_addr addrspace(4) constant i32 {}\n"
HIP_VERSION = {"HIP_VERSION_MAJOR": 6, "HIP_VERSION_MINOR": 3, "HIP_VERSION_PATCH": 0}
HIP_VERSION_SUM = (
    "#define HIP_VERSION (HIP_VERSION_MAJOR * 10000000 + HIP_VERSION_MINOR * 100000 + HIP_VERSION_PATCH)\n"
)
HIPBLAS_H = """#pragma once
typedef void * hipblasHandle_t;
enum hipblasStatus_t {
    HIPBLAS_STATUS_SUCCESS, HIPBLAS_STATUS_NOT_INITIALIZED, HIPBLAS_STATUS_ALLOC_FAILED, HIPBLAS_STATUS_INVALID_VALUE,
    HIPBLAS_STATUS_ARCH_MISMATCH, HIPBLAS_STATUS_MAPPING_ERROR, HIPBLAS_STATUS_EXECUTION_FAILED,
    HIPBLAS_STATUS_INTERNAL_ERROR, HIPBLAS_STATUS_NOT_SUPPORTED
};
hipblasStatus_t hipblasCreate(hipblasHandle_t *);
hipblasStatus_t hipblasDestroy(hipblasHandle_t);
hipblasStatus_t hipblasSetStream(hipblasHandle_t, hipStream_t);
"""  # common.cuh uses these names, but device code never calls them


def isa_version(gfx: str) -> int:
    """The device library's number for an architecture: 9010 for gfx90a, 11501 for gfx1151."""
    digits = gfx.removeprefix("gfx")
    return int(digits[:-2]) * 1000 + int(digits[-2]) * 100 + int(digits[-1], 16)


def make_rocm(folder: Path) -> None:
    """Create the folder for clang's `--rocm-path`; downloads ROCm's repositories and a Debian package.

    The device library (5.2.3) is older than some architectures, but only the files with their numbers are missing.
    """
    include, bitcode = folder / "include", folder / "amdgcn/bitcode"
    for path in (include / "hip", include / "hipblas", bitcode, folder / "share/hip", folder / "download"):
        path.mkdir(parents=True, exist_ok=True)
    for name, commit in COMMITS.items():
        clone = folder / "download" / name
        if not clone.exists():
            run(["git", "clone", "-q", f"https://github.com/ROCm/{name}", clone])
        run(["git", "-C", clone, "checkout", "-q", commit])
        run(["cp", "-r", f"{clone / HEADERS[name]}/.", include])
    run(["apt-get", "download", "rocm-device-libs"], cwd=folder / "download")
    for package in (folder / "download").glob("rocm-device-libs_*.deb"):
        run(["dpkg", "-x", package, folder / "download/libs"])
    for library in (folder / "download/libs").rglob("*.bc"):
        run(["cp", library, bitcode])
    for gfx in ARCHITECTURES:
        target = bitcode / f"oclc_isa_version_{gfx.removeprefix('gfx')}.bc"
        if not target.exists():
            text = target.with_suffix(".ll")
            text.write_text('target triple = "amdgcn-amd-amdhsa"\n' + ISA_VERSION.format(isa_version(gfx)))
            run([CLANG, "-x", "ir", "-emit-llvm", "-c", text, "-o", target, "--target=amdgcn-amd-amdhsa", "-nogpulib"])
    version = "".join(f"#define {name} {number}\n" for name, number in HIP_VERSION.items())
    (include / "hip/hip_version.h").write_text(version + HIP_VERSION_SUM)
    (include / "hipblas/hipblas.h").write_text(HIPBLAS_H)
    version = "".join(f"{name}={number}\n" for name, number in HIP_VERSION.items())
    (folder / "share/hip/version").write_text(version)  # clang recognizes ROCm by this file, and includes its wrapper


def compile_command(gfx: str, rocm: Path, ggml: Path, source: Path, flags: Sequence[str]) -> list[str]:
    """Clang's command line for one file of llama.cpp: device code only, as a release build compiles it.

    `ggml` is the folder of that name in llama.cpp's tree.
    """
    includes = [f"-I{ggml / folder}" for folder in ("include", "src", "src/ggml-cuda")]
    return [
        *(CLANG, "-x", "hip", f"--offload-arch={gfx}", "--cuda-device-only", "--no-gpu-bundle-output"),
        *(f"--rocm-path={rocm}", "-O3", "-std=gnu++17", "-fPIC", *(f"-D{name}" for name in DEFINES)),
        *(*includes, *flags, str(source)),
    ]


def attention_files(ggml: Path) -> Iterator[Path]:
    """The files that instantiate attention kernels."""
    yield from sorted((ggml / "src/ggml-cuda/template-instances").glob("fattn-*.cu"))
