// The functions that g++ and clang++ call under -fsanitize=signed-integer-overflow, in place of
// UndefinedBehaviorSanitizer's; and the check of values that lose bits (conversion.h).
#include "check.h"
#include "conversion.h"
#include "finding.h"
#include "ubsan.h"
#include "worker.h"

#include <cstdint>
#include <string>

namespace {

using simt::ubsan::OverflowData, simt::ubsan::TypeDescriptor;

std::string value_of(const TypeDescriptor &type, uintptr_t value) {
    const int unused = 64 - (1 << (type.info >> 1));
    return std::to_string(static_cast<int64_t>(static_cast<uint64_t>(value) << unused) >> unused);
}

void overflow(const OverflowData &data, const char *operation, uintptr_t left, uintptr_t right) {
    if (simt::self != nullptr) {
        const TypeDescriptor &type = *data.type;
        simt::report({"overflow", value_of(type, left) + " " + operation + " " + value_of(type, right) +
                                      " does not fit into " + type.name});
    }
}

} // namespace

namespace simt {

void report_lost_bits(long long value, bool is_signed, int bits) {
    const std::string number =
        is_signed ? std::to_string(value) : std::to_string(static_cast<unsigned long long>(value));
    report({"overflow", number + " is stored in " + std::to_string(bits) + " bits, where it does not fit"});
}

} // namespace simt

extern "C" {
void __ubsan_handle_add_overflow(OverflowData *data, uintptr_t left, uintptr_t right) {
    overflow(*data, "+", left, right);
}
void __ubsan_handle_sub_overflow(OverflowData *data, uintptr_t left, uintptr_t right) {
    overflow(*data, "-", left, right);
}
void __ubsan_handle_mul_overflow(OverflowData *data, uintptr_t left, uintptr_t right) {
    overflow(*data, "*", left, right);
}
void __ubsan_handle_negate_overflow(OverflowData *data, uintptr_t value) { overflow(*data, "-", 0, value); }
void __ubsan_handle_divrem_overflow(OverflowData *data, uintptr_t left, uintptr_t right) {
    overflow(*data, "/", left, right);
}
}
