#include "mathematics.h"

#include "environment.h"
#include "finding.h"
#include "half_bits.h"

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace simt {
namespace {

constexpr int significand_bits = 23;
constexpr uint32_t fraction_mask = (1u << significand_bits) - 1;

// A table of data/, unpacked by fattn-probe into the folder FATTN_PROBE_SIM_DATA.
template <class T> const T *map_table(const char *name, size_t entries) {
    const std::string path = environment().tables + "/" + name;
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (file < 0 || fstat(file, &status) != 0 || static_cast<size_t>(status.st_size) != entries * sizeof(T)) {
        fail("the table " + path + " is missing or damaged (FATTN_PROBE_SIM_DATA)");
    }
    void *pages = mmap(nullptr, entries * sizeof(T), PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    if (pages == MAP_FAILED) {
        fail("cannot map " + path);
    }
    return static_cast<const T *>(pages);
}

// The hardware's deviation from the correctly rounded result, in units of the last place: -1, 0 or 1 for each of the
// 2^23 significands, packed in two bits each, so that the table fits into a core's cache.
class Corrections {
  public:
    explicit Corrections(const char *name) : packed_(map_table<uint8_t>(name, (size_t{1} << significand_bits) / 4)) {}

    uint32_t corrected(float rounded, uint32_t fraction) const {
        const uint32_t field = static_cast<uint32_t>(packed_[fraction / 4]) >> (fraction % 4 * 2) & 3;
        return bits_of_float(rounded) + field - 1;
    }

  private:
    const uint8_t *packed_;
};

// ex2.approx of 0 <= f < 1, f = fraction / 2^23, in units of 2^-23.
//
// The hardware returns the exact power plus an offset that hardly changes from one f to the next, truncated to an
// integer. The offset is known to a few hundredths in each of 1024 ranges of f (run/simulator.py, ex2_bounds). So the
// table, which is too large for a core's caches, is needed only where the sum is that close to an integer: for one f in
// seven.
class Powers {
  public:
    Powers() {
        const auto *const bounds = map_table<float[2]>("ex2-bounds", steps + 1);
        for (int i = 0; i <= steps; i++) {
            ranges_[i] = {std::exp2(i / static_cast<double>(steps)) * one, bounds[i][0], bounds[i][1]};
        }
    }

    uint32_t of(uint32_t fraction) const {
        // The exact power to about 1e-15: 2^(i/1024) times a polynomial in the rest (Taylor, |rest| < 1/2048).
        constexpr uint32_t width = one / steps;
        const uint32_t i = (fraction + width / 2) / width;
        const Range &range = ranges_[i];
        const double x = static_cast<int32_t>(fraction - i * width) * (0.69314718055994530942 / one);
        const double power = range.power * (1 + x * (1 + x * (1.0 / 2 + x * (1.0 / 6))));
        const double sum = power + static_cast<double>(range.middle);
        const auto whole = static_cast<int32_t>(sum);
        const double rest = sum - whole;
        if (__builtin_expect(rest > static_cast<double>(range.margin) && rest < 1.0 - static_cast<double>(range.margin),
                             1)) {
            return static_cast<uint32_t>(whole);
        }
        const auto rounded = static_cast<float>(power * (1.0 / one));
        return corrections_.corrected(rounded, fraction) - bits_of_float(1.0f) + one;
    }

  private:
    static constexpr int steps = 1024;
    static constexpr uint32_t one = 1u << significand_bits;

    struct Range {
        double power;
        float middle, margin; // of the offset
    };

    Range ranges_[steps + 1];
    Corrections corrections_{"ex2"};
};

std::atomic<const Powers *> powers{nullptr};

// Rarely called, so not inlined into the code that every exponential runs.
__attribute__((noinline)) const Powers *make_powers() {
    static const Powers once;
    powers = &once;
    return &once;
}
__attribute__((noinline)) float ex2_of_extreme(float x) { return x != x ? x : x < 0.0f ? 0.0f : INFINITY; }

} // namespace

float ex2_approx(float x) {
    if (x == 0.0f) { // the most common case: a maximum minus itself
        return 1.0f;
    }
    if (__builtin_expect(!(x >= -126.0f && x < 128.0f), 0)) {
        return ex2_of_extreme(x);
    }
    const Powers *table = powers.load(std::memory_order_relaxed);
    if (__builtin_expect(table == nullptr, 0)) {
        table = make_powers();
    }
    // Truncated toward zero to a multiple of 2^-23. For a negative number, the fraction is complemented bit by bit.
    auto fixed = static_cast<int32_t>(x * (1 << significand_bits));
    fixed -= fixed < 0 && (fixed & static_cast<int32_t>(fraction_mask)) != 0;
    const auto bits = static_cast<uint32_t>(fixed);
    const uint32_t exponent = bits & ~fraction_mask; // times 2^23, as in a float's bits
    return float_of_bits(exponent + table->of(bits & fraction_mask) + (126u << significand_bits));
}

// The table is for 1/m, 1 <= m < 2; powers of two scale exactly, denormals are zero.
float rcp_approx(float x) {
    static const Corrections table("rcp");
    const uint32_t bits = bits_of_float(x);
    const uint32_t sign = bits & 0x80000000;
    const int exponent = static_cast<int>(bits >> significand_bits & 255);
    const uint32_t fraction = bits & fraction_mask;
    if (exponent == 0) {
        return float_of_bits(sign | 0x7F800000);
    }
    if (exponent == 255) {
        return fraction != 0 ? x : float_of_bits(sign);
    }
    const auto rounded = static_cast<float>(1.0 / static_cast<double>(float_of_bits(fraction | 0x3F800000)));
    const uint32_t near = table.corrected(rounded, fraction);
    const int field = static_cast<int>(near >> significand_bits) - (exponent - 127);
    return field <= 0 ? float_of_bits(sign)
                      : float_of_bits(sign | static_cast<uint32_t>(field) << significand_bits | (near & fraction_mask));
}

// The table holds the logarithms of 0.5 <= x < 1; elsewhere the exponent is added and the sum truncated.
float lg2_approx(float x) {
    static const int32_t *const table = map_table<int32_t>("lg2", 1 << significand_bits);
    const uint32_t bits = bits_of_float(x);
    const int exponent = static_cast<int>(bits >> significand_bits) - 126;
    if (!(x >= 0x1p-126f) || x == INFINITY) {
        return x < 0.0f || x != x ? NAN : x == INFINITY ? INFINITY : -INFINITY;
    }
    const float logarithm = float_of_bits(static_cast<uint32_t>(table[bits & fraction_mask]));
    if (exponent == 0) {
        return logarithm;
    }
    const double sum = static_cast<double>(exponent) + static_cast<double>(logarithm);
    const auto rounded = static_cast<float>(sum);
    return std::fabs(static_cast<double>(rounded)) > std::fabs(sum) ? std::nextafter(rounded, 0.0f) : rounded;
}

// The table has the results for 2^-8 <= x < 2^3, indexed by this many leading bits in each binade; below, the result is
// x, and above, 1.
float tanh_approx(float x) {
    constexpr int bits_of[] = {17, 17, 17, 18, 18, 19, 19, 19, 20, 21, 20};
    constexpr int binades = sizeof(bits_of) / sizeof(bits_of[0]);
    constexpr auto entries = [&] {
        size_t sum = 0;
        for (const int bits : bits_of) {
            sum += size_t{1} << bits;
        }
        return sum;
    }();
    static const int32_t *const table = map_table<int32_t>("tanh", entries);
    const uint32_t bits = bits_of_float(x);
    const int binade = static_cast<int>(bits >> significand_bits & 255) - 127 + 8;
    if (binade < 0 || x != x) {
        return x;
    }
    uint32_t result = 0x3F800000;
    if (binade < binades) {
        const int32_t *start = table;
        for (int i = 0; i < binade; i++) {
            start += size_t{1} << bits_of[i];
        }
        result = static_cast<uint32_t>(start[(bits & fraction_mask) >> (significand_bits - bits_of[binade])]);
    }
    return float_of_bits(result | (bits & 0x80000000));
}

float sinf(float x) { return std::sin(x); }
float cosf(float x) { return std::cos(x); }
float tanf(float x) { return std::tan(x); }
float sqrtf(float x) { return std::sqrt(x); }
float rsqrtf(float x) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(x))); }

} // namespace simt
