// The rounding of sums of f16 and bf16 products on RDNA3 and RDNA4: v_dot2_f32_f16 and WMMA. The rules are from AMD's
// emulator rocjitsu (ROCm/rocm-systems, emulation/rocjitsu), based on a gfx1100 and a gfx1201, and for gfx1151 from its
// issue 12056.
//
// A step aligns its terms to a common grid, adds the units exactly and rounds once. It has c and two products on RDNA3,
// four on RDNA4. `Reals` hold a product exactly (floats, for bf16 doubles), `Integers` count units.
#pragma once

#include "factors.h"

namespace simt::amd {

constexpr int rdna_zero = -1000; // as the exponent of a zero: no other term is aligned to it

template <class Integers> struct Units {
    Integers total, grid; // times 2^grid
};

// RDNA3 truncates magnitudes. A term with the opposite sign of c is negated by inverting its bits, which is one unit
// too far; zeros have signs too. The total is relative to the sign of c.
template <class Integers, class Reals>
inline Units<Integers> add_units(const Reals (&terms)[2], const Integers (&exponents)[2], Reals c,
                                 Integers c_exponent) {
    const Integers grid = larger<Integers>(larger(exponents[0], exponents[1]) - 24, c_exponent - 26);
    const Reals scale = power_of_two(Integers(-grid));
    Integers total = convert<Integers>(Reals(magnitude(c) * scale));
    for (const Reals &term : terms) {
        const auto units = convert<Integers>(Reals(magnitude(term) * scale));
        total += negative(term) ^ negative(c) ? ~units : units;
    }
    return {total, grid};
}

// The largest integer that does not exceed the value; it has at most as many bits as `Reals` can hold.
template <class Integers, class Reals> inline Integers floor_of(Reals value) {
    const auto cut = convert<Integers>(value);
    return mask<Integers>(convert<Reals>(cut) > value) ? Integers(cut - 1) : cut;
}

// RDNA4 rounds down: the products of a pair to the larger of their grids, their sum and c to the largest grid of all. A
// negative c smaller than a unit counts as 0, not as -1 unit, unless the grid is at most 2^least, the least exponent of
// c.
template <class Integers, class Reals, int count>
inline Units<Integers> add_pairs(const Reals (&terms)[count], const Integers (&exponents)[count], Reals c,
                                 Integers c_exponent, int least) {
    Integers grid = c_exponent - 26;
    for (const Integers &exponent : exponents) {
        grid = larger<Integers>(grid, exponent - 24);
    }
    const Reals aligned = c * power_of_two(Integers(-grid));
    const auto cut = convert<Integers>(aligned);
    Integers total = cut == 0 && grid > least ? cut : floor_of<Integers>(aligned);
    for (int i = 0; i < count; i += 2) {
        const Integers exponent = larger(exponents[i], exponents[i + 1]);
        const Integers own = exponent < rdna_zero / 2 ? grid : Integers(exponent - 24); // both are zero
        const Reals scale = power_of_two(Integers(-own));
        const Integers sum =
            floor_of<Integers>(Reals(terms[i] * scale)) + floor_of<Integers>(Reals(terms[i + 1] * scale));
        total += sum >> smaller<Integers>(grid - own, Integers{} + 31);
    }
    return {total, grid};
}

} // namespace simt::amd
