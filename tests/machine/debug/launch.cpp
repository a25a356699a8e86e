// A kernel called as the simulator calls one: through std::function and std::apply.
#include <cstdio>
#include <functional>
#include <tuple>

template <int D, int ncols> void kernel(const char * Q, const char * K, float scale, int ne00, int ne01, int ne02) {
    std::puts(Q + D * 0);
}

int main() {
    auto packed = std::make_tuple("Q", "K", 0.5f, 1, 2, 3);
    std::function<void()> body = [packed] { std::apply(kernel<64, 8>, packed); };
    body();
    return 0;
}
