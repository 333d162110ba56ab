//! Thresholds of a folder against the order that sorts everything.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rehang_core::Progress;
use rehang_core::order::Order;
use rehang_files::VectorSource;
use rehang_files::thresholds::{Budget, ThresholdFiles, Thresholds, find_thresholds};

fn cuts_of(partitions: &[Vec<f32>], first: &[Budget]) -> rehang_core::Result<Thresholds> {
    let folder = tempfile::tempdir().unwrap();
    let sigma = folder.path().join("sigma");
    for (number, values) in partitions.iter().enumerate() {
        let day = sigma.join(format!("day={}", number / 3));
        fs_err::create_dir_all(&day).unwrap();
        rehang_files::write_f32(day.join(format!("part-{number:03}.npy")), values).unwrap();
    }
    let output = folder.path().join("cuts.json");
    let made = find_thresholds(
        &ThresholdFiles {
            sigma: vec![VectorSource::path(sigma).into()],
            first: first.to_vec(),
            output: output.clone(),
        },
        &Progress::default(),
    );
    assert_eq!(output.exists(), made.is_ok());
    made
}

#[test]
fn a_cut_takes_exactly_the_first_of_the_sorted_order() {
    let mut random = ChaCha8Rng::seed_from_u64(7);
    for round in 0..40 {
        let mut partitions = Vec::new();
        for _ in 0..random.random_range(1..8) {
            let rows = random.random_range(1..300);
            let values = (0..rows).map(|_| match round % 4 {
                // Four kinds of numbers: many ties; many orders of magnitude; neighbours in the last bits;
                // negative numbers and both zeros.
                0 => (random.random_range(0..4) as f32) * 0.25,
                1 => 10_f32.powf(random.random_range(-30.0..30.0)),
                2 => f32::from_bits(0x3f80_ffc0 + random.random_range(0..128)),
                _ => [-1.5, -0.0, 0.0, random.random_range(-1.0..1.0)][random.random_range(0..4)],
            });
            partitions.push(values.collect::<Vec<f32>>());
        }
        let all: Vec<f32> = partitions.concat();
        let order = Order::by_scores(all.iter().copied().map(f64::from).collect(), "σ²").unwrap();
        let first =
            [Budget::Items(1), Budget::Percent(0.1), Budget::Percent(37.5), Budget::Items(all.len() as u64)];
        for cut in cuts_of(&partitions, &first).unwrap().cuts {
            let mut ties = 0;
            let mut taken: Vec<usize> = (0..all.len())
                .filter(|&item| {
                    let is_tie = f64::from(all[item]) == cut.threshold;
                    ties += u64::from(is_tie);
                    f64::from(all[item]) > cut.threshold || (is_tie && ties <= cut.ties_taken)
                })
                .collect();
            let mut expected = order.permutation[..cut.items as usize].to_vec();
            taken.sort_unstable();
            expected.sort_unstable();
            assert_eq!(taken, expected, "round {round}: {cut:?}");
            assert_eq!((cut.ties, cut.above + cut.ties_taken), (ties, cut.items));
        }
    }
}

#[test]
fn what_has_no_place_and_budgets_beyond_the_gallery_are_refused() {
    let partitions = [vec![1.0, 2.0], vec![3.0, f32::NAN]];
    let message = cuts_of(&partitions, &[Budget::Items(1)]).unwrap_err().to_string();
    assert!(message.contains("part-001.npy, row 1"), "{message}");
    let message = cuts_of(&partitions[..1], &[Budget::Items(3)]).unwrap_err().to_string();
    assert!(message.contains("at most the 2 items"), "{message}");
    assert!(cuts_of(&partitions[..1], &[]).is_err());
    for text in ["", "%", "-1", "101%", "nan%", "0", "ten"] {
        assert!(text.parse::<Budget>().is_err(), "{text}");
    }
}
