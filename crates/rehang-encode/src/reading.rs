//! Reading: how far into a text a service reads. Many services cut a text that is longer than their model
//! takes, in silence: its vector is that of its beginning, and looks like any other.
//!
//! Now and then the beginning of a long text rides along in the request that has the whole of it. Where both
//! have one vector, the service has not read what follows the beginning. Beginnings of other lengths then
//! close in on where it stops.

use std::fmt;

use rehang_core::finding::{Finding, FindingCode};
use serde::{Deserialize, Serialize};

/// Fewest characters of a beginning that a service is asked with. The models that read least stop at 128
/// tokens.
const SHORTEST: usize = 300;
/// Largest number of questions in all.
const ASKED_MAX: u32 = 16;
/// Texts whose end was not read before a cut is reported: the end of one text may say nothing.
const AGREED_MIN: u32 = 2;
/// Smallest share of a text beyond its beginning, so that it would change the vector.
const REST: f64 = 0.2;
/// Factor within which it is known well enough where a service stops: characters a token differ more from
/// text to text.
const CLOSE: f64 = 1.25;

/// Place where a service stops reading, in characters of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cut {
    /// Characters that the service has read in every text that it was asked with.
    pub read: usize,
    /// Characters beyond which the service has read nothing.
    pub cut: usize,
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self { read: 0, cut } => write!(f, "at most {cut} characters"),
            Self { read, cut } if read == cut => write!(f, "some {cut} characters"),
            Self { read, cut } => write!(f, "some {read} to {cut} characters"),
        }
    }
}

/// Answers of a service about how far it reads, in sum.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reading {
    /// Characters of the longest beginning beyond which the service read on.
    read: usize,
    /// Characters of the shortest beginning beyond which the service did not read on.
    cut: Option<usize>,
    agreed: u32,
    asked: u32,
}

impl Reading {
    /// Characters of the beginning to ask with, of a text of so many characters; `None` where that would tell
    /// nothing new.
    pub(crate) fn question(&self, characters: usize) -> Option<usize> {
        if self.asked >= ASKED_MAX {
            return None;
        }
        let longest = (characters as f64 * (1.0 - REST)) as usize;
        let beginning = match self.cut {
            None => Some(longest).filter(|longest| *longest as f64 > CLOSE * self.read as f64),
            Some(cut) if self.agreed < AGREED_MIN && cut <= longest => Some(cut),
            Some(cut) => {
                let low = self.read.max(SHORTEST / 2) as f64;
                let between = ((low * cut as f64).sqrt() as usize).max(SHORTEST);
                (cut as f64 > CLOSE * low && between < cut).then_some(between)
            }
        };
        beginning.filter(|beginning| (SHORTEST..=longest).contains(beginning))
    }

    /// Takes in whether a beginning of so many characters had the vector of its whole text.
    pub(crate) fn answered(&mut self, beginning: usize, is_same: bool) {
        self.asked += 1;
        if is_same {
            self.agreed += 1;
            self.cut = Some(self.cut.map_or(beginning, |cut| cut.min(beginning)));
        } else {
            self.read = self.read.max(beginning);
        }
    }

    /// Finding that says where the service stops, for a reader.
    pub(crate) fn finding(&self) -> Option<Finding> {
        let cut = self.cut()?;
        let observation = format!("[encoder] stops reading a text after {cut}, in silence.");
        let finding = Finding::warning(FindingCode::EncoderCuts, observation)
            .may_mean("What follows there is in no vector, so no search finds an item by it.")
            .remedy("A plan of the upgrade counts the sources that are longer, and says what can be done.");
        Some(finding.evidence(&[("characters", cut.cut as f64)]))
    }

    /// Counts a question that got no answer.
    pub(crate) fn unanswered(&mut self) {
        self.asked += 1;
    }

    /// Place where the service stops, once that is sure.
    pub(crate) fn cut(&self) -> Option<Cut> {
        let cut = self.cut.filter(|_| self.agreed >= AGREED_MIN)?;
        // Texts of fewer characters a token are cut earlier than others.
        Some(Cut { read: self.read.min(cut), cut: cut.max(self.read) })
    }

    /// Takes what another process was told, where that is from more questions.
    pub(crate) fn or_more(&mut self, other: &Self) {
        if other.asked > self.asked {
            self.clone_from(other);
        }
    }
}

/// Beginning of a text, of so many characters; `None` where the text is no longer, or where what follows says
/// nothing.
pub(crate) fn beginning_of(text: &str, characters: usize) -> Option<&str> {
    let (at, _) = text.char_indices().nth(characters)?;
    let (beginning, ending) = text.split_at(at);
    let letters = ending.chars().filter(|character| character.is_alphanumeric()).count();
    (letters * 2 >= ending.chars().count()).then_some(beginning)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asks with texts of some lengths, one after the other, a service that reads so many characters of each.
    fn asked(reads: impl Fn(usize) -> usize, texts: impl IntoIterator<Item = usize>) -> Reading {
        let mut reading = Reading::default();
        for (place, characters) in texts.into_iter().enumerate() {
            if let Some(beginning) = reading.question(characters) {
                assert!(beginning < characters);
                reading.answered(beginning, beginning >= reads(place));
            }
        }
        reading
    }

    #[test]
    fn where_a_service_stops_is_found_in_a_few_questions() {
        let long = [900, 2500, 3000, 4000, 6000, 20_000, 2600, 3100].into_iter().cycle().take(40);
        for stops_at in [500, 1100, 2000] {
            let reading = asked(|_| stops_at, long.clone());
            let Cut { read, cut } = reading.cut().unwrap();
            assert!(
                read <= stops_at && stops_at <= cut && cut as f64 <= 1.3 * read.max(300) as f64,
                "{reading:?}"
            );
            assert!(reading.asked <= 12, "{reading:?}");
        }
        // Texts differ in the characters that a token has.
        let reading = asked(|place| 1800 + 300 * (place % 3), long.clone());
        let Cut { read, cut } = reading.cut().unwrap();
        assert!(read <= cut && (1500..2800).contains(&cut), "{reading:?}");
    }

    #[test]
    fn a_service_that_reads_all_is_asked_a_few_times_and_no_more() {
        let reading = asked(|_| usize::MAX, (0..2000).map(|place| 100 + place * 7));
        assert_eq!(reading.cut(), None);
        assert!(reading.asked <= 16, "{reading:?}");
        let reading = asked(|_| usize::MAX, [5000; 100]);
        assert_eq!((reading.cut(), reading.asked), (None, 1));
        assert_eq!(asked(|_| 500, [300; 100]).asked, 0, "nothing is that long");
        let reading = asked(|_| 200, [600; 100]);
        assert_eq!(reading.cut().unwrap().to_string(), "at most 300 characters");
        assert_eq!(Cut { read: 400, cut: 500 }.to_string(), "some 400 to 500 characters");
    }

    #[test]
    fn one_text_alone_shows_nothing() {
        let reading = asked(|_| 2000, [100, 6000, 100, 200]);
        assert_eq!((reading.cut(), reading.asked), (None, 1));
        assert_eq!(beginning_of("a text  \n  .....     ", 6), None, "its end says nothing");
        assert_eq!(beginning_of("äöü and more", 3), Some("äöü"));
        assert_eq!(beginning_of("short", 9), None);
    }
}
