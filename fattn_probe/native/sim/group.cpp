#include "group.h"

#include "check_sites.h"
#include "count.h"
#include "finding.h"
#include "shuffle.h"
#include "worker.h"

#include <algorithm>
#include <climits>
#include <string>

namespace simt {
namespace {

Group &group_of(Warp &warp, LaneMask mask) {
    Groups &groups = worker->groups_of(warp);
    Group *const end = groups.of + warp_size;
    Group *found = std::find_if(groups.of, end, [=](const Group &group) { return group.mask == mask; });
    if (found == end) {
        found = std::find_if(groups.of, end, [](const Group &group) { return (group.arrived | group.reading) == 0; });
        found->mask = mask;
    }
    return *found;
}

void release_group(Warp &warp, Group &group) {
    group.sets[group.generation & 1].lanes = group.arrived;
    warp.runnable |= group.arrived;
    group.reading |= group.arrived;
    group.arrived = 0;
    group.generation++;
    warp.of_groups++;
    count_group_instruction(group.instruction);
}

} // namespace

const GroupWords &group_instruction(LaneMask mask, const char *name, const uint32_t *words, int count) {
    Warp &warp = *self->warp;
    const LaneMask lane = lane_bit(self->lane);
    if ((mask & lane) == 0) {
        report({"lanes-missing", std::string(name) + " with a mask that does not name the lane itself"});
    }
    Group &group = group_of(warp, mask);
    if (group.arrived == 0) {
        group.instruction = name;
    } else if (std::string(group.instruction) != name) {
        report({"lanes-missing",
                std::string("a lane executes ") + name + " while others of its mask wait in " + group.instruction});
    }
    if constexpr (checking) {
        group.site = group.arrived == 0 ? self->site : group.site;
        check_site(group.site, name);
    }
    GroupWords &set = group.sets[group.generation & 1];
    for (int i = 0; i < count; i++) {
        set.words[i][self->lane] = words[i];
    }
    group.arrived |= lane;
    if (group.arrived == (mask & warp.alive)) {
        release_group(warp, group);
        worker->restart_order();
        group.reading &= ~lane;
        return set;
    }
    const uint32_t generation = group.generation;
    self->wait = Wait::warp;
    self->place = name;
    warp.runnable &= ~lane;
    do {
        worker->reschedule();
    } while (group.generation == generation);
    self->wait = Wait::none;
    group.reading &= ~lane;
    return set;
}

void exchange_in_group(LaneMask mask, const char *name, uint32_t *words, int count, int from) {
    const GroupWords &set = group_instruction(mask, name, words, count);
    if ((set.lanes >> from & 1) == 0) {
        report_missing_lane(name, from);
    }
    for (int i = 0; i < count; i++) {
        words[i] = set.words[i][from];
    }
}

LaneMask ballot_in_group(LaneMask mask, bool predicate, const char *name) {
    const uint32_t word = predicate;
    const GroupWords &set = group_instruction(mask, name, &word, 1);
    LaneMask votes = 0;
    for (uint32_t lane = 0; lane < warp_size; lane++) {
        votes |= (set.lanes >> lane & 1) ? LaneMask{set.words[0][lane]} << lane : 0;
    }
    return votes;
}

void release_groups(Warp &warp) {
    if (warp.groups == nullptr) {
        return;
    }
    for (Group &group : warp.groups->of) {
        if (group.arrived != 0 && group.arrived == (group.mask & warp.alive)) {
            release_group(warp, group);
        }
    }
}

LaneMask active_mask(int line) {
    Warp &warp = *self->warp;
    self->wait = Wait::convergence;
    self->line = line;
    warp.runnable &= ~lane_bit(self->lane);
    warp.converging |= lane_bit(self->lane);
    do {
        worker->reschedule();
    } while (self->wait == Wait::convergence);
    return self->active;
}

void release_converged(Warp &warp) {
    int line = INT_MAX;
    for (LaneMask left = warp.converging; left != 0; left &= left - 1) {
        line = std::min(line, warp.lanes[lowest_lane(left)]->line);
    }
    LaneMask lanes = 0;
    for (LaneMask left = warp.converging; left != 0; left &= left - 1) {
        const uint32_t lane = lowest_lane(left);
        lanes |= warp.lanes[lane]->line == line ? lane_bit(lane) : 0;
    }
    for (LaneMask left = lanes; left != 0; left &= left - 1) {
        Fiber &fiber = *warp.lanes[lowest_lane(left)];
        fiber.wait = Wait::none;
        fiber.active = lanes;
    }
    warp.converging &= ~lanes;
    warp.runnable |= lanes;
}

} // namespace simt
