#include <cstdio>
#define __device__
#define SIMT_INTO(type)
namespace simt {
struct divided_by_t {};
inline constexpr divided_by_t divided_by{};
template <typename A> struct numerator { A a; };
template <typename A> constexpr numerator<A> operator*(A a, divided_by_t) { return {a}; }
template <typename A, typename B> constexpr auto operator*(numerator<A> n, B b) { return n.a / b; }
template <typename B> struct reciprocal { B b; };
struct remainder_by_t {};
inline constexpr remainder_by_t remainder_by{};
template <typename A> struct remainder { A a; };
template <typename A> constexpr remainder<A> operator*(A a, remainder_by_t) { return {a}; }
template <typename A, typename B> constexpr auto operator*(remainder<A> n, B b) { return n.a % b; }
struct reciprocal_of_t { template <typename B> constexpr reciprocal<B> operator=(B b) const { return {b}; } };
inline constexpr reciprocal_of_t reciprocal_of{};
template <typename A, typename B> constexpr A & operator*=(A & a, reciprocal<B> r) { return a = a / r.b; }
}
static const int i = 17, j = -5, k = 3, t[2] = {7, 2};
static const float x = 2.75f, y = -0.625f;
static const double z = 9.5;
static int f(int n) { return n + 1; }
