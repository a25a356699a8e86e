#include "ptx.h"

#include "check.h"
#include "finding.h"
#include "worker.h"

#include <vector>

namespace simt {

namespace ptx {

void load_matrices(Registers &registers, int tiles, bool transposed) {
    Fiber *const last = self;
    last->warp->runnable &= ~(1u << last->lane); // after a fault it does not go on; otherwise release_warp sets this
    for (int tile = 0; tile < tiles; tile++) {
        auto *out = reinterpret_cast<uint16_t *>(registers.out[tile]);
        for (int row = 0; row < 8; row++) {
            const void *address = registers.address[8 * tile + row];
            self = last->warp->lanes[8 * tile + row]; // whose address it is
            if (reinterpret_cast<uintptr_t>(address) % 16 != 0) {
                report({"misaligned", "ldmatrix from an address that is not a multiple of 16 bytes"});
            }
            note_read(address, 16);
            uint16_t halves[8];
            memcpy(halves, address, 16);
            for (int i = 0; i < 8; i++) {
                out[transposed ? 8 * i + row : 8 * row + i] = halves[i];
            }
        }
    }
    self = last;
}

void transpose_matrix(Registers &registers) {
    const auto *in = reinterpret_cast<const uint16_t *>(registers.in[0]);
    auto *out = reinterpret_cast<uint16_t *>(registers.out[0]);
    for (int i = 0; i < 64; i++) {
        out[8 * (i % 8) + i / 8] = in[i];
    }
}

} // namespace ptx

uint32_t shared_address(const void *pointer) {
    const ptrdiff_t offset = static_cast<const char *>(pointer) - worker->shared_arena();
    if (offset < 0 || offset >= static_cast<ptrdiff_t>(Worker::arena_bytes)) {
        report({"out-of-bounds", "a pointer outside of shared memory is used as an address in shared memory"});
    }
    return static_cast<uint32_t>(offset);
}

void *shared_pointer(uint32_t address) { return worker->shared_arena() + address; }

void copy_async(void *to, const void *from) {
    if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % 16 != 0) {
        report({"misaligned", "cp.async of 16 bytes between addresses that are not multiples of 16"});
    }
    note_read(from, 16);
    if (worker->adversarial() || checking) {
        check_copy_begins(to, 16);
        worker->pending_copies[self->thread_number()].push_back({to, from});
        return;
    }
    memcpy(to, from, 16);
}

void wait_for_copies() {
    auto &pending = worker->pending_copies[self->thread_number()];
    for (const auto &[to, from] : pending) {
        check_copy_ends(to, 16);
        memcpy(to, from, 16);
    }
    pending.clear();
}

} // namespace simt
