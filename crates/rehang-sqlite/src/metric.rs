//! Distances inside the graph, at the speed of this processor.
//!
//! The library's own are compiled for the plainest processor of its kind; these are compiled for wider registers too. The
//! kernel of a graph is chosen once, since a call takes no longer than the choice. They only find candidates, whose
//! distances are measured again.

use rehang::{Distance, Processor, Space};

/// Compares two vectors; both pointers lead to as many numbers as the space has coordinates.
pub(crate) type Metric = Box<dyn Fn(*const f32, *const f32) -> f32 + Send + Sync>;

/// The distance of a space as the graph counts it: inner products from 1 downwards.
pub(crate) fn metric(space: &Space) -> Metric {
    let dimension = space.dimension;
    let kernel = kernel(match space.distance {
        Distance::L2 => Kind::Differences,
        // Of length 1: there is nothing to divide by, up to a tolerance that no order of candidates needs.
        Distance::Cosine if space.normalised => Kind::Products,
        Distance::Cosine => Kind::Angle,
        Distance::Dot => Kind::Products,
    });
    Box::new(move |left, right| {
        // SAFETY: the graph was made for vectors of this many coordinates and calls with two of them. They are read as
        // bytes, since it promises no alignment. The kernel was chosen for this processor.
        unsafe {
            let left = std::slice::from_raw_parts(left.cast::<Number>(), dimension);
            let right = std::slice::from_raw_parts(right.cast::<Number>(), dimension);
            kernel(left, right)
        }
    })
}

/// An `f32` that may lie anywhere.
type Number = [u8; 4];

type Kernel = unsafe fn(&[Number], &[Number]) -> f32;

#[derive(Debug, Clone, Copy)]
enum Kind {
    Differences,
    Products,
    Angle,
}

const LANES: usize = 16;

/// The kernels compiled for one processor.
macro_rules! kernels {
    ($name:ident, $attribute:meta) => {
        mod $name {
            use super::{Kernel, Kind, Number};

            pub(super) fn of(kind: Kind) -> Kernel {
                match kind {
                    Kind::Differences => differences,
                    Kind::Products => products,
                    Kind::Angle => angle,
                }
            }

            #[$attribute]
            fn differences(left: &[Number], right: &[Number]) -> f32 {
                super::differences(left, right)
            }

            #[$attribute]
            fn products(left: &[Number], right: &[Number]) -> f32 {
                super::products(left, right)
            }

            #[$attribute]
            fn angle(left: &[Number], right: &[Number]) -> f32 {
                super::angle(left, right)
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
kernels!(avx512, target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2"));
#[cfg(target_arch = "x86_64")]
kernels!(avx2, target_feature(enable = "avx2,fma,bmi1,bmi2"));
kernels!(plain, inline);

fn kernel(kind: Kind) -> Kernel {
    match Processor::detect() {
        #[cfg(target_arch = "x86_64")]
        Processor::Avx512 => avx512::of(kind),
        #[cfg(target_arch = "x86_64")]
        Processor::Avx2 => avx2::of(kind),
        _ => plain::of(kind),
    }
}

/// Adds up a term over all coordinates, in lanes that the compiler puts into registers.
#[inline(always)]
#[allow(clippy::inline_always, reason = "the body must be compiled inside each version above")]
fn sum(left: &[Number], right: &[Number], term: impl Fn(f32, f32) -> f32) -> f32 {
    let (left_lanes, left_rest) = left.as_chunks::<LANES>();
    let (right_lanes, right_rest) = right.as_chunks::<LANES>();
    let mut sums = [0.0_f32; LANES];
    for (left, right) in left_lanes.iter().zip(right_lanes) {
        for lane in 0..LANES {
            sums[lane] += term(f32::from_ne_bytes(left[lane]), f32::from_ne_bytes(right[lane]));
        }
    }
    let rest: f32 = left_rest
        .iter()
        .zip(right_rest)
        .map(|(&left, &right)| term(f32::from_ne_bytes(left), f32::from_ne_bytes(right)))
        .sum();
    rest + sums.iter().sum::<f32>()
}

#[inline(always)]
#[allow(clippy::inline_always, reason = "the body must be compiled inside each version above")]
fn differences(left: &[Number], right: &[Number]) -> f32 {
    sum(left, right, |a, b| (a - b) * (a - b))
}

#[inline(always)]
#[allow(clippy::inline_always, reason = "the body must be compiled inside each version above")]
fn products(left: &[Number], right: &[Number]) -> f32 {
    1.0 - sum(left, right, |a, b| a * b)
}

#[inline(always)]
#[allow(clippy::inline_always, reason = "the body must be compiled inside each version above")]
fn angle(left: &[Number], right: &[Number]) -> f32 {
    let lengths = sum(left, left, |a, b| a * b).sqrt() * sum(right, right, |a, b| a * b).sqrt();
    if lengths > 0.0 { 1.0 - sum(left, right, |a, b| a * b) / lengths } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};

    use rehang_store::exact;

    use super::*;

    #[test]
    fn every_kernel_measures_what_the_slow_loop_does() {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(3);
        for dimension in [1, 15, 16, 17, 100] {
            for distance in Distance::ALL {
                let space = Space::new("m", dimension, distance, false);
                let metric = metric(&space);
                let mut vector =
                    || -> Vec<f32> { (0..dimension).map(|_| rng.random_range(-1.0..1.0)).collect() };
                let (left, right, zero) = (vector(), vector(), vec![0.0; dimension]);
                for (left, right) in [(&left, &right), (&left, &left), (&left, &zero)] {
                    let shift = if distance == Distance::Dot { 1.0 } else { 0.0 };
                    let slow = exact::distance(distance, left, right) + shift;
                    let fast = metric(left.as_ptr(), right.as_ptr());
                    assert!((slow - fast).abs() < 1e-4, "{distance} of {dimension}: {slow} and {fast}");
                }
            }
        }
    }
}
