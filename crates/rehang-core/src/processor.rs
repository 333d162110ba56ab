//! The instruction set that the inner loops run with: one type that every crate asks, and how a loop is
//! compiled for each set.
//!
//! # Why not a crate for it
//!
//! `pulp`, which the matrix products use, detects the same levels and wraps the intrinsics of each. The
//! kernels here read through raw pointers, prefetch and mask, so their `unsafe` blocks would stay as they
//! are. `pulp` would only save the twenty lines below.

use std::sync::OnceLock;

/// An instruction set that this machine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Processor {
    /// Registers of 512 bits: AVX-512 F, BW, DQ and VL beside all of [`Processor::Avx2`].
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// Registers of 256 bits: AVX2, FMA, BMI1 and BMI2.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// The instructions of the compiler's target alone.
    Plain,
}

impl Processor {
    /// Lists every instruction set of this machine, the fastest first.
    pub fn available() -> Vec<Self> {
        let mut processors = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("bmi1")
                && is_x86_feature_detected!("bmi2");
            let avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            if avx2 && avx512 {
                processors.push(Self::Avx512);
            }
            if avx2 {
                processors.push(Self::Avx2);
            }
        }
        processors.push(Self::Plain);
        processors
    }

    /// Returns the fastest instruction set of this machine. The processor is asked once; later calls read one
    /// number.
    #[inline]
    pub fn detect() -> Self {
        static FASTEST: OnceLock<Processor> = OnceLock::new();
        *FASTEST.get_or_init(|| Self::available()[0])
    }
}

/// Defines functions whose bodies are compiled for every [`Processor`] and chosen at run time.
///
/// The body is plain Rust that the compiler turns into vector instructions. The compiler never fuses a
/// product and a sum that are written apart. So every version rounds alike, and the same numbers come out on
/// every processor.
///
/// ```
/// rehang_core::vectorised! {
///     /// `Σ aᵢ²`.
///     pub fn square(a: &[f32]) -> f32 {
///         a.iter().map(|value| value * value).sum()
///     }
/// }
/// assert_eq!(square(&[3.0, 4.0]), 25.0);
/// ```
#[macro_export]
macro_rules! vectorised {
    ($(
        $(#[$attribute:meta])*
        $visibility:vis fn $name:ident($($argument:ident: $kind:ty),* $(,)?) $(-> $result:ty)? $body:block
    )*) => {$(
        $(#[$attribute])*
        $visibility fn $name($($argument: $kind),*) $(-> $result)? {
            #[inline(always)]
            #[allow(clippy::inline_always, reason = "the body must be compiled inside each version below")]
            fn plain($($argument: $kind),*) $(-> $result)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2")]
            fn avx512($($argument: $kind),*) $(-> $result)? {
                plain($($argument),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,bmi1,bmi2")]
            fn avx2($($argument: $kind),*) $(-> $result)? {
                plain($($argument),*)
            }

            match $crate::Processor::detect() {
                // SAFETY: `detect` gives an instruction set that this machine has.
                #[cfg(target_arch = "x86_64")]
                $crate::Processor::Avx512 => unsafe { avx512($($argument),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::Processor::Avx2 => unsafe { avx2($($argument),*) },
                _ => plain($($argument),*),
            }
        }
    )*};
}
