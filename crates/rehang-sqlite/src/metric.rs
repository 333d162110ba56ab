//! Distances inside the graph, at the speed of this processor.
//!
//! The library's own distances are compiled for the plainest processor of its kind; these are compiled for
//! wider registers too. The kernel of a graph is chosen once, since a call takes no longer than the choice.
//! The kernels only find candidates, whose distances are measured again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rehang_core::{Distance, Processor, Space};
use usearch::MetricKind;

/// Function that compares two vectors; both pointers lead to as many numbers as the space has coordinates.
pub(crate) type Metric = Box<dyn Fn(*const f32, *const f32) -> f32 + Send + Sync>;

/// Distance of a space as a graph without a [lift](Lift) counts it.
pub(crate) struct Counted {
    /// Name of the library's own distance, which the file of a graph keeps.
    pub(crate) library: MetricKind,
    kernel: Kind,
    /// Number that the graph counts for a distance of 0.
    pub(crate) zero: f32,
}

impl Counted {
    /// Tells how the graph counts the distance of a space: inner products from 1 downwards.
    pub(crate) fn of(space: &Space) -> Self {
        let (library, kernel, zero) = match space.distance {
            Distance::L2 => (MetricKind::L2sq, Kind::Differences, 0.0),
            // Vectors have length 1: there is nothing to divide by, up to a tolerance that no order of
            // candidates needs.
            Distance::Cosine if space.normalised => (MetricKind::Cos, Kind::Products, 0.0),
            Distance::Cosine => (MetricKind::Cos, Kind::Angle, 0.0),
            Distance::Dot => (MetricKind::IP, Kind::Products, 1.0),
        };
        Self { library, kernel, zero }
    }
}

/// Function that compares vectors of a space as [`Counted`] says.
pub(crate) fn metric(space: &Space) -> Metric {
    let (dimension, kernel) = (space.dimension, kernel(Counted::of(space).kernel));
    Box::new(move |left, right| {
        // SAFETY: the graph was made for vectors of this many coordinates and calls with two of them. They
        // are read as bytes, since it promises no alignment. The kernel was chosen for this processor.
        unsafe {
            let left = std::slice::from_raw_parts(left.cast::<Number>(), dimension);
            let right = std::slice::from_raw_parts(right.cast::<Number>(), dimension);
            kernel(left, right)
        }
    })
}

/// Lift of vectors of different lengths, which makes inner products a distance for the graph to be built by.
///
/// A graph links vectors that are near to each other. By inner products a vector is not even near to itself:
/// the longest vectors are linked, and most others are not found. So vectors are lifted onto a sphere by one
/// more coordinate, `√(M² − ‖v‖²)` with M the largest length; a query's is 0. Then `‖q‖² + M² − 2⟨q, v⟩` puts
/// vectors in the order of their inner products.
///
/// M grows with the graph, so `‖v‖²` is kept in the place of that coordinate. A number below 0 there marks a
/// query: it is compared by the inner product itself, which does not depend on M.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lift {
    /// M², as bits: those of positive numbers are in the order of the numbers.
    longest: Arc<AtomicU32>,
    /// Smallest `‖v‖²`, its bits turned over, so that it grows from 0 where there is none.
    shortest: Arc<AtomicU32>,
}

impl Lift {
    /// Whether vectors of a space are lifted.
    pub(crate) fn is_for(space: &Space) -> bool {
        !space.finds_itself()
    }

    /// Makes a lift from M² and the smallest `‖v‖²` of an earlier one.
    pub(crate) fn with(longest: f32, shortest: f32) -> Self {
        let [longest, shortest] =
            [longest.to_bits(), !shortest.to_bits()].map(|bits| Arc::new(AtomicU32::new(bits)));
        Self { longest, shortest }
    }

    /// Smallest `‖v‖²`; 0 where there is no vector.
    pub(crate) fn shortest(&self) -> f32 {
        match self.shortest.load(Ordering::Relaxed) {
            0 => 0.0,
            bits => f32::from_bits(!bits),
        }
    }

    /// Whether some vectors are longer than others, by more than what rounding leaves of length 1.
    pub(crate) fn lengths_differ(&self) -> bool {
        self.longest() > 1.01 * self.shortest()
    }

    /// M², the largest `‖v‖²`.
    pub(crate) fn longest(&self) -> f32 {
        f32::from_bits(self.longest.load(Ordering::Relaxed))
    }

    /// Makes the vector of an item as it stands in the graph.
    pub(crate) fn item(&self, vector: &[f32]) -> Vec<f32> {
        let squared = vector.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>() as f32;
        self.longest.fetch_max(squared.to_bits(), Ordering::Relaxed);
        self.shortest.fetch_max(!squared.to_bits(), Ordering::Relaxed);
        vector.iter().copied().chain([squared]).collect()
    }

    /// Makes the vector of a query as the graph is asked.
    pub(crate) fn query(vector: &[f32]) -> Vec<f32> {
        vector.iter().copied().chain([-1.0]).collect()
    }

    /// Function that compares vectors as [`Lift::item`] and [`Lift::query`] make them.
    pub(crate) fn metric(&self, space: &Space) -> Metric {
        let (dimension, kernel, lift) = (space.dimension, kernel(Kind::Sums), self.clone());
        Box::new(move |left, right| {
            // SAFETY: as in [`metric`], with one number more.
            let (left, right) = unsafe {
                let numbers_at =
                    |vector: *const f32| std::slice::from_raw_parts(vector.cast::<Number>(), dimension + 1);
                (numbers_at(left), numbers_at(right))
            };
            // SAFETY: the kernel was chosen for this processor.
            let product = unsafe { kernel(&left[..dimension], &right[..dimension]) };
            let [left, right] = [left, right].map(|vector| f32::from_ne_bytes(vector[dimension]));
            if left < 0.0 || right < 0.0 {
                return -product;
            }
            let longest = lift.longest();
            let [up_left, up_right] = [left, right].map(|squared| (longest - squared).max(0.0).sqrt());
            left + right - 2.0 * product + (up_left - up_right).powi(2)
        })
    }
}

/// Bytes of an `f32` that may lie anywhere.
type Number = [u8; 4];

type Kernel = unsafe fn(&[Number], &[Number]) -> f32;

#[derive(Debug, Clone, Copy)]
enum Kind {
    Differences,
    Products,
    Sums,
    Angle,
}

const LANES: usize = 16;

/// Module of kernels compiled for one processor.
macro_rules! kernels {
    ($name:ident, $attribute:meta) => {
        mod $name {
            use super::{Kernel, Kind, Number};

            pub(super) fn kernel_of(kind: Kind) -> Kernel {
                match kind {
                    Kind::Differences => differences,
                    Kind::Products => products,
                    Kind::Sums => sums,
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
            fn sums(left: &[Number], right: &[Number]) -> f32 {
                super::sum(left, right, |a, b| a * b)
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
        Processor::Avx512 => avx512::kernel_of(kind),
        #[cfg(target_arch = "x86_64")]
        Processor::Avx2 => avx2::kernel_of(kind),
        _ => plain::kernel_of(kind),
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
    let rest_sum: f32 = left_rest
        .iter()
        .zip(right_rest)
        .map(|(&left, &right)| term(f32::from_ne_bytes(left), f32::from_ne_bytes(right)))
        .sum();
    rest_sum + sums.iter().sum::<f32>()
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
                    let slow = exact::distance(distance, left, right) + Counted::of(&space).zero;
                    let fast = metric(left.as_ptr(), right.as_ptr());
                    assert!((slow - fast).abs() < 1e-4, "{distance} of {dimension}: {slow} and {fast}");
                }
            }
        }
    }
}
