//! The ways to fit an adapter, by name.

use std::fmt;
use std::str::FromStr;

use rehang::{Error, Result};
use serde::{Deserialize, Serialize};

/// A way to fit an adapter; [`Method::Auto`] tries all that apply and keeps the best.
///
/// ```
/// use rehang_fit::Method;
/// assert_eq!("low-rank".parse::<Method>()?, Method::LowRank);
/// assert!("best".parse::<Method>().unwrap_err().to_string().contains("fastfill-reference"));
/// # Ok::<(), rehang::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// Old vectors as they are, cut or padded with zeros.
    DoNothing,
    /// A rotation about the means.
    Procrustes,
    /// Ridge regression.
    Ridge,
    /// Reduced-rank regression.
    LowRank,
    /// Kernel ridge regression.
    KernelRidge,
    /// A residual network on top of a linear map.
    ResidualMlp,
    /// FCT: the mixer network, squared error alone.
    Fct,
    /// FastFill with scale-free losses in the new space's geometry.
    Fastfill,
    /// FastFill by the published recipe to the letter.
    FastfillReference,
    /// Every method that applies; the best on held-out pairs is kept.
    Auto,
}

impl Method {
    /// Every method, the simplest first.
    pub const ALL: [Self; 10] = [
        Self::DoNothing,
        Self::Procrustes,
        Self::Ridge,
        Self::LowRank,
        Self::KernelRidge,
        Self::ResidualMlp,
        Self::Fct,
        Self::Fastfill,
        Self::FastfillReference,
        Self::Auto,
    ];

    /// The name on the command line and in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::DoNothing => "do-nothing",
            Self::Procrustes => "procrustes",
            Self::Ridge => "ridge",
            Self::LowRank => "low-rank",
            Self::KernelRidge => "kernel-ridge",
            Self::ResidualMlp => "residual-mlp",
            Self::Fct => "fct",
            Self::Fastfill => "fastfill",
            Self::FastfillReference => "fastfill-reference",
            Self::Auto => "auto",
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Method {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|method| method.name() == text).ok_or_else(|| {
            Error::option("method", text, format!("one of {}", Self::ALL.map(Self::name).join(", ")))
        })
    }
}
