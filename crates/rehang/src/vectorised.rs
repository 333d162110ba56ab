//! Loops compiled several times, once for each width of vector registers, and chosen at run time.
//!
//! The body is plain Rust that the compiler turns into vector instructions. Fused multiply-add is deliberately not
//! enabled: without it every version rounds alike, so the same numbers come out on every processor and only the
//! matrix products depend on the kernel that `gemm` chooses.

/// Defines a function whose body is compiled for plain x86-64, AVX2 and AVX-512 (elsewhere: once).
#[macro_export]
macro_rules! vectorised {
    ($(#[$attribute:meta])* $visibility:vis fn $name:ident($($argument:ident: $kind:ty),* $(,)?) $body:block) => {
        $(#[$attribute])*
        $visibility fn $name($($argument: $kind),*) {
            #[inline(always)]
            #[allow(clippy::inline_always, reason = "the body must be compiled inside each version below")]
            fn plain($($argument: $kind),*) $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2")]
                fn wide($($argument: $kind),*) {
                    plain($($argument),*);
                }
                #[target_feature(enable = "avx2")]
                fn medium($($argument: $kind),*) {
                    plain($($argument),*);
                }
                if std::arch::is_x86_feature_detected!("avx512f")
                    && std::arch::is_x86_feature_detected!("avx512vl")
                    && std::arch::is_x86_feature_detected!("avx512dq")
                    && std::arch::is_x86_feature_detected!("avx512bw")
                {
                    // SAFETY: the processor has just said that it knows these instructions.
                    unsafe { wide($($argument),*) };
                    return;
                }
                if std::arch::is_x86_feature_detected!("avx2") {
                    // SAFETY: the processor has just said that it knows these instructions.
                    unsafe { medium($($argument),*) };
                    return;
                }
            }
            plain($($argument),*);
        }
    };
}
