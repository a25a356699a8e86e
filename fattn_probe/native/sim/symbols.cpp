#include "symbols.h"

#include "finding.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace simt {
namespace {

struct Range {
    const char *start;
    size_t bytes;
    const char *name; // nullptr: a guard

    const char *end() const { return start + bytes; }
    bool holds(const char *address) const { return address >= start && address < end(); }
};

// By address. Filled before main() begins, and not changed afterwards.
std::vector<Range> &ranges() {
    static std::vector<Range> once;
    return once;
}

void add(const Range &range) {
    const auto place = std::upper_bound(ranges().begin(), ranges().end(), range,
                                        [](const Range &a, const Range &b) { return a.start < b.start; });
    ranges().insert(place, range);
}

size_t distance(const Range &symbol, const char *address) {
    return address < symbol.start ? symbol.start - address : address - symbol.end();
}

[[noreturn]] void report_beside(const char *address) {
    const Range *nearest = nullptr;
    for (const Range &range : ranges()) {
        if (range.name != nullptr && (nearest == nullptr || distance(range, address) < distance(*nearest, address))) {
            nearest = &range;
        }
    }
    const std::string name = nearest != nullptr ? nearest->name : "a variable";
    const std::string byte = nearest != nullptr ? std::to_string(address - nearest->start) : "?";
    const std::string bytes = nearest != nullptr ? std::to_string(nearest->bytes) : "?";
    report({"out-of-bounds",
            "global memory is accessed at byte " + byte + " of " + name + ", which has " + bytes + " bytes"});
}

} // namespace

void add_symbol(const char *name, const void *start, size_t bytes) {
    add({static_cast<const char *>(start), bytes, name});
}
void add_guard(const void *start, size_t bytes) { add({static_cast<const char *>(start), bytes, nullptr}); }

SymbolAccess check_symbols(const char *address, size_t bytes) {
    constexpr uintptr_t page = ~uintptr_t{4095};
    constexpr ptrdiff_t alignment = 64; // up to this many bytes may lie between a variable and a guard
    const auto end = ranges().end();
    const auto after = std::upper_bound(ranges().begin(), end, address,
                                        [](const char *one, const Range &range) { return one < range.start; });
    const auto before = after == ranges().begin() ? end : after - 1;
    if (before != end && before->holds(address)) {
        if (before->name != nullptr && before->holds(address + bytes - 1)) {
            return SymbolAccess::within;
        }
        report_beside(before->name != nullptr ? before->end() : address);
    }
    if (before != end && after != end && after->start - before->end() < alignment &&
        (before->name == nullptr || after->name == nullptr)) {
        report_beside(address);
    }
    const auto on_page = [address](const char *other) {
        return ((reinterpret_cast<uintptr_t>(other) ^ reinterpret_cast<uintptr_t>(address)) & page) == 0;
    };
    const bool near = (before != end && on_page(before->end() - 1)) || (after != end && on_page(after->start));
    return near ? SymbolAccess::near_by : SymbolAccess::elsewhere;
}

} // namespace simt
