// Element types and operations of all-reduce, and the loops over them.
//
// f16 and bf16 are added up in f32 and rounded once, to nearest even. i32 sums wrap; the mean of i32
// is added up in 64 bits, so it never wraps, and truncates toward zero. Maximum and minimum are those
// of IEEE 754-2019 (9.6): a NaN wins, and -0 is less than +0. A NaN comes out as the one canonical
// quiet NaN, so that ranks agree in every bit whichever NaN went in.
#ifndef BELLPUSH_REDUCE_CUH
#define BELLPUSH_REDUCE_CUH

#include <string.h>

#include <bellpush/exec.cuh>
#include "collective.h"

namespace bp {
namespace coll {

template <class To, class From>
BP_DEV To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "a cast of bits");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

BP_DEV bool is_nan(float f) { return (bits_as<uint32_t>(f) & 0x7fffffffu) > 0x7f800000u; }

// Types as they lie in memory; `wide` is what sums are made in.
struct f32 {
  using wide = float;
  uint32_t bits;
  BP_DEV static float widen(f32 v) { return bits_as<float>(v.bits); }
  BP_DEV static f32 narrow(float v) { return {is_nan(v) ? 0x7fc00000u : bits_as<uint32_t>(v)}; }
};

struct bf16 {
  using wide = float;
  uint16_t bits;
  BP_DEV static float widen(bf16 v) { return bits_as<float>((uint32_t)v.bits << 16); }
  BP_DEV static bf16 narrow(float v) {
    if (is_nan(v)) return {0x7fc0};
    const uint32_t b = bits_as<uint32_t>(v);
    // To nearest, ties to even; a carry into the exponent is right, up to infinity.
    return {(uint16_t)((b + 0x7fff + (b >> 16 & 1)) >> 16)};
  }
};

struct f16 {
  using wide = float;
  uint16_t bits;
  BP_DEV static float widen(f16 v) {
    const uint32_t sign = (uint32_t)(v.bits & 0x8000) << 16, rest = v.bits & 0x7fff;
    if (rest >= 0x7c00) return bits_as<float>(sign | 0x7f800000u | rest << 13);
    if (rest >= 0x0400) return bits_as<float>(sign | (rest + (112u << 10)) << 13);
    // Subnormal: rest * 2^-24, exact in f32.
    const float magnitude = (float)rest * 5.9604644775390625e-8f;
    return bits_as<float>(sign | bits_as<uint32_t>(magnitude));
  }
  BP_DEV static f16 narrow(float v) {
    if (is_nan(v)) return {0x7e00};
    const uint32_t b = bits_as<uint32_t>(v);
    const uint16_t sign = (uint16_t)(b >> 16 & 0x8000);
    const uint32_t rest = b & 0x7fffffffu;
    if (rest >= 0x477ff000u) return {(uint16_t)(sign | 0x7c00)};  // 65520 and above: infinity
    if (rest >= 0x38800000u) {                                    // 2^-14: normal
      const uint32_t rounded = rest + 0xfff + (rest >> 13 & 1);
      return {(uint16_t)(sign | (rounded - (112u << 23)) >> 13)};
    }
    // Adding 0.5 puts the unit of f16's subnormals, 2^-24, in the last place of the sum, and rounds
    // there as the addition does: to nearest even.
    const float shifted = bits_as<float>(rest) + 0.5f;
    return {(uint16_t)(sign | (bits_as<uint32_t>(shifted) - 0x3f000000u))};
  }
};

struct i32 {
  using wide = uint32_t;  // wraps
  int32_t bits;
  BP_DEV static uint32_t widen(i32 v) { return (uint32_t)v.bits; }
  BP_DEV static i32 narrow(uint32_t v) { return {(int32_t)v}; }
};

BP_DEV float pick(float a, float b, bool greater) {
  if (is_nan(a)) return a;
  if (is_nan(b)) return b;
  if (a == b) {  // zeros of either sign, or the same
    const uint32_t x = bits_as<uint32_t>(a), y = bits_as<uint32_t>(b);
    return bits_as<float>(greater ? x & y : x | y);
  }
  return (a > b) == greater ? a : b;
}
BP_DEV uint32_t pick(uint32_t a, uint32_t b, bool greater) {
  return ((int32_t)a > (int32_t)b) == greater ? a : b;
}

// An operation on T: the type that partial results have, also on their way from rank to rank.
template <class T>
struct op_sum {
  using acc = typename T::wide;
  BP_DEV static acc from(T v) { return T::widen(v); }
  BP_DEV static acc join(acc a, acc b) { return a + b; }
  BP_DEV static T finish(acc a, uint32_t) { return T::narrow(a); }
};
template <class T>
struct op_max : op_sum<T> {
  using acc = typename T::wide;
  BP_DEV static acc join(acc a, acc b) { return pick(a, b, true); }
};
template <class T>
struct op_min : op_sum<T> {
  using acc = typename T::wide;
  BP_DEV static acc join(acc a, acc b) { return pick(a, b, false); }
};
template <class T>
struct op_mean : op_sum<T> {
  BP_DEV static T finish(float a, uint32_t ranks) { return T::narrow(a / (float)ranks); }
};
template <>
struct op_mean<i32> {
  using acc = int64_t;
  BP_DEV static acc from(i32 v) { return v.bits; }
  BP_DEV static acc join(acc a, acc b) { return a + b; }
  BP_DEV static i32 finish(acc a, uint32_t ranks) { return {(int32_t)(a / (int64_t)ranks)}; }
};

// W values that are loaded and stored at once.
template <class T, uint32_t W>
struct alignas(sizeof(T) * W) pack {
  T v[W];
};

BP_DEV bool aligned(uint64_t address, uint64_t bytes) { return (address & (bytes - 1)) == 0; }

// Calls f(first, step, end, width, several) so that the block's threads cover 0 .. count: `several` packs of `width`
// values, `step` values apart, as far as they begin before `end`. All are loaded before the first is used: a load
// from host memory is on its way for more than a microsecond. Widths W where the addresses allow it, and 1 for the
// rest. Width and several are compile-time constants.
template <uint32_t N>
struct constant {
  static constexpr uint32_t n = N;
};
template <uint32_t W, class F>
BP_DEV void for_each_pack(uint64_t count, bool wide, F f) {
  constexpr uint32_t several = 4;
  const uint64_t step = block_threads(), packs = wide ? count / W : 0;
  BP_NO_UNROLL for (uint64_t i = tid(); i < packs; i += several * step) {
    f(i * W, step * W, packs * W, constant<W>{}, constant<several>{});
  }
  BP_NO_UNROLL for (uint64_t i = packs * W + tid(); i < count; i += step) {
    f(i, step, count, constant<1>{}, constant<1>{});
  }
}

template <class T, uint32_t W>
BP_DEV pack<T, W> load(uint64_t base, uint64_t i) {
  return *reinterpret_cast<const pack<T, W>*>(base + i * sizeof(T));
}
template <class T, uint32_t W>
BP_DEV void store(uint64_t base, uint64_t i, const pack<T, W>& v) {
  if (base) *reinterpret_cast<pack<T, W>*>(base + i * sizeof(T)) = v;
}

// What one block does to elements. Addresses; 0: nowhere.
struct work {
  uint64_t own;       // this rank's elements
  uint64_t peers;     // fold: rank 0's; ring: partial results so far, 0 for none
  uint64_t stride;    // fold: from rank to rank
  uint32_t rank, ranks;
  uint64_t count;
  uint64_t out, also; // results; ring: `also` alone takes unfinished ones
};

// All ranks' elements, in the order of ranks: the same sum wherever it is made. The next rank's are on their way
// while one rank's are added.
template <class T, class Op>
BP_DEV void fold(const work& w) {
  using acc = typename Op::acc;
  auto some = [&](uint64_t i, uint64_t step, uint64_t end, auto width, auto several) {
    constexpr uint32_t n = decltype(width)::n, lots = decltype(several)::n;
    pack<T, n> now[lots], next[lots];
    auto fetch = [&](uint32_t r, pack<T, n>* v) {
      const uint64_t from = r == w.rank ? w.own : w.peers + r * w.stride;
      for (uint32_t s = 0; s < lots; s++) {
        v[s] = i + s * step < end ? load<T, n>(from, i + s * step) : pack<T, n>{};
      }
    };
    fetch(0, now);
    fetch(1, next);
    acc sum[lots][n];
    for (uint32_t s = 0; s < lots; s++) {
      for (uint32_t k = 0; k < n; k++) sum[s][k] = Op::from(now[s].v[k]);
    }
    BP_NO_UNROLL for (uint32_t r = 1; r < w.ranks; r++) {
      for (uint32_t s = 0; s < lots; s++) now[s] = next[s];
      if (r + 1 < w.ranks) fetch(r + 1, next);
      for (uint32_t s = 0; s < lots; s++) {
        for (uint32_t k = 0; k < n; k++) sum[s][k] = Op::join(sum[s][k], Op::from(now[s].v[k]));
      }
    }
    for (uint32_t s = 0; s < lots && i + s * step < end; s++) {
      pack<T, n> result;
      for (uint32_t k = 0; k < n; k++) result.v[k] = Op::finish(sum[s][k], w.ranks);
      store<T, n>(w.out, i + s * step, result);
      store<T, n>(w.also, i + s * step, result);
    }
  };
  for_each_pack<16 / sizeof(T)>(w.count, aligned(w.own | w.out | w.also, 16), some);
}

// One step of a ring: partial results joined by this rank's elements, finished or not.
template <class T, class Op, bool finished>
BP_DEV void step(const work& w) {
  using acc = typename Op::acc;
  constexpr uint32_t W = 16 / sizeof(acc);
  const bool wide = aligned(w.own, sizeof(T) * W) && aligned(w.out, sizeof(T) * W);
  for_each_pack<W>(w.count, wide, [&](uint64_t i, uint64_t step, uint64_t end, auto width, auto several) {
    constexpr uint32_t n = decltype(width)::n, lots = decltype(several)::n;
    pack<T, n> own[lots];
    pack<acc, n> before[lots];
    for (uint32_t s = 0; s < lots; s++) {
      const bool there = i + s * step < end;
      own[s] = there ? load<T, n>(w.own, i + s * step) : pack<T, n>{};
      before[s] = there && w.peers ? load<acc, n>(w.peers, i + s * step) : pack<acc, n>{};
    }
    for (uint32_t s = 0; s < lots && i + s * step < end; s++) {
      pack<acc, n> sum;
      for (uint32_t k = 0; k < n; k++) {
        const acc one = Op::from(own[s].v[k]);
        sum.v[k] = w.peers ? Op::join(before[s].v[k], one) : one;
      }
      if constexpr (finished) {
        pack<T, n> result;
        for (uint32_t k = 0; k < n; k++) result.v[k] = Op::finish(sum.v[k], w.ranks);
        store<T, n>(w.out, i + s * step, result);
        store<T, n>(w.also, i + s * step, result);
      } else {
        store<acc, n>(w.also, i + s * step, sum);
      }
    }
  });
}

// Bytes as they are, to one or two places. `bytes` and the addresses are multiples of 2.
BP_DEV_COLD void copy(uint64_t from, uint64_t bytes, uint64_t out, uint64_t also) {
  const bool wide = aligned(from | out | also, 16);
  for_each_pack<8>(bytes / 2, wide, [&](uint64_t i, uint64_t step, uint64_t end, auto width, auto several) {
    constexpr uint32_t n = decltype(width)::n, lots = decltype(several)::n;
    pack<uint16_t, n> v[lots];
    for (uint32_t s = 0; s < lots; s++) {
      v[s] = i + s * step < end ? load<uint16_t, n>(from, i + s * step) : pack<uint16_t, n>{};
    }
    for (uint32_t s = 0; s < lots && i + s * step < end; s++) {
      store<uint16_t, n>(out, i + s * step, v[s]);
      store<uint16_t, n>(also, i + s * step, v[s]);
    }
  });
}

enum class kind { fold, begin, finish };

// A function of its own for each type and operation, out of the paths' kernels.
template <class T, class Op>
BP_DEV_COLD void perform(kind k, work w) {
  if (k == kind::fold) {
    fold<T, Op>(w);
  } else if (k == kind::begin) {
    step<T, Op, false>(w);
  } else {
    step<T, Op, true>(w);
  }
}
template <class T>
BP_DEV void perform_op(uint32_t op, kind k, const work& w) {
  switch (op) {
    case BP_COLL_SUM: return perform<T, op_sum<T>>(k, w);
    case BP_COLL_MAX: return perform<T, op_max<T>>(k, w);
    case BP_COLL_MIN: return perform<T, op_min<T>>(k, w);
    default: return perform<T, op_mean<T>>(k, w);
  }
}
BP_DEV_COLD void reduce(uint32_t dtype, uint32_t op, kind k, work w) {
  switch (dtype) {
    case BP_COLL_F32: return perform_op<f32>(op, k, w);
    case BP_COLL_F16: return perform_op<f16>(op, k, w);
    case BP_COLL_BF16: return perform_op<bf16>(op, k, w);
    default: return perform_op<i32>(op, k, w);
  }
}

BP_DEV uint32_t element_bytes(uint32_t dtype) {
  return dtype == BP_COLL_F16 || dtype == BP_COLL_BF16 ? 2 : 4;
}
// Bytes of a partial result.
BP_DEV uint32_t partial_bytes(uint32_t dtype, uint32_t op) {
  return dtype == BP_COLL_I32 && op == BP_COLL_MEAN ? 8 : 4;
}

}  // namespace coll
}  // namespace bp

#endif
