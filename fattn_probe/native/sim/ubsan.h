// What g++ and clang++ pass to the functions of UndefinedBehaviorSanitizer, with the layout of compiler-rt's
// ubsan_handlers.h. The simulator has its own functions, which report a finding of the kernel.
#pragma once

#include <cstdint>

namespace simt::ubsan {

struct TypeDescriptor {
    uint16_t kind; // 0: an integer
    uint16_t info; // bit 0: signed; above it, log2 of the number of bits
    char name[1];  // "'int'"
};
struct SourceLocation {
    const char *file;
    uint32_t line, column;
};
struct OverflowData {
    SourceLocation place;
    const TypeDescriptor *type;
};
struct MismatchData {
    SourceLocation place;
    const TypeDescriptor *type;
    uint8_t log_alignment;
    uint8_t kind;
};

} // namespace simt::ubsan
