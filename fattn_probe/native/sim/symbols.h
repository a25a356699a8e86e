// __device__, __constant__ and __managed__ variables of a whole program, for the checker: their addresses, and the
// memory beside them that belongs to no variable.
#pragma once

#include <cstddef>

namespace simt {

constexpr size_t symbol_guard_bytes = 64 << 10, initialised_guard_bytes = 4 << 10;

// Registers a variable, or a guard, which g++ places beside the variables declared before and after it.
void add_symbol(const char *name, const void *start, size_t bytes);
void add_guard(const void *start, size_t bytes);

enum class SymbolAccess { elsewhere, near_by, within };

// Where an access lies; an access to a guard is reported. `near_by`: on a page with a variable or a guard.
SymbolAccess check_symbols(const char *address, size_t bytes);

} // namespace simt

// The rewriter puts SIMT_GUARD after the declaration of a variable. g++ places static variables, variables with an
// initial value, and all others in separate groups, each in the order of declaration or in reverse order.
#if defined(SIMT_CHECK)
#define SIMT_GUARD_OF(storage, name, bytes, ...)                                                                       \
    [[gnu::used, gnu::aligned(1)]] storage char simt_guard_##name[bytes] __VA_ARGS__;                                  \
    [[gnu::constructor]] static void simt_add_guard_##name() {                                                         \
        simt::add_guard(simt_guard_##name, sizeof(simt_guard_##name));                                                 \
    }
#define SIMT_GUARD_MEMORY(storage, name) SIMT_GUARD_OF(storage, name, simt::symbol_guard_bytes)
#define SIMT_INITIALISED_GUARD_MEMORY(storage, name)                                                                   \
    SIMT_GUARD_OF(storage, initialised_##name, simt::initialised_guard_bytes, = {1})
#define SIMT_GUARD(storage, name)                                                                                      \
    SIMT_GUARD_MEMORY(storage, name)                                                                                   \
    [[gnu::constructor]] static void simt_add_##name() { simt::add_symbol(#name, &name, sizeof(name)); }
#define SIMT_GUARD_INITIALISED(storage, name)                                                                          \
    SIMT_INITIALISED_GUARD_MEMORY(storage, name)                                                                       \
    SIMT_GUARD(storage, name)
#else
#define SIMT_GUARD(storage, name)
#define SIMT_GUARD_INITIALISED(storage, name)
#endif
