//! Random elements, and whether an all-reduce of them is right.
//!
//! The reference is made in f64 on the CPU. N ranks' sum of f32 is N - 1 additions, each rounded to
//! half an ulp: it may be off by (N - 1) · 2⁻²⁴ times the sum of the absolute values, whatever the
//! order. f16 and bf16 are added up in f32 and rounded once, so that half an ulp of their own comes
//! on top; a mean adds half an ulp of f32 for the division. Everything else is exact: maximum,
//! minimum, i32, infinities, and that a NaN makes the canonical NaN.

use bellpush::collective::{Dtype, Op};
use half::{bf16, f16};

/// What the elements are like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Numbers of very different size; i32 of all sizes, so that sums wrap.
    Random,
    /// Among them NaN, infinities, zeros of both signs, subnormals, and the largest.
    Special,
    /// Every NaN there is, among numbers of both signs.
    Payloads,
}

/// xorshift64*.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

/// `count` elements of one rank.
pub fn elements(dtype: Dtype, count: usize, kind: Kind, seed: u64, rank: u32) -> Vec<u8> {
    let start = (seed ^ u64::from(rank).wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(31) | 1;
    let mut random = Random(start);
    for _ in 0..4 {
        random.next();
    }
    let mut out = Vec::with_capacity(count * dtype.bytes() as usize);
    for _ in 0..count {
        let bits = random.next();
        if kind == Kind::Payloads {
            // As they come: with an exponent of ones one time in three.
            let ones = if bits.is_multiple_of(3) { u32::MAX >> 1 & !0x0007_ffff } else { 0 };
            let word = (bits >> 32) as u32 | ones;
            match dtype.bytes() {
                2 => out.extend(((word >> 16) as u16).to_ne_bytes()),
                _ => out.extend(word.to_ne_bytes()),
            }
            continue;
        }
        let special = kind == Kind::Special && bits.is_multiple_of(3);
        let value = match special.then_some(bits >> 8 & 15) {
            Some(0) => f64::NAN,
            Some(1 | 2) => f64::INFINITY,
            Some(3) => f64::NEG_INFINITY,
            Some(4 | 5) => 0.0,
            Some(6 | 7) => -0.0,
            Some(8) => 3.0e-41,
            Some(9) => -6.0e-8,
            _ => {
                let mantissa = (bits >> 11) as f64 / (1u64 << 52) as f64 - 1.0;
                mantissa * 2f64.powi((bits & 15) as i32 - 8)
            }
        };
        match dtype {
            Dtype::F32 => out.extend((value as f32).to_ne_bytes()),
            Dtype::F16 => out.extend(f16::from_f64(value).to_ne_bytes()),
            Dtype::Bf16 => out.extend(bf16::from_f64(value).to_ne_bytes()),
            // Full range, and small ones, whose mean truncates.
            Dtype::I32 => {
                let small = if bits & 1 << 63 == 0 { 22 } else { 0 };
                out.extend(((bits >> 16) as i32 >> small).to_ne_bytes());
            }
        }
    }
    out
}

fn float(dtype: Dtype, raw: &[u8]) -> f64 {
    match dtype {
        Dtype::F32 => f32::from_ne_bytes(raw.try_into().expect("four bytes")).into(),
        Dtype::F16 => f16::from_ne_bytes(raw.try_into().expect("two bytes")).into(),
        Dtype::Bf16 => bf16::from_ne_bytes(raw.try_into().expect("two bytes")).into(),
        Dtype::I32 => int(raw).into(),
    }
}

fn int(raw: &[u8]) -> i32 {
    i32::from_ne_bytes(raw.try_into().expect("four bytes"))
}

/// Mantissa bits with the leading one, exponent of the smallest normal, largest value.
fn shape(dtype: Dtype) -> (i32, i32, f64) {
    match dtype {
        Dtype::F16 => (11, -14, 65504.0),
        Dtype::Bf16 => (8, -126, bf16::MAX.to_f64()),
        _ => (24, -126, f32::MAX.into()),
    }
}

/// One unit in the last place of a value of this size.
fn ulp(dtype: Dtype, value: f64) -> f64 {
    let (digits, smallest, _) = shape(dtype);
    let exponent = if value == 0.0 { smallest } else { value.abs().log2().floor() as i32 };
    2f64.powi(exponent.max(smallest) - digits + 1)
}

fn canonical_nan(dtype: Dtype) -> Vec<u8> {
    match dtype {
        Dtype::F32 | Dtype::I32 => 0x7fc0_0000u32.to_ne_bytes().into(),
        Dtype::F16 => 0x7e00u16.to_ne_bytes().into(),
        Dtype::Bf16 => 0x7fc0u16.to_ne_bytes().into(),
    }
}

/// The first element of `found` that is wrong, and why; `inputs` are the ranks' in order.
///
/// # Errors
/// A line that names the element.
pub fn check(dtype: Dtype, op: Op, inputs: &[Vec<u8>], found: &[u8]) -> Result<(), String> {
    let size = dtype.bytes() as usize;
    if inputs.iter().any(|input| input.len() != found.len()) {
        return Err(format!("{} bytes instead of {}", found.len(), inputs[0].len()));
    }
    for (i, got) in found.chunks_exact(size).enumerate() {
        let raw = inputs.iter().map(|input| &input[i * size..][..size]);
        let wrong = match dtype {
            Dtype::I32 => integer(op, raw.map(int), int(got)),
            _ => floating(dtype, op, &raw.map(|raw| float(dtype, raw)).collect::<Vec<_>>(), got),
        };
        if let Some(why) = wrong {
            let shown = float(dtype, got);
            return Err(format!("element {i} is {shown:?}{why} ({op} of {dtype})"));
        }
    }
    Ok(())
}

fn integer(op: Op, values: impl Iterator<Item = i32> + Clone, got: i32) -> Option<String> {
    let ranks = values.clone().count() as i64;
    let want = match op {
        Op::Sum => values.fold(0, i32::wrapping_add),
        Op::Max => values.max()?,
        Op::Min => values.min()?,
        Op::Mean => (values.map(i64::from).sum::<i64>() / ranks) as i32,
    };
    (got != want).then(|| format!(", not {want}"))
}

fn floating(dtype: Dtype, op: Op, values: &[f64], raw: &[u8]) -> Option<String> {
    let got = float(dtype, raw);
    let exactly = |want: f64| {
        let same = got == want && got.is_sign_negative() == want.is_sign_negative();
        (!same).then(|| format!(", not {want:?}"))
    };
    let sum: f64 = values.iter().sum();
    let nan = values.iter().any(|v| v.is_nan());
    if nan || (matches!(op, Op::Sum | Op::Mean) && sum.is_nan()) {
        return (raw != canonical_nan(dtype)).then(|| ", not the canonical NaN".into());
    }
    // total_cmp: -0 is less than +0.
    let largest = || values.iter().copied().max_by(f64::total_cmp).unwrap_or(0.0);
    let smallest = || values.iter().copied().min_by(f64::total_cmp).unwrap_or(0.0);
    let ranks = values.len() as f64;
    match op {
        Op::Max => return exactly(largest()),
        Op::Min => return exactly(smallest()),
        _ if sum.is_infinite() => return exactly(sum),
        _ => {}
    }
    if let [alone] = *values {
        return exactly(alone); // nothing is added or rounded
    }
    let magnitude: f64 = values.iter().map(|v| v.abs()).sum();
    let mut off = (ranks - 1.0) * 2f64.powi(-24) * magnitude;
    let mut want = sum;
    if op == Op::Mean {
        want /= ranks;
        off = off / ranks + ulp(Dtype::F32, want.abs() + off / ranks) / 2.0;
    }
    if dtype != Dtype::F32 {
        off += ulp(dtype, want.abs() + off) / 2.0;
    }
    let (_, _, most) = shape(dtype);
    if got.is_infinite() && (want.abs() + off) > most && (got > 0.0) == (want > 0.0) {
        return None; // rounds to infinity
    }
    // NaN fails the comparison.
    let near = (got - want).abs() <= off;
    (!near).then(|| format!(", not {want:?} within {off:e}"))
}
