// The function that g++ and clang++ call under -fsanitize=alignment, in place of UndefinedBehaviorSanitizer's. On
// NVIDIA GPUs, an access to an address that is not a multiple of its size ends the kernel; x86-64 only notices it for
// vectors.
#include "finding.h"
#include "ubsan.h"
#include "worker.h"

#include <string>

extern "C" void __ubsan_handle_type_mismatch_v1(simt::ubsan::MismatchData *data, uintptr_t pointer) {
    const auto *address = reinterpret_cast<const void *>(pointer);
    if (simt::self != nullptr && !simt::worker->owns(address)) {
        const std::string alignment = std::to_string(1u << data->log_alignment);
        simt::report({"misaligned", std::string("an access to a ") + data->type->name +
                                        " at an address that is not a multiple of " + alignment});
    }
}
