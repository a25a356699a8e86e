// Values exchanged between the lanes of a warp: CUDA's __shfl_*_sync.
#pragma once

#include "check_sites.h"
#include "count.h"
#include "group.h"
#include "warp.h"

#include <cstdint>
#include <cstring>

namespace simt {

// Reports a shuffle that reads a lane which does not take part, and whose value is undefined: the lane does not exist
// in this block, has returned, or is not in the mask. Returns only for a scout, whose other lanes do not run.
void report_missing_lane(const char *instruction, int lane);

// The value of `value` in lane `source(lane)`, copied word by word.
template <class T, class Source> SIMT_UNCHECKED T exchange(LaneMask mask, T value, const char *name, Source source) {
    note_site();
    constexpr int words = (sizeof(T) + 3) / 4;
    static_assert(words <= 8, "a shuffled value has at most 32 bytes");
    uint32_t word[words] = {};
    memcpy(word, &value, sizeof(T));
    const int from = source(static_cast<int>(self->lane));
    if (__builtin_expect(!self->warp->whole(mask), 0)) {
        exchange_in_group(mask, name, word, words, from);
        memcpy(&value, word, sizeof(T));
        return value;
    }
    Registers &registers = warp_instruction(
        name,
        [&](Registers &r, uint32_t lane) SIMT_PART {
            for (int i = 0; i < words; i++) {
                r.in[i][lane] = word[i];
            }
        },
        [](Registers &) SIMT_PART { count_instruction(Instruction::shuffle, words); });
    if (__builtin_expect((registers.lanes >> from & 1) == 0, 0)) {
        report_missing_lane(name, from);
    }
    for (int i = 0; i < words; i++) {
        word[i] = registers.in[i][from];
    }
    memcpy(&value, word, sizeof(T));
    return value;
}

// Checks that each step finds its partner among these lanes.
void check_butterfly(LaneMask lanes, int offset, int width);

// The result of a loop of xor shuffles on the lanes' values: `value = operation(value, __shfl_xor_sync(mask, value,
// offset, width))` for `offset`, half of it, and so on down to 1, as one warp instruction for all lanes
// (llama/build/rewrite_ahead.py).
template <class T, class Operation>
SIMT_UNCHECKED T butterfly(LaneMask mask, T value, int offset, int width, Operation operation) {
    note_site();
#if defined(SIMT_AMD) // HIP's shuffles have no mask: vendors/hip.h drops it
    mask = full_mask;
#endif
    static_assert(sizeof(T) <= sizeof(Registers::out) / warp_size, "a value that fits into the registers");
    if (__builtin_expect(!self->warp->whole(mask), 0)) {
        for (int step = offset; step > 0; step >>= 1) {
            const T other = exchange(mask, value, "shfl.sync.bfly", [=](int lane) SIMT_PART {
                return (lane ^ step) < (lane & ~(width - 1)) + width ? lane ^ step : lane;
            });
            value = operation(value, other);
        }
        return value;
    }
    const auto combine = [=](Registers &r) SIMT_PART {
        T *const values = reinterpret_cast<T *>(r.in);
        for (int step = offset; step > 0; step >>= 1) {
            count_instruction(Instruction::shuffle, (sizeof(T) + 3) / 4);
            const int half = 1 << (31 - __builtin_clz(static_cast<unsigned>(step)));
            const int read = step < width ? step : 0; // by a pair's lower lane, which reads no later group
            for (int first = 0; first < warp_size; first += 2 * half) {
                for (int lane = first; lane < first + half; lane++) {
                    const T low = values[lane], high = values[lane ^ step], seen = values[lane ^ read];
                    values[lane] = operation(low, seen);
                    values[lane ^ step] = operation(high, low);
                }
            }
        }
    };
    Registers &registers = warp_instruction(
        "shfl.sync.bfly",
        [&](Registers &r, uint32_t lane) SIMT_PART { memcpy(reinterpret_cast<T *>(r.in) + lane, &value, sizeof(T)); },
        combine);
    if (__builtin_expect(registers.lanes != full_mask, 0)) {
        check_butterfly(registers.lanes, offset, width);
    }
    memcpy(&value, reinterpret_cast<T *>(registers.in) + self->lane, sizeof(T));
    return value;
}

} // namespace simt

template <class T> inline T __shfl_sync(simt::LaneMask mask, T value, int source, int width = simt::warp_size) {
    return simt::exchange(mask, value, "shfl.sync",
                          [=](int lane) SIMT_PART { return (lane & ~(width - 1)) + (source & (width - 1)); });
}
template <class T> inline T __shfl_xor_sync(simt::LaneMask mask, T value, int offset, int width = simt::warp_size) {
    return simt::exchange(mask, value, "shfl.sync.bfly", [=](int lane) SIMT_PART {
        const int from = lane ^ offset;
        return from < (lane & ~(width - 1)) + width ? from : lane;
    });
}
template <class T>
inline T __shfl_down_sync(simt::LaneMask mask, T value, unsigned delta, int width = simt::warp_size) {
    return simt::exchange(mask, value, "shfl.sync.down", [=](int lane) SIMT_PART {
        return lane % width + static_cast<int>(delta) < width ? lane + static_cast<int>(delta) : lane;
    });
}
template <class T> inline T __shfl_up_sync(simt::LaneMask mask, T value, unsigned delta, int width = simt::warp_size) {
    return simt::exchange(mask, value, "shfl.sync.up", [=](int lane) SIMT_PART {
        return lane % width - static_cast<int>(delta) >= 0 ? lane - static_cast<int>(delta) : lane;
    });
}
