#include "printing.h"

#include "../finding.h"
#include "../warp.h"
#include "../worker.h"

#include <algorithm>
#include <cassert>
#include <cstdarg>
#include <cstdio>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

namespace simt {
namespace {

struct Printed {
    uint64_t block;
    uint32_t warp, count, lane;
    std::string text;

    bool operator<(const Printed &other) const {
        return std::tie(block, warp, count, lane) < std::tie(other.block, other.warp, other.count, other.lane);
    }
};

struct Prints {
    std::mutex mutex;
    std::vector<Printed> all;
};

Prints &prints() {
    static Prints &once = *new Prints; // never destroyed: a finding may end the process at any time
    return once;
}

std::string formatted(const char *format, va_list arguments) {
    va_list again;
    va_copy(again, arguments);
    std::string text(static_cast<size_t>(std::max(0, vsnprintf(nullptr, 0, format, again))) + 1, '\0');
    va_end(again);
    vsnprintf(text.data(), text.size(), format, arguments);
    text.pop_back();
    return text;
}

} // namespace

int print(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    std::string text = formatted(format, arguments);
    va_end(arguments);
    const int bytes = static_cast<int>(text.size());
    if (self == nullptr) {
        fwrite(text.data(), 1, text.size(), stdout);
        return bytes;
    }
    const std::lock_guard<std::mutex> lock(prints().mutex);
    prints().all.push_back({worker->block_index(), self->warp->index, self->printed++, self->lane, std::move(text)});
    return bytes;
}

void flush_prints() {
    const std::lock_guard<std::mutex> lock(prints().mutex);
    std::stable_sort(prints().all.begin(), prints().all.end());
    for (const Printed &printed : prints().all) {
        fwrite(printed.text.data(), 1, printed.text.size(), stdout);
    }
    prints().all.clear();
}

void forget_prints() {
    const std::lock_guard<std::mutex> lock(prints().mutex);
    prints().all.clear();
}

void fail_assertion(const char *condition, const char *file, int line, const char *function) {
    if (self == nullptr) {
        __assert_fail(condition, file, static_cast<unsigned>(line), function);
    }
    report({"assertion", std::string("assert(") + condition + ") in " + file + ":" + std::to_string(line) + " failed"});
}

} // namespace simt
