//! ArcFace and CosFace: cross-entropy over scaled cosines with a margin on the true class.
//!
//! With unit vectors `ĥ = h/‖h‖`, `ŵ_k = w_k/‖w_k‖`, cosines `c_k = ⟨ĥ, ŵ_k⟩ = cos θ_k`, scale `s` and margin
//! `m` (Deng et al. 2019, equation 3; `L_disc` of FastFill for faces):
//!
//! ```text
//! z_k = s·c_k  for k ≠ y        z_y = s·cos(θ_y + m) = s·(c_y·cos m − √(1 − c_y²)·sin m)
//! L = −log softmax(z)_y
//! ```
//!
//! Beyond `θ_y = π − m` the cosine would rise again and reward the wrong direction; there, as in the common
//! implementations, `z_y = s·(c_y − m·sin m)`.
//!
//! CosFace (Wang et al. 2018, equation 4) takes the margin off the cosine, `z_y = s·(c_y − m)`; with m = 0 it
//! is a normalised softmax.

use super::cross_entropy::cross_entropy_row;

/// Returns the loss of one row of cosines `[classes]`, clamped to [−1, 1]; they are replaced by the
/// derivative `∂L/∂c`.
///
/// At `c_y = ±1` the slope of `√(1 − c²)` is infinite; `1 − c²` is kept above 1e-6 there.
///
/// ```
/// use rehang_fit::objectives::arcface::arcface_row;
///
/// // Without a margin it is cross-entropy over s·c: ln(1 + e^(−2·(0.5 − 0.0))).
/// let mut cosines = [0.5, 0.0];
/// let loss = arcface_row(&mut cosines, 0, 2.0, 0.0);
/// assert!((loss - (1.0 + (-1.0f64).exp()).ln()).abs() < 1e-6);
/// ```
pub fn arcface_row(cosines: &mut [f32], label: usize, scale: f32, margin: f32) -> f64 {
    row(cosines, label, scale, |cosine| with_margin(cosine, margin))
}

/// Returns the loss of one row of cosines as [`arcface_row`], with CosFace's margin.
///
/// ```
/// use rehang_fit::objectives::arcface::cosface_row;
///
/// // A margin of 0.5 takes the true class to the other's cosine: ln 2.
/// let mut cosines = [0.5, 0.0];
/// assert!((cosface_row(&mut cosines, 0, 2.0, 0.5) - 2.0f64.ln()).abs() < 1e-6);
/// ```
pub fn cosface_row(cosines: &mut [f32], label: usize, scale: f32, margin: f32) -> f64 {
    row(cosines, label, scale, |cosine| (cosine - margin, 1.0))
}

/// Computes the loss of one row; `with_margin` returns the number in place of the true class's cosine, and
/// its slope.
fn row(cosines: &mut [f32], label: usize, scale: f32, with_margin: impl Fn(f32) -> (f32, f32)) -> f64 {
    for cosine in &mut *cosines {
        *cosine = cosine.clamp(-1.0, 1.0);
    }
    let (true_cosine, slope) = with_margin(cosines[label]);
    for cosine in &mut *cosines {
        *cosine *= scale;
    }
    cosines[label] = scale * true_cosine;
    let loss = cross_entropy_row(cosines, label, 0.0);
    for derivative in &mut *cosines {
        *derivative *= scale;
    }
    cosines[label] *= slope;
    loss
}

/// Returns `cos(θ + m)` of `cos θ`, with the guard beyond π − m, and its derivative with respect to `cos θ`.
///
/// ```
/// use rehang_fit::objectives::arcface::with_margin;
///
/// // Without a margin it is the cosine itself.
/// assert_eq!(with_margin(0.5, 0.0), (0.5, 1.0));
/// ```
pub fn with_margin(cosine: f32, margin: f32) -> (f32, f32) {
    if cosine <= (std::f32::consts::PI - margin).cos() {
        return (cosine - margin * margin.sin(), 1.0);
    }
    let sine = (1.0 - cosine * cosine).max(1e-6).sqrt();
    (cosine * margin.cos() - sine * margin.sin(), margin.cos() + cosine / sine * margin.sin())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::finite_differences::{check, numbers};

    #[test]
    fn a_margin_computed_by_hand() {
        // θ = π/3, m = π/6: cos(θ + m) = cos(π/2) = 0; the other class has cosine 0 as well.
        let mut cosines = [0.5, 0.0];
        let loss = arcface_row(&mut cosines, 0, 10.0, std::f32::consts::PI / 6.0);
        assert!((loss - 2f64.ln()).abs() < 1e-5);
    }

    #[test]
    fn gradients_agree_with_finite_differences_on_both_sides_of_the_guard() {
        for true_cosine in [0.6, -0.3, -0.95] {
            let mut cosines: Vec<f32> = numbers(5, 9).into_iter().map(|value| 0.8 * value).collect();
            cosines[2] = true_cosine;
            let mut gradient = cosines.clone();
            arcface_row(&mut gradient, 2, 8.0, 0.5);
            check(&cosines, &gradient, 2e-3, |at| arcface_row(&mut at.to_vec(), 2, 8.0, 0.5));
            let mut gradient = cosines.clone();
            cosface_row(&mut gradient, 2, 8.0, 0.35);
            check(&cosines, &gradient, 2e-3, |at| cosface_row(&mut at.to_vec(), 2, 8.0, 0.35));
        }
    }
}
