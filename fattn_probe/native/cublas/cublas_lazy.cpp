// Opens cuBLAS on first use, so that a build links and starts without it.
#include "cublas_v2.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

static void *open_cublas() {
    for (const char *name : {"libcublas.so.13", "libcublas.so.12"}) {
        if (void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) {
            return library;
        }
    }
    return nullptr;
}

void *lazy_cublas::find(const char *name) {
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
