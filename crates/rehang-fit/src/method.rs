//! Methods to fit an adapter, by name.

use serde::{Deserialize, Serialize};

rehang_core::named! {
    /// A way to fit an adapter; [`Method::Auto`] compares the closed forms that apply and keeps the best.
    ///
    /// ```
    /// use rehang_fit::Method;
    /// assert_eq!("low-rank".parse::<Method>()?, Method::LowRank);
    /// assert!("best".parse::<Method>().unwrap_err().to_string().contains("fastfill-reference"));
    /// # Ok::<(), rehang_core::Error>(())
    /// ```
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Method ("method") {
        /// Old vectors as they are, cut or padded with zeros.
        DoNothing = "do-nothing",
        /// A rotation about the means.
        Procrustes = "procrustes",
        /// Ridge regression.
        Ridge = "ridge",
        /// Reduced-rank regression.
        LowRank = "low-rank",
        /// Kernel ridge regression.
        KernelRidge = "kernel-ridge",
        /// Kernel ridge regression for each of two kinds of old vectors, where there are two; a gate tells
        /// them apart.
        PerKind = "per-kind",
        /// A residual network on top of a linear map.
        ResidualMlp = "residual-mlp",
        /// FCT: the mixer network, squared error alone.
        Fct = "fct",
        /// FastFill with scale-free losses in the new space's geometry.
        Fastfill = "fastfill",
        /// FastFill by the published recipe to the letter.
        FastfillReference = "fastfill-reference",
        /// Every closed form that applies; the best on held-out pairs is kept.
        #[default]
        Auto = "auto",
    }
}

impl Method {
    /// The methods that train a network, whose fit takes minutes where others take seconds. [`Method::Auto`]
    /// leaves them out unless
    /// [`crate::NetworkOptions::networks`] asks for them.
    pub const NETWORKS: [Self; 4] = [Self::ResidualMlp, Self::Fct, Self::Fastfill, Self::FastfillReference];
}
