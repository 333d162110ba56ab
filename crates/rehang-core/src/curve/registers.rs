//! Groups of eight `f64`, in whatever registers a processor has.
//!
//! The compiler does not turn the inner loops of this module into vector code by itself (it was tried: the
//! sums of a tile end up as single numbers). So they are written in terms of [`Eight`]. Every operation is
//! exact IEEE arithmetic, lane by lane, and [`Eight::sum`] adds the lanes in one fixed order: all
//! implementations give the same bits. Only code that [`crate::Processor`] chose at run time may use the two
//! x86 implementations.

/// Number of lanes of an [`Eight`].
pub(crate) const LANES: usize = 8;

/// Borrows the eight numbers from `first` on.
#[inline(always)]
pub(crate) fn lanes<T>(slice: &[T], first: usize) -> &[T; LANES] {
    slice[first..].first_chunk().expect("buffers are filled up to whole registers")
}

/// Borrows the eight numbers from `first` on, to change them.
#[inline(always)]
pub(crate) fn lanes_mut<T>(slice: &mut [T], first: usize) -> &mut [T; LANES] {
    slice[first..].first_chunk_mut().expect("buffers are filled up to whole registers")
}

/// Numbers of one register, aligned so that a load or store of them touches one cache line only.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Register([f64; LANES]);

/// A buffer of whole registers, used as the numbers in it.
#[derive(Debug, Default)]
pub(crate) struct Registers(Vec<Register>);

impl Registers {
    /// Replaces the content by `count` times `value`, filled up to a whole register.
    pub(crate) fn fill(&mut self, count: usize, value: f64) {
        self.0.clear();
        self.0.resize(count.div_ceil(LANES), Register([value; LANES]));
    }
}

impl std::ops::Deref for Registers {
    type Target = [f64];

    #[inline(always)]
    fn deref(&self) -> &[f64] {
        // SAFETY: a `Register` is LANES numbers without anything between or after them.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.0.len() * LANES) }
    }
}

impl std::ops::DerefMut for Registers {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [f64] {
        // SAFETY: a `Register` is LANES numbers without anything between or after them.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), self.0.len() * LANES) }
    }
}

/// Eight `f64` lanes.
pub(crate) trait Eight: Copy {
    fn splat(value: f64) -> Self;
    fn load(from: &[f64; 8]) -> Self;
    fn load_f32(from: &[f32; 8]) -> Self;
    fn store(self, to: &mut [f64; 8]);
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    /// The lower of each pair of lanes; no lane is NaN.
    fn min(self, other: Self) -> Self;
    /// The higher of each pair of lanes; no lane is NaN.
    fn max(self, other: Self) -> Self;
    /// Square root of each lane.
    fn sqrt(self) -> Self;
    /// `self · factor + summand`. It is used only for products of two `f32`, which are exact in `f64`, so
    /// fused and separate rounding agree.
    fn mul_add_exact(self, factor: Self, summand: Self) -> Self;
    /// Keeps the lanes whose bit is set in `mask` (lane 0 is the lowest bit), and sets the others to 0.
    fn only(self, mask: u8) -> Self;
    /// Lanes without their fraction; each lies between 0 and `i32::MAX`.
    fn truncate(self) -> [u32; 8];
    /// `((a + e) + (c + g)) + ((b + f) + (d + h))`.
    fn sum(self) -> f64;
}

/// Defines operations of [`Eight`] on two registers, each by the expression for its result.
macro_rules! of_two {
    ($($name:ident: |$a:ident, $b:ident| $value:expr;)*) => {$(
        #[inline(always)]
        fn $name(self, other: Self) -> Self {
            let ($a, $b) = (self, other);
            $value
        }
    )*};
}

impl Eight for [f64; 8] {
    of_two! {
        add: |a, b| std::array::from_fn(|lane| a[lane] + b[lane]);
        sub: |a, b| std::array::from_fn(|lane| a[lane] - b[lane]);
        mul: |a, b| std::array::from_fn(|lane| a[lane] * b[lane]);
        div: |a, b| std::array::from_fn(|lane| a[lane] / b[lane]);
        min: |a, b| std::array::from_fn(|lane| if a[lane] < b[lane] { a[lane] } else { b[lane] });
        max: |a, b| std::array::from_fn(|lane| if a[lane] > b[lane] { a[lane] } else { b[lane] });
    }
    #[inline(always)]
    fn splat(value: f64) -> Self {
        [value; 8]
    }

    #[inline(always)]
    fn load(from: &[f64; 8]) -> Self {
        *from
    }

    #[inline(always)]
    fn load_f32(from: &[f32; 8]) -> Self {
        from.map(f64::from)
    }

    #[inline(always)]
    fn store(self, to: &mut [f64; 8]) {
        *to = self;
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        self.map(f64::sqrt)
    }

    #[inline(always)]
    fn mul_add_exact(self, factor: Self, summand: Self) -> Self {
        std::array::from_fn(|lane| self[lane] * factor[lane] + summand[lane])
    }

    #[inline(always)]
    fn only(self, mask: u8) -> Self {
        std::array::from_fn(|lane| if mask >> lane & 1 == 1 { self[lane] } else { 0.0 })
    }

    #[inline(always)]
    fn truncate(self) -> [u32; 8] {
        self.map(|value| value as u32)
    }

    #[inline(always)]
    fn sum(self) -> f64 {
        let [a, b, c, d, e, f, g, h] = self;
        ((a + e) + (c + g)) + ((b + f) + (d + h))
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) mod x86 {
    #[allow(
        clippy::wildcard_imports,
        reason = "forty intrinsics say nothing in a list that they do not say in use"
    )]
    use std::arch::x86_64::*;

    use super::Eight;

    /// One AVX-512 register.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx512(__m512d);

    /// Two AVX registers.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx2(__m256d, __m256d);

    /// Evaluates intrinsics of the instruction set that the surrounding code is for.
    macro_rules! intrinsics {
        ($($calls:tt)*) => {
            // SAFETY: `Processor` names an instruction set only after it was detected, and this module is
            // used below its dispatch alone. Loads and stores go to references of arrays that hold as many
            // numbers as are read or written.
            unsafe { $($calls)* }
        };
    }

    impl Eight for Avx512 {
        #[inline(always)]
        fn splat(value: f64) -> Self {
            intrinsics!(Self(_mm512_set1_pd(value)))
        }

        #[inline(always)]
        fn load(from: &[f64; 8]) -> Self {
            intrinsics!(Self(_mm512_loadu_pd(from.as_ptr())))
        }

        #[inline(always)]
        fn load_f32(from: &[f32; 8]) -> Self {
            intrinsics!(Self(_mm512_cvtps_pd(_mm256_loadu_ps(from.as_ptr()))))
        }

        #[inline(always)]
        fn store(self, to: &mut [f64; 8]) {
            intrinsics!(_mm512_storeu_pd(to.as_mut_ptr(), self.0));
        }

        of_two! {
            add: |a, b| intrinsics!(Self(_mm512_add_pd(a.0, b.0)));
            sub: |a, b| intrinsics!(Self(_mm512_sub_pd(a.0, b.0)));
            mul: |a, b| intrinsics!(Self(_mm512_mul_pd(a.0, b.0)));
            div: |a, b| intrinsics!(Self(_mm512_div_pd(a.0, b.0)));
            min: |a, b| intrinsics!(Self(_mm512_min_pd(a.0, b.0)));
            max: |a, b| intrinsics!(Self(_mm512_max_pd(a.0, b.0)));
        }

        #[inline(always)]
        fn sqrt(self) -> Self {
            intrinsics!(Self(_mm512_sqrt_pd(self.0)))
        }

        #[inline(always)]
        fn mul_add_exact(self, factor: Self, summand: Self) -> Self {
            intrinsics!(Self(_mm512_fmadd_pd(self.0, factor.0, summand.0)))
        }

        #[inline(always)]
        fn only(self, mask: u8) -> Self {
            intrinsics!(Self(_mm512_maskz_mov_pd(mask, self.0)))
        }

        #[inline(always)]
        fn truncate(self) -> [u32; 8] {
            let mut out = [0; 8];
            intrinsics!(_mm256_storeu_si256(out.as_mut_ptr().cast(), _mm512_cvttpd_epi32(self.0)));
            out
        }

        #[inline(always)]
        fn sum(self) -> f64 {
            intrinsics!(sum(_mm256_add_pd(
                _mm512_castpd512_pd256(self.0),
                _mm512_extractf64x4_pd::<1>(self.0)
            )))
        }
    }

    impl Eight for Avx2 {
        #[inline(always)]
        fn splat(value: f64) -> Self {
            intrinsics!(Self(_mm256_set1_pd(value), _mm256_set1_pd(value)))
        }

        #[inline(always)]
        fn load(from: &[f64; 8]) -> Self {
            intrinsics!(Self(_mm256_loadu_pd(from.as_ptr()), _mm256_loadu_pd(from[4..].as_ptr())))
        }

        #[inline(always)]
        fn load_f32(from: &[f32; 8]) -> Self {
            intrinsics!({
                let (low, high) = (_mm_loadu_ps(from.as_ptr()), _mm_loadu_ps(from[4..].as_ptr()));
                Self(_mm256_cvtps_pd(low), _mm256_cvtps_pd(high))
            })
        }

        #[inline(always)]
        fn store(self, to: &mut [f64; 8]) {
            intrinsics!({
                _mm256_storeu_pd(to.as_mut_ptr(), self.0);
                _mm256_storeu_pd(to[4..].as_mut_ptr(), self.1);
            });
        }

        of_two! {
            add: |a, b| intrinsics!(Self(_mm256_add_pd(a.0, b.0), _mm256_add_pd(a.1, b.1)));
            sub: |a, b| intrinsics!(Self(_mm256_sub_pd(a.0, b.0), _mm256_sub_pd(a.1, b.1)));
            mul: |a, b| intrinsics!(Self(_mm256_mul_pd(a.0, b.0), _mm256_mul_pd(a.1, b.1)));
            div: |a, b| intrinsics!(Self(_mm256_div_pd(a.0, b.0), _mm256_div_pd(a.1, b.1)));
            min: |a, b| intrinsics!(Self(_mm256_min_pd(a.0, b.0), _mm256_min_pd(a.1, b.1)));
            max: |a, b| intrinsics!(Self(_mm256_max_pd(a.0, b.0), _mm256_max_pd(a.1, b.1)));
        }

        #[inline(always)]
        fn sqrt(self) -> Self {
            intrinsics!(Self(_mm256_sqrt_pd(self.0), _mm256_sqrt_pd(self.1)))
        }

        #[inline(always)]
        fn mul_add_exact(self, factor: Self, summand: Self) -> Self {
            intrinsics!({
                Self(
                    _mm256_fmadd_pd(self.0, factor.0, summand.0),
                    _mm256_fmadd_pd(self.1, factor.1, summand.1),
                )
            })
        }

        #[inline(always)]
        fn only(self, mask: u8) -> Self {
            intrinsics!({
                let (low, high) = halves(mask);
                Self(_mm256_and_pd(self.0, low), _mm256_and_pd(self.1, high))
            })
        }

        #[inline(always)]
        fn truncate(self) -> [u32; 8] {
            let mut out = [0; 8];
            intrinsics!({
                _mm_storeu_si128(out.as_mut_ptr().cast(), _mm256_cvttpd_epi32(self.0));
                _mm_storeu_si128(out[4..].as_mut_ptr().cast(), _mm256_cvttpd_epi32(self.1));
            });
            out
        }

        #[inline(always)]
        fn sum(self) -> f64 {
            intrinsics!(sum(_mm256_add_pd(self.0, self.1)))
        }
    }

    /// Two registers, with all bits set in the lanes whose bit is set in `mask`.
    #[inline(always)]
    fn halves(mask: u8) -> (__m256d, __m256d) {
        intrinsics!({
            let mask = _mm256_set1_epi64x(i64::from(mask));
            let half = |bits| _mm256_castsi256_pd(_mm256_cmpeq_epi64(_mm256_and_si256(mask, bits), bits));
            (half(_mm256_setr_epi64x(1, 2, 4, 8)), half(_mm256_setr_epi64x(16, 32, 64, 128)))
        })
    }

    /// `(a + c) + (b + d)`.
    #[inline(always)]
    fn sum(lanes: __m256d) -> f64 {
        intrinsics!({
            let pair = _mm_add_pd(_mm256_castpd256_pd128(lanes), _mm256_extractf128_pd::<1>(lanes));
            _mm_cvtsd_f64(_mm_add_sd(pair, _mm_unpackhi_pd(pair, pair)))
        })
    }
}
