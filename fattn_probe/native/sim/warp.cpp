#include "warp.h"

#include "check_sites.h"
#include "count.h"
#include "finding.h"
#include "focus.h"
#include "intrinsics.h"
#include "worker.h"

#include <cstring>
#include <string>

namespace simt {

bool needs_all_lanes(const char *instruction) { return strstr(instruction, ".sync") == nullptr; }

std::string returned(const Fiber &fiber, const char *instruction) {
    return "thread (" + text_of(fiber.thread_idx, ",") + ") returned while other lanes of its warp wait for it in " +
           instruction;
}

namespace {

// Checks for faults when the running lane arrives.
__attribute__((noinline)) void check_arrival(Warp &warp, const char *instruction) {
    if (warp.arrived == 0) {
        warp.instruction = instruction;
    } else if (warp.instruction != instruction && strcmp(warp.instruction, instruction) != 0) {
        report({"lanes-missing", std::string("a lane executes ") + instruction + " while others of its warp wait in " +
                                     warp.instruction});
    }
    if constexpr (checking) {
        warp.site = warp.arrived == 0 ? self->site : warp.site;
        check_site(warp.site, instruction);
    }
    if (warp.alive != warp.existing && needs_all_lanes(instruction)) {
        const int gone = lowest_lane(warp.existing & ~warp.alive);
        report({"lanes-missing", returned(*warp.lanes[gone], instruction)});
    }
}

} // namespace

// Half of a shuffle's cost is here, so rare code is in separate functions.
bool meet_warp(const char *instruction) {
    Fiber &fiber = *self;
    Warp &warp = *fiber.warp;
    if (checking || __builtin_expect(warp.instruction != instruction || warp.alive != warp.existing, 0) ||
        warp.arrived == 0) {
        check_arrival(warp, instruction);
    }
    if (++warp.arrived == count_lanes(warp.alive)) {
        return true;
    }
    fiber.wait = Wait::warp;
    fiber.place = instruction;
    return worker->next_lane_or_warp();
}

bool wait_further() {
    Warp &warp = *self->warp;
    worker->report_if_doomed();
    while (self->wait != Wait::none) {
        if (warp.substitute == self) {
            warp.substitute = nullptr;
            return true;
        }
        worker->reschedule();
    }
    return false;
}

void release_warp() {
    Warp &warp = *self->warp;
    count_warp_together(warp);
    warp.current().lanes = warp.alive;
    warp.arrived = 0;
    warp.runnable = warp.alive;
    warp.generation++;
    for (LaneMask left = warp.alive; left != 0; left &= left - 1) {
        warp.lanes[lowest_lane(left)]->wait = Wait::none;
    }
    worker->restart_order();
}

void report_missing_lane(const char *instruction, int lane) {
    if (focus.scout) {
        return;
    }
    const Warp &warp = *self->warp;
    const bool exists = warp.existing >> lane & 1;
    const std::string why = !exists ? " of a warp that has " + std::to_string(count_lanes(warp.existing)) + " lanes"
                            : warp.alive >> lane & 1 ? ", which does not take part"
                                                     : ", which has returned";
    report({"lanes-missing", std::string(instruction) + " reads lane " + std::to_string(lane) + why});
}

void check_copy(const char *instruction, const LaneWords &words) {
    if (words[self->lane] != words[self->lane % 16]) {
        report({"lanes-differ", std::string(instruction) + ": lanes 16 apart have different factors"});
    }
}

void check_butterfly(LaneMask lanes, int offset, int width) {
    for (int step = offset; step > 0; step >>= 1) {
        const int lane = static_cast<int>(self->lane), other = lane ^ step;
        if (other < (lane & ~(width - 1)) + width && (lanes >> other & 1) == 0) {
            report_missing_lane("shfl.sync.bfly", other);
        }
    }
}

void sync_warp(LaneMask mask) noexcept {
    note_site();
    if (__builtin_expect(!self->warp->whole(mask), 0)) {
        group_instruction(mask, "bar.warp.sync", nullptr, 0);
        return;
    }
    warp_instruction("bar.warp.sync", [](Registers &, uint32_t) {}, [](Registers &) {});
}

} // namespace simt
