#include "check_undo.h"

#include <cstdint>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace simt {
namespace {

struct KeptPart {
    char *start;
    std::vector<char> before;
};

// 16 bytes, of which those with a bit in `mask` are kept.
struct KeptBytes {
    uint16_t mask = 0;
    char before[16];
};

struct Kept {
    std::mutex mutex;
    std::vector<KeptPart> parts;
    std::vector<std::atomic<bool> *> flags;
    std::unordered_map<uintptr_t, KeptBytes> bytes; // by address
};

Kept &all() {
    static Kept &once = *new Kept; // never destroyed: a finding may end the process at any time
    return once;
}

// Copies in words of 8 bytes, because other threads may note reads of this memory meanwhile.
std::vector<char> copy_of(const Part &part) {
    std::vector<char> copy(part.bytes);
    const auto *const words = static_cast<const uint64_t *>(part.start);
    const size_t whole = part.bytes / sizeof(uint64_t) * sizeof(uint64_t);
    for (size_t i = 0; i < whole; i += sizeof(uint64_t)) {
        const uint64_t word = __atomic_load_n(words + i / sizeof(uint64_t), __ATOMIC_RELAXED);
        memcpy(copy.data() + i, &word, sizeof(word));
    }
    memcpy(copy.data() + whole, static_cast<const char *>(part.start) + whole, part.bytes - whole);
    return copy;
}

} // namespace

void keep_parts(std::atomic<bool> &kept, std::initializer_list<Part> parts) {
    const std::lock_guard<std::mutex> lock(all().mutex);
    if (kept.load(std::memory_order_relaxed)) {
        return;
    }
    for (const Part &part : parts) {
        all().parts.push_back({static_cast<char *>(part.start), copy_of(part)});
    }
    all().flags.push_back(&kept);
    kept.store(true, std::memory_order_release);
}

void keep_bytes(const void *address, size_t bytes) {
    const auto *const memory = static_cast<const char *>(address);
    const std::vector<char> before(memory, memory + bytes); // may fault, so it comes before the lock
    const std::lock_guard<std::mutex> lock(all().mutex);
    for (size_t i = 0; i < bytes; i++) {
        const uintptr_t byte = reinterpret_cast<uintptr_t>(memory) + i;
        KeptBytes &kept = all().bytes[byte / 16 * 16];
        if ((kept.mask >> byte % 16 & 1) == 0) {
            kept.mask |= 1u << byte % 16;
            kept.before[byte % 16] = before[i];
        }
    }
}

void undo_writes() {
    for (const KeptPart &part : all().parts) {
        memcpy(part.start, part.before.data(), part.before.size());
    }
    for (const auto &[address, kept] : all().bytes) {
        for (size_t i = 0; i < 16; i++) {
            if ((kept.mask >> i & 1) != 0) {
                reinterpret_cast<char *>(address)[i] = kept.before[i];
            }
        }
    }
    forget_writes();
}

void forget_writes() {
    for (std::atomic<bool> *flag : all().flags) {
        flag->store(false, std::memory_order_relaxed);
    }
    all().parts.clear();
    all().flags.clear();
    all().bytes.clear();
}

} // namespace simt
