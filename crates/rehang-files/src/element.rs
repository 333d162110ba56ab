//! The number types that raw files hold, and how their bytes become the numbers that rehang computes with.

use std::fmt::Display;

use half::{bf16, f16};
use rehang_core::{Error, Result};

/// Meaning of a number's bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    /// IEEE floating point of 2, 4 or 8 bytes.
    Float,
    /// The upper half of an IEEE single: 2 bytes.
    BrainFloat,
    /// Two's complement of 1, 2, 4 or 8 bytes.
    Signed,
    /// Unsigned of 1, 2, 4 or 8 bytes.
    Unsigned,
    /// One byte, 0 or 1.
    Boolean,
}

/// A number type with its size and byte order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Element {
    meaning: Meaning,
    bytes: usize,
    big_endian: bool,
}

impl Element {
    /// Returns the number type of a meaning and a size in bytes; `None` where this size does not exist.
    pub(super) fn new(meaning: Meaning, bytes: usize, big_endian: bool) -> Option<Self> {
        let sizes: &[usize] = match meaning {
            Meaning::Float => &[2, 4, 8],
            Meaning::BrainFloat => &[2],
            Meaning::Signed | Meaning::Unsigned => &[1, 2, 4, 8],
            Meaning::Boolean => &[1],
        };
        sizes.contains(&bytes).then_some(Self { meaning, bytes, big_endian })
    }

    /// Bytes of one number.
    pub(super) fn bytes(self) -> usize {
        self.bytes
    }

    /// Whether numbers of this type are whole (truth values count as 0 and 1).
    pub(super) fn is_integer(self) -> bool {
        matches!(self.meaning, Meaning::Signed | Meaning::Unsigned | Meaning::Boolean)
    }

    /// Whether numbers of this type are unsigned bytes.
    pub(super) fn is_byte(self) -> bool {
        self.meaning == Meaning::Unsigned && self.bytes == 1
    }

    /// Bound from which on not every whole number exists in this type; for floating-point types alone.
    pub(super) fn whole_end(self) -> f64 {
        let digits = match (self.meaning, self.bytes) {
            (Meaning::Float, 2) => f16::MANTISSA_DIGITS,
            (Meaning::BrainFloat, _) => bf16::MANTISSA_DIGITS,
            (Meaning::Float, 4) => f32::MANTISSA_DIGITS,
            _ => f64::MANTISSA_DIGITS,
        };
        (1_u64 << digits) as f64
    }

    /// Appends the numbers in `raw` as `f32`: exact for `f16`, `bf16` and integers up to 2²⁴, otherwise
    /// rounded to the nearest.
    pub(super) fn append_f32(self, raw: &[u8], out: &mut Vec<f32>) {
        match (self.meaning, self.bytes) {
            // The two common cases are copies; the others convert.
            (Meaning::Float, 4) => self.append(raw, out, f32::from_le_bytes),
            (Meaning::Float, 2) => self.append(raw, out, |bytes| f16::from_le_bytes(bytes).to_f32()),
            (Meaning::BrainFloat, _) => self.append(raw, out, |bytes| bf16::from_le_bytes(bytes).to_f32()),
            (Meaning::Float, _) => self.append(raw, out, |bytes| f64::from_le_bytes(bytes) as f32),
            (Meaning::Signed, 1) => self.append(raw, out, |bytes| i8::from_le_bytes(bytes) as f32),
            (Meaning::Signed, 2) => self.append(raw, out, |bytes| i16::from_le_bytes(bytes) as f32),
            (Meaning::Signed, 4) => self.append(raw, out, |bytes| i32::from_le_bytes(bytes) as f32),
            (Meaning::Signed, _) => self.append(raw, out, |bytes| i64::from_le_bytes(bytes) as f32),
            (Meaning::Unsigned, 1) => self.append(raw, out, |bytes| u8::from_le_bytes(bytes) as f32),
            (Meaning::Unsigned, 2) => self.append(raw, out, |bytes| u16::from_le_bytes(bytes) as f32),
            (Meaning::Unsigned, 4) => self.append(raw, out, |bytes| u32::from_le_bytes(bytes) as f32),
            (Meaning::Unsigned, _) => self.append(raw, out, |bytes| u64::from_le_bytes(bytes) as f32),
            (Meaning::Boolean, _) => self.append(raw, out, |[byte]| f32::from(u8::from(byte != 0))),
        }
    }

    /// Appends the numbers in `raw` as `f64`: exact for every type but integers above 2⁵³.
    pub(super) fn append_f64(self, raw: &[u8], out: &mut Vec<f64>) {
        match (self.meaning, self.bytes) {
            (Meaning::Float, 8) => self.append(raw, out, f64::from_le_bytes),
            (Meaning::Float | Meaning::BrainFloat, _) => {
                let mut narrow = Vec::with_capacity(raw.len() / self.bytes);
                self.append_f32(raw, &mut narrow);
                out.extend(narrow.into_iter().map(f64::from));
            }
            _ => {
                let mut integers = Vec::with_capacity(raw.len() / self.bytes);
                self.append_integers(raw, &mut integers);
                out.extend(integers.into_iter().map(|value| value as f64));
            }
        }
    }

    /// Appends the integers in `raw` as `i128`, which is wide enough for every integer type.
    ///
    /// Must be called on integer types only; floating-point numbers append nothing.
    fn append_integers(self, raw: &[u8], out: &mut Vec<i128>) {
        match (self.meaning, self.bytes) {
            (Meaning::Float | Meaning::BrainFloat, _) => {}
            (Meaning::Signed, 1) => self.append(raw, out, |bytes| i8::from_le_bytes(bytes).into()),
            (Meaning::Signed, 2) => self.append(raw, out, |bytes| i16::from_le_bytes(bytes).into()),
            (Meaning::Signed, 4) => self.append(raw, out, |bytes| i32::from_le_bytes(bytes).into()),
            (Meaning::Signed, _) => self.append(raw, out, |bytes| i64::from_le_bytes(bytes).into()),
            (Meaning::Unsigned, 1) => self.append(raw, out, |bytes| u8::from_le_bytes(bytes).into()),
            (Meaning::Unsigned, 2) => self.append(raw, out, |bytes| u16::from_le_bytes(bytes).into()),
            (Meaning::Unsigned, 4) => self.append(raw, out, |bytes| u32::from_le_bytes(bytes).into()),
            (Meaning::Unsigned, _) => self.append(raw, out, |bytes| u64::from_le_bytes(bytes).into()),
            (Meaning::Boolean, _) => self.append(raw, out, |[byte]| i128::from(byte != 0)),
        }
    }

    /// Reads the integers in `raw`. Fails for one that is too large for 64 bits with a sign; `what` names the
    /// file.
    pub(super) fn integers(self, raw: &[u8], what: &dyn Display) -> Result<Vec<i64>> {
        let mut wide = Vec::with_capacity(raw.len() / self.bytes);
        self.append_integers(raw, &mut wide);
        let narrow: Option<Vec<i64>> = wide.into_iter().map(|value| i64::try_from(value).ok()).collect();
        narrow.ok_or_else(|| Error::corrupt(what, format!("it holds an integer above {}", i64::MAX)))
    }

    /// Converts numbers of `N` bytes each; the bytes of big-endian numbers are reversed before.
    fn append<const N: usize, T>(self, raw: &[u8], out: &mut Vec<T>, convert: impl Fn([u8; N]) -> T) {
        let (numbers, _) = raw.as_chunks::<N>();
        if self.big_endian && N > 1 {
            out.extend(numbers.iter().map(|&number| {
                let mut turned = number;
                turned.reverse();
                convert(turned)
            }));
        } else {
            out.extend(numbers.iter().map(|&number| convert(number)));
        }
    }
}
