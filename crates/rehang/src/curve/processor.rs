//! Which instruction set the inner loops are compiled for.

/// An instruction set that this machine has; every one of them gives the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Processor {
    /// Eight `f64` a register.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// Four `f64` a register.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// What the compiler's target has.
    Plain,
}

impl Processor {
    /// Every instruction set of this machine, the fastest first.
    pub(crate) fn available() -> Vec<Self> {
        let mut found = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            let avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            if avx2 && avx512 {
                found.push(Self::Avx512);
            }
            if avx2 {
                found.push(Self::Avx2);
            }
        }
        found.push(Self::Plain);
        found
    }

    /// The fastest instruction set of this machine.
    pub(crate) fn detect() -> Self {
        Self::available()[0]
    }
}
