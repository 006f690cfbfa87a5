// Vectors of the same width on every machine: a `Wide<T, N>` of N numbers is one register, or two halves. What is written with
// them adds the same numbers in the same order everywhere.
//
// The file of an instruction set defines BYTES, the size of its registers, and REGISTERS, their number, includes this file, and
// adds what compilers' vector types lack.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#define INLINE [[gnu::always_inline]] inline

namespace {

// The largest sum of the magnitudes of two inputs whose products with any unsigned weights fit into 16 bits together
constexpr int MOST_OF_PAIR = 32767 / 255;

// Rows of a pass up to which a large and a small output layer are screened: see `Plane::rows`.
struct ScreenedRows {
    int large, small;
};

template <class T>
struct RegisterOf {
    typedef T Type __attribute__((vector_size(BYTES)));
    typedef T Unaligned __attribute__((vector_size(BYTES), aligned(1), may_alias));
};
template <class T, int N>
struct Wide {
    Wide<T, N / 2> low, high;

    Wide() = default;
    INLINE Wide(T value) : low(value), high(value) {}
    INLINE Wide(Wide<T, N / 2> low, Wide<T, N / 2> high) : low(low), high(high) {}
};
template <class T, int N>
constexpr bool IS_REGISTER = N * int(sizeof(T)) == BYTES;
template <class T, int N>
    requires IS_REGISTER<T, N>
struct Wide<T, N> {
    using Register = typename RegisterOf<T>::Type;
    Register value;

    Wide() = default;
    INLINE Wide(T value) : value(value - Register{}) {}
    INLINE Wide(Register value) : value(value) {}
};

template <class Register>
INLINE auto wide(Register value) {
    using T = std::remove_cvref_t<decltype(value[0])>;
    return Wide<T, BYTES / int(sizeof(T))>(value);
}
template <class T, int N>
INLINE Wide<T, 2 * N> wide(Wide<T, N> low, Wide<T, N> high) {
    return {low, high};
}

// The vector that f makes, register by register.
template <class F, class T, int N, class... More>
INLINE auto map(F f, Wide<T, N> first, More... more) {
    if constexpr (IS_REGISTER<T, N>)
        return wide(f(first.value, more.value...));
    else
        return wide(map(f, first.low, more.low...), map(f, first.high, more.high...));
}
#define SPECDEC_OPERATOR(op)                                                            \
    template <class T, int N>                                                           \
    INLINE auto operator op(Wide<T, N> a, Wide<T, N> b) {                               \
        return map([](auto x, auto y) __attribute__((always_inline)) { return x op y; }, a, b); \
    }                                                                                   \
    template <class T, int N>                                                           \
    INLINE auto operator op(Wide<T, N> a, std::type_identity_t<T> b) {                  \
        return a op Wide<T, N>(b);                                                      \
    }                                                                                   \
    template <class T, int N>                                                           \
    INLINE auto operator op(std::type_identity_t<T> a, Wide<T, N> b) {                  \
        return Wide<T, N>(a) op b;                                                      \
    }
SPECDEC_OPERATOR(+)
SPECDEC_OPERATOR(-)
SPECDEC_OPERATOR(*)
SPECDEC_OPERATOR(/)
SPECDEC_OPERATOR(&)
SPECDEC_OPERATOR(|)
SPECDEC_OPERATOR(^)
SPECDEC_OPERATOR(<<)
SPECDEC_OPERATOR(>>)
SPECDEC_OPERATOR(<)
SPECDEC_OPERATOR(>)
SPECDEC_OPERATOR(<=)
SPECDEC_OPERATOR(>=)
SPECDEC_OPERATOR(==)
#undef SPECDEC_OPERATOR
template <class T, int N>
INLINE Wide<T, N> operator-(Wide<T, N> a) {
    return map([](auto x) { return -x; }, a);
}
template <class T, int N>
INLINE Wide<T, N> operator~(Wide<T, N> a) {
    return map([](auto x) { return ~x; }, a);
}
template <class T, int N, class Other>
INLINE Wide<T, N>& operator+=(Wide<T, N>& a, Other b) {
    return a = a + b;
}
template <class T, int N, class Other>
INLINE Wide<T, N>& operator|=(Wide<T, N>& a, Other b) {
    return a = a | b;
}

// The larger of two numbers, b if one is no number.
template <class T, int N>
INLINE Wide<T, N> maximum(Wide<T, N> a, std::type_identity_t<Wide<T, N>> b) {
    return map([](auto x, auto y) __attribute__((always_inline)) { return x > y ? x : y; }, a, b);
}

// Numbers converted, and bits taken for numbers of another type.
template <class To, class T, int N>
INLINE Wide<To, N> convert(Wide<T, N> a) {
    return map([](auto x) { return __builtin_convertvector(x, typename Wide<To, BYTES / int(sizeof(To))>::Register); }, a);
}
template <class To, class T, int N>
INLINE Wide<To, N * int(sizeof(T)) / int(sizeof(To))> bits_as(Wide<T, N> a) {
    return map([](auto x) { return (typename Wide<To, BYTES / int(sizeof(To))>::Register)x; }, a);
}

// Register by register: compilers move a struct in parts of their own choice.
template <class T, int N>
INLINE Wide<T, N> load_wide(const void* from) {
    if constexpr (IS_REGISTER<T, N>)
        return *static_cast<const typename RegisterOf<T>::Unaligned*>(from);
    else
        return {load_wide<T, N / 2>(from), load_wide<T, N / 2>(static_cast<const T*>(from) + N / 2)};
}
template <class T, int N>
INLINE void store(T* to, Wide<T, N> value) {
    if constexpr (IS_REGISTER<T, N>)
        *reinterpret_cast<typename RegisterOf<T>::Unaligned*>(to) = value.value;
    else
        store(to, value.low), store(to + N / 2, value.high);
}

// Lanes of two registers; those of `b` are counted from their number on.
template <int... LANES, class Register>
INLINE Register pick(Register a, Register b) {
#if defined(__clang__)
    return __builtin_shufflevector(a, b, LANES...);
#else
    if constexpr (sizeof(a[0]) == 8)
        return __builtin_shuffle(a, b, typename Wide<int64_t, BYTES / 8>::Register{LANES...});
    else
        return __builtin_shuffle(a, b, typename Wide<int32_t, BYTES / 4>::Register{LANES...});
#endif
}

// Numbers of two vectors in turn: of their first halves, or of the SECOND ones.
template <bool SECOND, class Register, int... LANE>
INLINE Register zip(Register a, Register b, std::integer_sequence<int, LANE...>) {
    constexpr int L = sizeof...(LANE);
    return pick<(SECOND * L / 2 + LANE / 2 + LANE % 2 * L)...>(a, b);
}
template <bool SECOND, class T, int N>
INLINE Wide<T, N> zip(Wide<T, N> a, Wide<T, N> b) {
    if constexpr (IS_REGISTER<T, N>)
        return zip<SECOND>(a.value, b.value, std::make_integer_sequence<int, N>{});
    else if constexpr (SECOND)
        return {zip<false>(a.high, b.high), zip<true>(a.high, b.high)};
    else
        return {zip<false>(a.low, b.low), zip<true>(a.low, b.low)};
}

// ---- reductions: in the order of lanes 8 apart, then 4, 2 and 1 of 16, whatever the registers are

// One step of a reduction of two registers side by side: each lane joins the one STEP away. Then lanes whose number has the bit
// STEP are of `b`, the others of `a`; a register given twice is reduced in every lane. The joins of a vector's numbers are the
// same in every lane, so a result does not depend on how many vectors are reduced together.
template <int STEP, class Join, class Register, int... LANE>
INLINE Register join_lanes(Register a, Register b, Join join, std::integer_sequence<int, LANE...>) {
    constexpr int L = sizeof...(LANE);
    return join(pick<(LANE & STEP ? L + LANE : LANE)...>(a, b), pick<(LANE & STEP ? L : 0) + (LANE ^ STEP)...>(a, b));
}

// A vector reduced to a register that has the result in every lane.
template <class Join, class T, int N>
INLINE auto folded(Wide<T, N> value, Join join) {
    if constexpr (IS_REGISTER<T, N>)
        return value.value;
    else
        return folded(map(join, value.low, value.high), join);
}
template <int STEP = BYTES / 8, class Join, class Register>
INLINE float reduce(Register value, Join join) {
    if constexpr (STEP == 0)
        return value[0];
    else
        return reduce<STEP / 2>(join_lanes<STEP>(value, value, join, std::make_integer_sequence<int, BYTES / 4>{}), join);
}

}  // namespace
