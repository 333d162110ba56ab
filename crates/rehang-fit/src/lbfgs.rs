//! L-BFGS for the smooth, convex problems that come up beside the adapters.

use std::collections::VecDeque;

use rehang_core::{ErrorKind, Progress, Result};

/// Number of steps that the curvature is remembered for.
const MEMORY: usize = 10;

/// Minimises a smooth convex function by L-BFGS with backtracking (Nocedal and Wright 2006, algorithm 7.5).
///
/// `evaluate` gives the value at a point and writes the gradient. The search ends when the largest gradient
/// coordinate is below `tolerance`, after `iterations_max` steps, or when no step lowers the value any more
/// (the end of what rounding allows).
///
/// # Errors
///
/// [`ErrorKind::Diverged`] where the value is not finite at the starting point, [`ErrorKind::Cancelled`].
pub(crate) fn minimise(
    mut x: Vec<f64>,
    mut evaluate: impl FnMut(&[f64], &mut [f64]) -> f64,
    tolerance: f64,
    iterations_max: usize,
    progress: &Progress,
) -> Result<Vec<f64>> {
    let mut gradient = vec![0.0; x.len()];
    let mut value = evaluate(&x, &mut gradient);
    if !value.is_finite() {
        return Err(ErrorKind::Diverged { what: "L-BFGS".into(), step: 0 }.into());
    }
    let mut memory: VecDeque<(Vec<f64>, Vec<f64>, f64)> = VecDeque::with_capacity(MEMORY);
    for _ in 0..iterations_max {
        progress.check()?;
        if gradient.iter().all(|component| component.abs() < tolerance) {
            break;
        }
        let mut direction = descent(&gradient, &memory);
        let mut slope = dot(&direction, &gradient);
        if slope >= 0.0 {
            memory.clear();
            direction = gradient.iter().map(|component| -component).collect();
            slope = dot(&direction, &gradient);
        }
        // The first step has no curvature to go by; its length is that of a unit step along the gradient.
        let mut step = if memory.is_empty() { 1.0 / (-slope).sqrt().max(1.0) } else { 1.0 };
        let mut moved = None;
        for _ in 0..40 {
            let next: Vec<f64> = x.iter().zip(&direction).map(|(a, d)| a + step * d).collect();
            let mut next_gradient = vec![0.0; x.len()];
            let next_value = evaluate(&next, &mut next_gradient);
            if next_value.is_finite() && next_value <= value + 1e-4 * step * slope {
                moved = Some((next, next_value, next_gradient));
                break;
            }
            step *= 0.5;
        }
        let Some((next, next_value, next_gradient)) = moved else { break };
        let s: Vec<f64> = next.iter().zip(&x).map(|(a, b)| a - b).collect();
        let y: Vec<f64> = next_gradient.iter().zip(&gradient).map(|(a, b)| a - b).collect();
        let curvature = dot(&s, &y);
        if curvature > 1e-12 * dot(&y, &y) {
            if memory.len() == MEMORY {
                memory.pop_front();
            }
            memory.push_back((s, y, 1.0 / curvature));
        }
        (x, value, gradient) = (next, next_value, next_gradient);
    }
    Ok(x)
}

/// Returns minus the gradient, seen through the curvature of the last steps: the two-loop recursion.
fn descent(gradient: &[f64], memory: &VecDeque<(Vec<f64>, Vec<f64>, f64)>) -> Vec<f64> {
    let mut q: Vec<f64> = gradient.iter().map(|component| -component).collect();
    let mut alphas = Vec::with_capacity(memory.len());
    for (s, y, rho) in memory.iter().rev() {
        let alpha = rho * dot(s, &q);
        q.iter_mut().zip(y).for_each(|(q, y)| *q -= alpha * y);
        alphas.push(alpha);
    }
    if let Some((_, y, rho)) = memory.back() {
        let scale = 1.0 / (rho * dot(y, y));
        for q in &mut q {
            *q *= scale;
        }
    }
    for ((s, y, rho), alpha) in memory.iter().zip(alphas.into_iter().rev()) {
        let beta = rho * dot(y, &q);
        q.iter_mut().zip(s).for_each(|(q, s)| *q += (alpha - beta) * s);
    }
    q
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretched_bowl_is_walked_to_its_bottom() {
        let centre = [1.0, -2.0, 3.0, 0.5];
        let scale = [1.0, 100.0, 0.01, 10.0];
        let evaluate = |x: &[f64], gradient: &mut [f64]| {
            let mut value = 0.0;
            for i in 0..4 {
                value += 0.5 * scale[i] * (x[i] - centre[i]).powi(2);
                gradient[i] = scale[i] * (x[i] - centre[i]);
            }
            value
        };
        let x = minimise(vec![0.0; 4], evaluate, 1e-9, 200, &Progress::default()).unwrap();
        assert!(x.iter().zip(centre).all(|(a, b)| (a - b).abs() < 1e-6));
    }

    #[test]
    fn a_stop_is_heard() {
        let progress = Progress::default();
        progress.cancel();
        let result = minimise(
            vec![1.0],
            |x, g| {
                g[0] = x[0];
                x[0] * x[0] / 2.0
            },
            1e-9,
            5,
            &progress,
        );
        assert!(result.unwrap_err().is_cancelled());
    }
}
