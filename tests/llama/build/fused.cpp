#include "mathematics.h"
#include <cstdio>

template<bool capped, int n> float f(float X0, const float * mask, float a, float b) {
    BODY
    return X;
}

int main() {
    const float a = 0.7f, x = 1.0503f, s = 1.1f; // rounding a*a or x*s gives other sums
    volatile float m = a;
    const float mask[] = {m};
    const float first = __builtin_fmaf(x, s, a*a), second = __builtin_fmaf(a, a, x*s);
    const float fused = f<true, 1>(x, mask, s, m), split = f<true, 2>(x, mask, s, m);
    const float plain = f<false, 1>(x, mask, s, m);
    std::printf("%d %d %d %d\n", first != second, fused == first, split == second, plain == __builtin_fmaf(a, a, x));
}
