//! Classifier heads: the last layer of the new (or old) model, which turns a vector into class logits.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::check::{check_finite, expect_count};
use crate::error::{Error, Result};
use crate::vectors::Matrix;

/// Kind of a head: how it turns a vector `v` into logits.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HeadKind {
    /// `W v + b`, trained with cross-entropy.
    #[default]
    Softmax,
    /// `scale · ⟨w_y, v⟩ / (‖w_y‖·‖v‖)` with an angular margin on the true class while training (ArcFace).
    ArcFace {
        /// Scale s (the papers use 64 for faces, 30 for landmarks).
        scale: f32,
        /// Angular margin m in radians (0.5 for faces, 0.3 for landmarks).
        margin: f32,
    },
    /// `scale · ⟨w_y, v⟩ / (‖w_y‖·‖v‖)`, less `scale · margin` on the true class while training (CosFace).
    /// With a margin of 0 it is a normalised softmax.
    CosFace {
        /// Scale s.
        scale: f32,
        /// Margin m of the cosine (0.35 for faces).
        margin: f32,
    },
}

impl HeadKind {
    /// The scale of a head of cosines; `None` for a softmax of products.
    pub fn scale(self) -> Option<f32> {
        match self {
            Self::Softmax => None,
            Self::ArcFace { scale, .. } | Self::CosFace { scale, .. } => Some(scale),
        }
    }
}

/// Parses `softmax`, `normalised-softmax:SCALE`, `arcface:SCALE,MARGIN` or `cosface:SCALE,MARGIN`, with a
/// finite scale above 0 and a margin from 0 to below 1.6.
impl FromStr for HeadKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if text == "softmax" {
            return Ok(Self::Softmax);
        }
        let parsed = text.split_once(':').and_then(|(form, numbers)| {
            let (scale, margin) = match form {
                "normalised-softmax" => (numbers, "0"),
                _ => numbers.split_once(',')?,
            };
            let (scale, margin): (f32, f32) = (scale.parse().ok()?, margin.parse().ok()?);
            let is_sound = scale.is_finite() && scale > 0.0 && (0.0..1.6).contains(&margin);
            match form {
                _ if !is_sound => None,
                "arcface" => Some(Self::ArcFace { scale, margin }),
                "cosface" | "normalised-softmax" => Some(Self::CosFace { scale, margin }),
                _ => None,
            }
        });
        parsed.ok_or_else(|| {
            let expected = "softmax, normalised-softmax:SCALE, cosface:SCALE,MARGIN or arcface:SCALE,MARGIN (for example arcface:64,0.5)";
            Error::option("head_kind", text, expected)
        })
    }
}

/// A frozen classifier head: weight `[classes, d]`, bias `[classes]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Head {
    weight: Matrix,
    bias: Vec<f32>,
    kind: HeadKind,
}

impl Head {
    /// Builds a head from its weight and bias; a missing bias counts as zeros.
    ///
    /// # Errors
    ///
    /// [`crate::ErrorKind::Empty`] without classes, [`crate::ErrorKind::CountMismatch`] where the bias has
    /// another length, [`crate::ErrorKind::NotFinite`] for NaN or infinite weights.
    pub fn new(weight: Matrix, bias: Option<Vec<f32>>, kind: HeadKind) -> Result<Self> {
        let bias = bias.unwrap_or_else(|| vec![0.0; weight.rows()]);
        if weight.rows() == 0 {
            return Err(Error::empty("head weight"));
        }
        weight.check_finite("head weight")?;
        expect_count("head weight", weight.rows(), "head bias", bias.len())?;
        check_finite("head bias", &bias, bias.len(), 0)?;
        Ok(Self { weight, bias, kind })
    }

    /// Weight, `[classes, d]`.
    pub fn weight(&self) -> &Matrix {
        &self.weight
    }

    /// Bias, `[classes]`.
    pub fn bias(&self) -> &[f32] {
        &self.bias
    }

    /// Kind of the head: how it makes logits.
    pub fn kind(&self) -> HeadKind {
        self.kind
    }

    /// Number of classes.
    pub fn classes(&self) -> usize {
        self.weight.rows()
    }

    /// Width of the vectors that the head takes.
    pub fn dimension(&self) -> usize {
        self.weight.columns()
    }
}
