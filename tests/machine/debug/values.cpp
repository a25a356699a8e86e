// What gdb prints of every kind of value: the program behind tests/transcripts/gdb-13-values.txt.
#include <cstdint>
#include <cmath>
#include <cstring>

struct dim3 { unsigned x = 1, y = 1, z = 1; };
struct half { unsigned short bits; };
struct half2 { half x, y; };
struct cuda_half { unsigned short __x; };
struct Base { int a = 7; };
struct Derived : Base { static int count; int b = 8; union { int i; float f; }; struct { int left, right; }; };
int Derived::count = 3;
template <int I, int J> struct tile { static constexpr int rows = I; half2 x[2]; };
template <typename T> struct Outer : Base, tile<2, 3> { T own; };
struct Virtual { virtual ~Virtual() {} int n = 4; };
struct Empty {};
union Either { int i; float f; };
enum kind { KIND_A, KIND_B, KIND_C };
enum flags { FLAG_1 = 1, FLAG_2 = 2, FLAG_4 = 4 };
namespace simt { enum class Wait { none, warp }; }
namespace { enum hidden { HIDDEN_A, HIDDEN_B }; }
template <typename T> struct Scope { enum inner { INNER_A, INNER_B }; };
typedef void (*kernel_t)(const char *, int);
template <int A, int B> void kernel(const char *, int) {}
struct Method { int value; int get() const { return value; } };
bool operator<(const Method & a, const Method & b) { return a.value < b.value; }

int main(int argc, char ** argv) {
    int zero = 0; int minus = -12; unsigned big = 4294967295u; long long wide = -9223372036854775807LL; bool yes = true;
    float eighth = 0.125f, small = 1e-5f, whole = 3, minus_zero = -0.0f, infinite = INFINITY, nan_plus = NAN, nan_minus;
    uint32_t ones = 0xffffffff; memcpy(&nan_minus, &ones, 4);
    double third = 1.0 / 3, huge = 1e300;
    char letter = 'A', nul = 0, quote = '\'', backslash = '\\', newline = '\n', high = '\377';
    int8_t quants[8] = {1, 2, 3, -1, 0, 0, 0, 0}; uint8_t byte = 200; wchar_t wide_char = L'w'; char16_t char16 = u'x';
    char name[64] = "dst"; char full[4] = {'a', 'b', 'c', 'd'}; char runs[64] = "ab"; memset(runs + 2, 'x', 30); strcpy(runs + 32, "end \"quoted\" \\ \t\n");
    char names[3][8] = {"one", "two", "three"}; char many[12][64] = {"q", "k"}; char long_text[300]; memset(long_text, 0, 300); for (int i = 0; i < 299; ++i) long_text[i] = "0123456789"[i % 10];
    const char * text = "hello \xe4\xb8\xad, \"world\""; const char * bad_text = (const char *) 1; const char * null_text = nullptr; const wchar_t * wide_text = L"wide";
    const char * texts[3] = {"a, b", "}", nullptr};
    dim3 block; half2 pair = {{15360}, {48128}}; cuda_half cuda = {15360}; tile<16, 8> fragment = {{{{1}, {2}}, {{3}, {4}}}};
    int64_t ne[4] = {64, 14, 7, 1}; int op_params[16] = {1040187392, 0, 0, 10}; float floats[6] = {1.5f, 0, -3, 1e-5f, INFINITY, nan_minus}; int counts[300]; for (int i = 0; i < 300; ++i) counts[i] = i;
    int matrix[2][3] = {{1, 2, 3}, {4, 5, 6}}; dim3 blocks[12]; void * pointers[3] = {nullptr, &zero, (void *) &main}; Empty empties[2]; bool bools[3] = {true, false, true};
    Derived derived; derived.i = 1; derived.left = 5; derived.right = 6; Outer<double> outer; outer.own = 2.5; memset(outer.x, 0, sizeof outer.x); Virtual virt; Empty empty; Either either; either.i = 1;
    kind k = KIND_B; kind odd = (kind) 99; flags f0 = (flags) 0, f1 = FLAG_2, f12 = (flags) 3, f9 = (flags) 9, f16 = (flags) 16; simt::Wait wait = simt::Wait::warp; hidden hid = HIDDEN_B; Scope<int>::inner in = Scope<int>::INNER_B;
    kind kinds[14] = {KIND_A, KIND_B};
    kernel_t fn = kernel<64, 8>; int (Method::*method)() const = &Method::get; int Method::*member = &Method::value; bool (*less)(const Method &, const Method &) = operator<;
    int & reference = minus; dim3 & block_reference = block; Virtual * virtual_pointer = &virt; int * pointer = &zero; void ** indirect = pointers;
    int any = zero + minus + (int) big + (int) wide + yes + argc + (argv != nullptr) + reference + *pointer + (less(Method{1}, Method{2}) ? 1 : 0);
    return any == 0 && fn && method && member && virtual_pointer && indirect && block_reference.x; // stop here
}
