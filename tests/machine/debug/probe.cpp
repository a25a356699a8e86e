// The program that the tests debug: `probe [what]` does some work and then what it is told.
#include <cstdio>
#include <cstdlib>
#include <cstring>

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};
enum kind { KIND_A, KIND_B };

template <int A, int B> int work(int n) {
    int t[A] = {B};
    int s = 0;
    for (int i = 0; i < n; ++i) {
        t[i % A] = i;
        s += t[i % A];
    }
    return s;
}

static unsigned char bytes[1 << 20];

int main(int argc, char ** argv) {
    dim3 block;
    kind chosen = KIND_B;
    const char * what = argc > 1 ? argv[1] : "";
    const char * nowhere = (const char *) 8;
    for (int i = 0; i < 1 << 20; ++i) {
        bytes[i] = i * 7;
    }
    for (int i = 1; i < argc; ++i) {
        printf("[%s]", argv[i]);
    }
    fflush(stdout);
    int s = work<8, 3>(4);
    s += work<16, 3>(4);
    if (!strcmp(what, "abort")) {
        fprintf(stderr, "GGML_ASSERT(s == 12) failed\n");
        abort();
    }
    for (volatile bool hang = !strcmp(what, "hang"); hang;) {
    }
    return !strcmp(what, "exit") ? 17 : block.x + chosen + s + !nowhere - 14;
}
