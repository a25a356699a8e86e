#include "ptx.h"

#include "check.h"
#include "count.h"
#include "finding.h"
#include "worker.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace simt {

namespace ptx {
namespace {

typedef uint16_t Halves __attribute__((vector_size(16)));

Halves low(Halves a, Halves b) { return __builtin_shuffle(a, b, Halves{0, 8, 1, 9, 2, 10, 3, 11}); }
Halves high(Halves a, Halves b) { return __builtin_shuffle(a, b, Halves{4, 12, 5, 13, 6, 14, 7, 15}); }

// 8x8 halves: out[8 * column + row] is rows[row][column]. Interleaves rows that are four apart, three times.
void transpose(const uint16_t (&rows)[8][8], uint16_t *out) {
    Halves line[8], next[8];
    memcpy(line, rows, sizeof(line));
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 4; i++) {
            next[2 * i] = low(line[i], line[i + 4]);
            next[2 * i + 1] = high(line[i], line[i + 4]);
        }
        memcpy(line, next, sizeof(line));
    }
    memcpy(out, line, sizeof(line));
}

} // namespace

void report_ldmatrix_address() {
    report({"misaligned", "ldmatrix from an address that is not a multiple of 16 bytes"});
}

void probe_rows(const void *const *addresses, int rows) {
    Fiber *const last = self;
    last->warp->runnable &= ~lane_bit(last->lane); // after a fault it does not go on; otherwise release_warp sets this
    for (int row = 0; row < rows; row++) {
        self = last->warp->lanes[row];
        probe_row(addresses[row]);
    }
    self = last;
}

void load_matrices(const void *const *addresses, int tiles, bool transposed, uint32_t *const *results) {
    for (int tile = 0; tile < tiles; tile++) {
        auto *out = reinterpret_cast<uint16_t *>(results[tile]);
        uint16_t rows[8][8];
        for (int row = 0; row < 8; row++) {
            memcpy(transposed ? rows[row] : out + 8 * row, addresses[8 * tile + row], 16);
        }
        if (transposed) {
            transpose(rows, out);
        }
    }
}

void transpose_matrix(Registers &registers) {
    count_instruction(Instruction::movmatrix, 1);
    uint16_t rows[8][8];
    memcpy(rows, registers.in[0], sizeof(rows));
    transpose(rows, reinterpret_cast<uint16_t *>(registers.out[0]));
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

// The bytes arrive only when the thread waits, so a kernel that does not wait computes with what was there before.
void copy_async(void *to, const void *from, size_t bytes, size_t read) {
    if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % bytes != 0) {
        const std::string size = std::to_string(bytes);
        report({"misaligned", "cp.async of " + size + " bytes between addresses that are not multiples of " + size});
    }
    const PendingCopy copy{to, from, bytes, std::min(read, bytes), self->copy_group};
    if (copy.read > 0) {
        note_read(from, copy.read);
    }
    count_copy(to, from, bytes, __builtin_return_address(0));
    check_copy_begins(to, bytes);
    worker->pending_copies[self->thread_number()].push_back(copy);
}

void commit_copies() { self->copy_group++; }

void wait_for_copies() {
    commit_copies();
    wait_for_copies(0);
}

void wait_for_copies(uint32_t left) {
    auto &pending = worker->pending_copies[self->thread_number()];
    size_t done = 0;
    while (done < pending.size() && pending[done].group + left < self->copy_group) {
        const PendingCopy &copy = pending[done++];
        check_copy_ends(copy.to, copy.bytes);
        if (copy.read == 16) {
            memcpy(copy.to, copy.from, 16); // two instructions
            continue;
        }
        memcpy(copy.to, copy.from, copy.read);
        memset(static_cast<char *>(copy.to) + copy.read, 0, copy.bytes - copy.read);
    }
    pending.erase(pending.begin(), pending.begin() + static_cast<std::ptrdiff_t>(done));
}

} // namespace simt
