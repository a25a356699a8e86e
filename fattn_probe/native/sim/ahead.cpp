#include "ahead.h"

#include "finding.h"
#include "ptx.h"
#include "worker.h"

#include <cstring>
#include <utility>

namespace simt {

namespace {

// The register's row: its distance from the lowest address that a stack may have.
uint32_t row_of(const void *variable) {
    const ptrdiff_t below = self->stack_top - static_cast<const char *>(variable);
    return RegisterFile::rows - static_cast<uint32_t>(below / 4);
}

AheadInstruction &append(const void *const *registers, int count) {
    std::vector<AheadInstruction> &instructions = self->warp->ahead->instructions;
    instructions.emplace_back();
    AheadInstruction &instruction = instructions.back();
    for (int i = 0; i < count; i++) {
        instruction.rows[i] = row_of(registers[i]);
    }
    return instruction;
}

// A fragment's registers as consecutive rows; if they are consecutive already, the rows themselves.
const RegisterFile::Row *fragment(RegisterFile &file, const uint32_t *rows, uint32_t count,
                                  RegisterFile::Row (&scratch)[8]) {
    bool consecutive = true;
    for (uint32_t i = 1; i < count; i++) {
        consecutive &= rows[i] == rows[0] + i;
    }
    if (__builtin_expect(consecutive, 1)) {
        return file.read(rows[0], count);
    }
    for (uint32_t i = 0; i < count; i++) {
        memcpy(scratch[i], *file.read(rows[i], 1), sizeof(scratch[i]));
    }
    return scratch;
}

void multiply(const AheadInstruction &instruction, RegisterFile &file) {
    alignas(64) RegisterFile::Row scratch[3][8];
    const auto &[results, as, bs] = instruction.counts;
    const uint32_t *rows = instruction.rows;
    const RegisterFile::Row *a = fragment(file, rows + results, as, scratch[0]);
    const RegisterFile::Row *b = fragment(file, rows + results + as, bs, scratch[1]);
    const RegisterFile::Row *c = fragment(file, rows, results, scratch[2]);
    if (__builtin_expect(c != scratch[2], 1)) {
        instruction.work(a, b, c, file.write(rows[0], results, RegisterFile::State::computed));
        return;
    }
    instruction.work(a, b, c, scratch[2]);
    for (uint32_t i = 0; i < results; i++) {
        memcpy(*file.write(rows[i], 1, RegisterFile::State::computed), scratch[2][i], sizeof(scratch[2][i]));
    }
}

void load(const AheadInstruction &instruction, RegisterFile &file, const void *const *addresses) {
    uint32_t *results[4];
    for (int tile = 0; tile < instruction.tiles; tile++) {
        results[tile] = *file.write(instruction.rows[tile], 1, RegisterFile::State::loaded);
    }
    ptx::load_matrices(addresses, instruction.tiles, instruction.transposed, results);
}

void execute(AheadWarp &ahead) {
    RegisterFile &file = worker->registers;
    file.begin(*self->warp);
    const void *const *addresses = ahead.addresses;
    for (const AheadInstruction &instruction : ahead.instructions) {
        if (instruction.work != nullptr) {
            multiply(instruction, file);
        } else {
            load(instruction, file, addresses);
            addresses += warp_size;
        }
    }
    file.end(ahead.loads_end);
    ahead.recorded = false;
    self->warp->generation += static_cast<uint32_t>(ahead.instructions.size()) - 1; // release_warp counts one
}

} // namespace

void record_load(int tiles, bool transposed, const void *const *results) {
    AheadInstruction &instruction = append(results, tiles);
    instruction.tiles = static_cast<uint8_t>(tiles);
    instruction.transposed = transposed;
}

void record_matrix(MatrixWork work, const uint8_t (&counts)[3], const void *const *registers) {
    AheadInstruction &instruction = append(registers, counts[0] + counts[1] + counts[2]);
    instruction.work = work;
    memcpy(instruction.counts, counts, sizeof(counts));
}

#if defined(SIMT_AHEAD)

void begin_ahead(bool local) noexcept {
    Fiber &fiber = *self;
    AheadWarp &ahead = *fiber.warp->ahead;
    if (!worker->runs_ahead() || fiber.warp->alive != full_mask) {
        return;
    }
    fiber.ahead = ahead.recorded ? Ahead::follows : Ahead::records;
    fiber.next_address = ahead.addresses + fiber.lane;
    if (fiber.ahead == Ahead::records) {
        ahead.instructions.clear();
        ahead.loads_end = local;
        ahead.loads = AheadWarp::most_loads;
    }
    fiber.last_address = fiber.next_address + ahead.loads * warp_size;
}

void end_ahead() noexcept {
    Fiber &fiber = *self;
    if (fiber.ahead == Ahead::off) {
        return;
    }
    AheadWarp &ahead = *fiber.warp->ahead;
    if (fiber.passed == 0 && !ahead.recorded) {
        fiber.ahead = Ahead::off;
        return;
    }
    if (fiber.ahead == Ahead::records) {
        ahead.recorded = true;
        ahead.loads = static_cast<size_t>(fiber.next_address - ahead.addresses) / warp_size;
    }
    fiber.ahead = Ahead::off;
    if (std::exchange(fiber.passed, 0) != ahead.instructions.size()) {
        report({"lanes-missing", "lanes of a warp execute different numbers of matrix instructions"});
    }
    note_site();
    warp_instruction(
        "matrix instructions", [](Registers &, uint32_t) {}, [](Registers &) { execute(*self->warp->ahead); });
}

#endif

} // namespace simt
