//! Finds faults before money is spent: sources that a model refuses or makes nothing of, and vectors that a
//! service cut.

use rehang_core::finding::{Finding, FindingCode};
use rehang_core::{Provenance, Result, Space, norm};
use rehang_encode::{Cut, HttpConfig, Lengths, peculiar};
use rehang_store::{Ledger, Scan, Select};

use crate::live::sample;

/// Most sources that are looked at: all of most galleries, in seconds.
const SOURCES_MAX: usize = 200_000;
const PAGE: usize = 4096;
/// Most items that a finding names for a kind of fault.
const NAMED: usize = 3;
/// Most new vectors whose lengths are looked at.
const VECTORS_MAX: usize = 256;
/// Factor by which the longest vector has to be longer than the shortest for lengths to differ.
const LENGTHS_MIN: f64 = 1.01;

/// Finds sources of a gallery that are blank, hold a NUL character or are too long.
///
/// Blank ones and those with a NUL character are counted and named. A source is too long where a service is
/// known to read only its start (`cut`), or where a model of this machine does (`lengths`). Only the first
/// 200,000 sources are read, and the finding says so where there are more.
pub(crate) fn sources(
    store: &dyn Ledger,
    space: &str,
    cut: Option<Cut>,
    mut lengths: Option<Lengths>,
) -> Result<Vec<Finding>> {
    let (mut looked_at, mut is_all) = (0, false);
    let (mut is_cut, mut may_be_cut) = (0_u64, 0_u64);
    let mut faults: Vec<(&'static str, u64, Vec<String>)> = Vec::new();
    let mut walk = Some(Scan::new(space, Select::All, PAGE));
    while looked_at < SOURCES_MAX {
        let Some(page) = walk else {
            is_all = true;
            break;
        };
        let records = store.scan(&page)?;
        walk = page.following(&records);
        looked_at += records.len();
        for item in records.into_iter().map(|record| record.item) {
            if let (Some(Cut { read, cut }), Some(source)) = (cut, &item.source) {
                let characters = if source.len() > read { source.chars().count() } else { 0 };
                is_cut += u64::from(characters > cut);
                may_be_cut += u64::from(characters > read && characters <= cut);
            }
            if let (Some(lengths), Some(source)) = (&mut lengths, &item.source) {
                lengths.count(source);
            }
            let Some(why) = item.source.as_deref().and_then(peculiar) else { continue };
            let at = faults.iter().position(|(fault, ..)| *fault == why).unwrap_or_else(|| {
                faults.push((why, 0, Vec::new()));
                faults.len() - 1
            });
            let (_, count, named) = &mut faults[at];
            *count += 1;
            if named.len() < NAMED {
                named.push(item.id);
            }
        }
    }
    let looked_at_text =
        if is_all { String::new() } else { format!("The first {looked_at} items were looked at. ") };
    let mut findings: Vec<Finding> = cut
        .filter(|_| is_cut + may_be_cut > 0)
        .map(|cut| cut_sources(cut, is_cut, may_be_cut, &looked_at_text))
        .into_iter()
        .chain(lengths.iter().flat_map(Lengths::findings))
        .collect();
    if faults.is_empty() {
        return Ok(findings);
    }
    let clauses = faults.iter().map(|(why, count, named)| {
        let more = if *count > named.len() as u64 { ", …" } else { "" };
        let items = if *count == 1 { "item" } else { "items" };
        format!("{count} {items}: {why} ({}{more})", named.join(", "))
    });
    let message = format!("{}.", clauses.collect::<Vec<_>>().join("; "));
    let finding = Finding::warning(FindingCode::PeculiarSources, message)
        .may_mean(format!(
            "{looked_at_text}Services refuse such texts or make nothing of them, and a run lists them as failed."
        ))
        .remedy("Give these items a text, or no source.");
    findings.push(finding);
    Ok(findings)
}

/// Words the finding about sources that a service does not read to their end.
fn cut_sources(known_cut: Cut, is_cut: u64, may_be_cut: u64, looked_at_text: &str) -> Finding {
    let Cut { read, cut } = known_cut;
    let near = match (may_be_cut, read) {
        (0, _) => String::new(),
        (count, 0) => format!(", and the other {count} may be"),
        (count, read) => format!(", and {count} of more than {read} may be"),
    };
    let message = format!(
        "[encoder] stops reading a text after {known_cut}, in silence: {is_cut} sources of more than {cut} characters are cut{near}."
    );
    Finding::warning(FindingCode::CutSources, message)
        .may_mean(format!("{looked_at_text}What follows there is in no vector, so no search finds an item by it."))
        .remedy(
            "Have the service refuse such texts, so that they are listed (Ollama: truncate = false in body; Text Embeddings Inference: without \
             auto-truncate), or give it shorter ones, such as a passage an item; or take a model that reads so much.",
        )
        .evidence(&[("cut", is_cut as f64), ("may_be_cut", may_be_cut as f64), ("characters", cut as f64)])
}

/// Finds vectors that differ in length although their distance heeds lengths, made by a service that was
/// asked for fewer coordinates than its model has. `None` where nothing is native yet, and where lengths do
/// not differ.
pub(crate) fn cut_vectors(
    store: &dyn Ledger,
    space: &Space,
    service: Option<&HttpConfig>,
) -> Result<Option<Finding>> {
    let Some(width) = service.filter(|service| !service.normalise).and_then(|service| service.dimensions)
    else {
        return Ok(None);
    };
    if !space.heeds_lengths() {
        return Ok(None);
    }
    let records = sample::draw(store, &space.name, VECTORS_MAX, Some(&space.name))?;
    let natives = records
        .iter()
        .filter_map(|record| record.vector.as_ref())
        .filter(|vector| vector.provenance == Provenance::Native);
    let lengths: Vec<f64> = natives.map(|vector| norm(&vector.vector)).collect();
    let shortest = lengths.iter().copied().fold(f64::INFINITY, f64::min);
    let longest = lengths.iter().copied().fold(0.0, f64::max);
    if lengths.is_empty() || longest <= LENGTHS_MIN * shortest {
        return Ok(None);
    }
    let message = format!(
        "{} vectors of {:?} that [encoder] made with dimensions = {width} are {shortest:.2} to {longest:.2} long.",
        lengths.len(),
        space.name
    );
    let finding = Finding::warning(FindingCode::CutVectors, message)
        .may_mean(format!("A vector that a service cuts loses a part of its length, and the distance {:?} heeds lengths.", space.distance.name()))
        .remedy("If the model's vectors have length 1 at full width, set normalise = true in [encoder], and let what is native be embedded again.");
    Ok(Some(finding))
}

#[cfg(test)]
mod tests {
    use rehang_core::Distance;
    use rehang_store::{ItemWrite, NewVector};
    use rehang_store_tests::MemoryStore;

    use super::*;

    fn put(store: &MemoryStore, id: usize, source: &str, new: Option<[f32; 2]>) {
        let mut vectors = vec![NewVector::from_model("old", vec![1.0, 0.0], Provenance::Old)];
        vectors.extend(new.map(|new| NewVector::from_model("new", new.to_vec(), Provenance::Native)));
        store.put(&[ItemWrite::new(format!("d{id}"), Some(source.into()), vectors)]).unwrap();
    }

    fn gallery(distance: Distance) -> (MemoryStore, Space) {
        let store = MemoryStore::new();
        store.create_space(&Space::new("old", 2, distance, false), Provenance::Old).unwrap();
        let new = Space::new("new", 2, distance, false);
        store.create_space(&new, Provenance::Native).unwrap();
        (store, new)
    }

    #[test]
    fn blank_sources_are_counted_and_named() {
        let (store, _) = gallery(Distance::Cosine);
        (0..9000).for_each(|id| put(&store, id, "a text", None));
        assert_eq!(sources(&store, "old", None, None).unwrap(), []);
        for (id, source) in [(7, ""), (300, "   "), (8191, "\n\n"), (8999, "\t"), (5000, "a\0b")] {
            put(&store, id, source, None);
        }
        let finding = sources(&store, "old", None, None).unwrap().remove(0);
        let expected = "4 items: its source is blank (d7, d300, d8191, …); 1 item: its source has a NUL character (U+0000) (d5000).";
        assert_eq!((finding.seen.as_str(), finding.may_mean.contains("looked at")), (expected, false));
    }

    #[test]
    fn sources_that_a_service_does_not_read_to_their_end_are_counted() {
        let (store, _) = gallery(Distance::Cosine);
        for (id, characters) in [(0, 10), (1, 1900), (2, 2100), (3, 2300), (4, 9000)] {
            put(&store, id, &"ä".repeat(characters), None);
        }
        let cut = |read, cut| sources(&store, "old", Some(Cut { read, cut }), None).unwrap();
        let finding = cut(2000, 2200).remove(0);
        assert!(
            ["some 2000 to 2200 characters", "2 sources of more than 2200", "1 of more than 2000 may be"]
                .iter()
                .all(|words| finding.seen.contains(words)),
            "{finding}"
        );
        assert!(finding.remedy.contains("truncate = false"));
        assert_eq!(cut(9000, 9500), []);
    }

    #[cfg(feature = "tokenizers")]
    #[test]
    fn sources_that_a_model_of_this_machine_cuts_are_counted() {
        let (store, _) = gallery(Distance::Cosine);
        for (id, words) in [(0, 1), (1, 3), (2, 4), (3, 90)] {
            put(&store, id, &"cat ".repeat(words), None);
        }
        let base = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../rehang-encode/tests/models");
        let config = "kind = 'onnx'\nmodel = 'm'\n[input]\nkind = 'text'\ntokenizer = 'tokenizer.json'\nmax_tokens = 5";
        let lengths = Lengths::open(&toml::from_str(config).unwrap(), &base).unwrap();
        let finding = sources(&store, "old", None, lengths).unwrap().remove(0);
        assert_eq!(
            (&finding.code, finding.seen.starts_with("2 of 4 texts")),
            (&FindingCode::CutTexts, true),
            "{finding}"
        );
    }

    #[test]
    fn a_service_that_cuts_vectors_and_leaves_them_short_is_named() {
        let service = |more: &str| -> HttpConfig {
            toml::from_str(&format!("url = 'http://127.0.0.1:1'\nmodel = 'm'\n{more}")).unwrap()
        };
        let cut = service("dimensions = 2");
        for distance in [Distance::Dot, Distance::L2, Distance::Cosine] {
            let (store, new) = gallery(distance);
            put(&store, 0, "a text", None);
            assert_eq!(cut_vectors(&store, &new, Some(&cut)).unwrap(), None, "nothing is native");
            put(&store, 1, "b", Some([0.6, 0.8]));
            put(&store, 2, "c", Some([1.0, 0.0]));
            assert_eq!(cut_vectors(&store, &new, Some(&cut)).unwrap(), None, "length 1");
            put(&store, 3, "d", Some([0.3, 0.4]));
            let finding = cut_vectors(&store, &new, Some(&cut)).unwrap();
            assert_eq!(finding.is_some(), distance != Distance::Cosine, "{distance:?}");
            if let Some(finding) = finding {
                assert!(
                    finding.seen.contains("0.50 to 1.00") && finding.remedy.contains("normalise = true"),
                    "{finding}"
                );
            }
            for other in [service(""), service("dimensions = 2\nnormalise = true")] {
                assert_eq!(cut_vectors(&store, &new, Some(&other)).unwrap(), None);
            }
        }
    }
}
