#include "check_words.h"

#include "host_memory.h"

#include <array>
#include <string>
#include <unordered_map>

namespace simt {

SIMT_THREAD_LOCAL uint32_t this_block = 0;

namespace {

std::string name_block(uint32_t cell) {
    const uint32_t number = cell >> 5;
    return number == several ? "other blocks" : "block (" + text_of(place_in(gridDim, number - 1), ",") + ")";
}

// The block that has accessed a word after this block's access, or `several`.
uint32_t joined(uint32_t before) { return before == 0 || before >> 5 == this_block ? this_block : several; }

// The cell's writer after a write: the last one. In a shared attempt no block is the last, so every writer counts.
uint32_t written_by(uint32_t before, const GlobalAccess &access) {
    const bool keeps = attempt.shared ? before != 0 : before >> 5 == this_block;
    const bool atomic = access.atomic && (!keeps || (before & atomic_bit) != 0);
    const uint32_t number = attempt.shared ? joined(before) : this_block;
    return number << 5 | (atomic ? atomic_bit : 0) | access.mask | (keeps ? before & all_bytes : 0);
}

// A word in which blocks touch different bytes has a cell for each byte. Shared attempts have no such cells: there, the
// word can only make the attempt doubtful.
constexpr uint32_t parted = UINT32_MAX; // in place of the reader
std::unordered_map<const WordCell *, std::array<WordCell, 4>> parted_words;

// Whether this block touches different bytes from another block in a cell.
bool differs(uint32_t cell, const GlobalAccess &access) {
    return cell != 0 && cell >> 5 != this_block && (cell & all_bytes) != access.mask;
}

uint32_t of_byte(uint32_t cell, uint32_t byte) {
    return (cell >> byte & 1) != 0 ? (cell & ~all_bytes) | 1u << byte : 0;
}

WordCell *parts_of(WordCell &cell, const GlobalAccess &access) {
    if (attempt.shared || (cell.reader != parted && !differs(cell.reader, access) && !differs(cell.writer, access))) {
        return nullptr;
    }
    std::array<WordCell, 4> &parts = parted_words[&cell];
    if (cell.reader != parted) {
        for (uint32_t byte = 0; byte < 4; byte++) {
            parts[byte] = {of_byte(cell.writer, byte), of_byte(cell.reader, byte)};
        }
        cell.reader = parted;
    }
    return parts.data();
}

// Calls `visit(cell, access)` for the whole word, or for its bytes.
template <class Visit> void visit_parts(WordCell &cell, const GlobalAccess &access, Visit visit) {
    WordCell *const parts = parts_of(cell, access);
    if (__builtin_expect(parts == nullptr, 1)) {
        visit(cell, access);
        return;
    }
    const uint32_t first = static_cast<uint32_t>(__builtin_ctz(access.mask));
    for (uint32_t byte = first; byte < 4; byte++) {
        if ((access.mask >> byte & 1) != 0) {
            visit(parts[byte], GlobalAccess{access.address + (byte - first), 1u << byte, access.atomic});
        }
    }
}

} // namespace

Finding race(const char *address, const char *what, uint32_t other, const char *does) {
    return {"race", name_byte(address) + " is " + what + ", and " + name_block(other) + " " + does +
                        " it in the same launch: nothing orders the blocks"};
}

static void read_part(WordCell &cell, const GlobalAccess &access) {
    const WordCell before = update(cell, [&](WordCell now) {
        now.reader = joined(now.reader) << 5 | ((now.reader | access.mask) & all_bytes);
        return now;
    });
    if (__builtin_expect(access.conflicts(before.writer), 0)) {
        report(race(access.address, "read", before.writer, "writes"));
    }
}

static uint32_t write_part(WordCell &cell, const GlobalAccess &access) {
    const WordCell before = update(cell, [&](WordCell now) {
        now.writer = written_by(now.writer, access);
        return now;
    });
    if (__builtin_expect(access.conflicts(before.reader), 0)) {
        const uint32_t reader = before.reader;
        report(race(access.address, "written", reader, reader >> 5 == several ? "read" : "reads"));
    }
    return access.conflicts(before.writer) ? before.writer : 0;
}

void read_word(WordCell &cell, const GlobalAccess &access) { visit_parts(cell, access, read_part); }

uint32_t write_word(WordCell &cell, const GlobalAccess &access) {
    uint32_t overwritten = 0;
    visit_parts(cell, access, [&](WordCell &part, const GlobalAccess &bytes) {
        const uint32_t before = write_part(part, bytes);
        overwritten = before != 0 ? before : overwritten;
    });
    return overwritten;
}

void forget_parted_words() { parted_words.clear(); }

void join_reader(WordCell &cell, uint32_t reader) {
    update(cell, [reader](WordCell now) {
        const bool same = now.reader == 0 || (now.reader ^ reader) >> 5 == 0;
        now.reader = (same ? reader & ~31u : several << 5) | all_bytes;
        return now;
    });
}

} // namespace simt
