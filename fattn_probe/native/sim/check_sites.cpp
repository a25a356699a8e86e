#include "check_sites.h"

#include "device.h"
#include "finding.h"
#include "worker.h"

#include <cstdio>
#include <dlfcn.h>
#include <map>
#include <mutex>
#include <string>

namespace simt {
namespace {

// The output of addr2line for a place: its line and the inlined calls around it; empty if unknown.
std::string lines_of(const void *site) {
    const char *const inside = static_cast<const char *>(site) - 1;
    Dl_info info;
    if (dladdr(inside, &info) == 0 || info.dli_fname == nullptr) {
        return "";
    }
    char command[1000];
    snprintf(command, sizeof(command), "addr2line -aie '%s' 0x%zx 2>/dev/null | tail -n +2", info.dli_fname,
             static_cast<size_t>(inside - static_cast<char *>(info.dli_fbase)));
    std::string said;
    if (FILE *const pipe = popen(command, "r")) {
        for (char text[200]; fgets(text, sizeof(text), pipe) != nullptr;) {
            said += text;
        }
        pclose(pipe);
    }
    return said;
}

// Whether g++ duplicated a line: for the turns of a loop, or after the branches of an `if`.
bool are_one_line(const void *a, const void *b) {
    static std::mutex mutex;
    static std::map<const void *, std::string> known;
    const std::lock_guard<std::mutex> lock(mutex);
    for (const void *site : {a, b}) {
        if (known.find(site) == known.end()) {
            known[site] = lines_of(site);
        }
    }
    return known[a] == known[b] || known[a].empty() || known[b].empty();
}

} // namespace

void report_site(const void *first, const char *instruction) {
    constexpr int volta = 7;
    const bool must_be_one = needs_all_lanes(instruction) || device_properties().major < volta;
    if (!must_be_one || are_one_line(first, self->site)) {
        return;
    }
    Finding finding = {"warp-divergence", std::string("a lane executes ") + instruction +
                                              " while others of its warp wait at another " + instruction};
    finding.earlier = {static_cast<char *>(const_cast<void *>(first)) - 1};
    report(finding);
}

} // namespace simt
