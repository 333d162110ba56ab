//! First sentences of comments and names of bindings: each is understood by whoever sees nothing else.

use super::Fault;
use super::source::Source;

/// First words of a sentence whose meaning lies elsewhere, or that names neither a thing nor an act.
const RIDDLES: &str = "that those these this such of what whatever where wherever as it its itself their they them who whoever whose whom \
     which whichever by from in into with without within at on for to and but or nor so when whenever if because since there here also too \
     else otherwise neither both either other others another than while until before after only not is are was were be has have like unlike \
     except besides beside per once then thus again still already between among through over under";

/// Riddles among the first words of comments beside code, whose sentences may say when and why.
const RIDDLES_BESIDE_CODE: &str =
    "that those these such of its it their they them also otherwise too else what whatever";

/// Beginnings of two words that compare with something said elsewhere, in every comment.
const RIDDLES_OF_TWO_WORDS: [&str; 4] = ["the same", "the other", "the others", "a closer"];

/// First word or two of a comment, where it begins with one of `riddles`, which are parted by spaces, or with
/// one of [`RIDDLES_OF_TWO_WORDS`].
fn riddle<'a>(comment: &'a str, riddles: &str) -> Option<&'a str> {
    let text = comment.trim_start();
    let end_of_word = |from: usize| {
        let length = text[from..].find(|c: char| !c.is_ascii_alphabetic() && c != '\'');
        length.map_or(text.len(), |length| from + length)
    };
    let first = &text[..end_of_word(0)];
    let second_begins = text.len() - text[first.len()..].trim_start().len();
    let both = &text[..end_of_word(second_begins)];
    if RIDDLES_OF_TWO_WORDS.iter().any(|riddle| riddle.eq_ignore_ascii_case(both)) {
        return Some(both);
    }
    riddles.split_whitespace().any(|riddle| riddle.eq_ignore_ascii_case(first)).then_some(first)
}

/// Comments whose first sentence begins with a riddle.
pub fn openings(source: &Source) -> Vec<Fault> {
    // `///` and `//!` arrive without their first two slashes.
    let kind = |comment: &str| match comment.chars().next() {
        Some(mark @ ('/' | '!')) => mark,
        Some(_) => ' ',
        None => '\0',
    };
    let mut faults = Vec::new();
    let mut previous = '\0';
    for (number, line) in source.lines.iter().enumerate() {
        let is_alone = line.code.trim().is_empty();
        let now = if is_alone { kind(&line.comment) } else { '\0' };
        if now != previous && now != '\0' {
            let riddles = if now == ' ' { RIDDLES_BESIDE_CODE } else { RIDDLES };
            if let Some(word) = riddle(line.comment.trim_start_matches(['/', '!']), riddles) {
                let what = format!(
                    "a comment begins with a noun or a verb and is understood alone; {word:?} leads elsewhere: name the thing"
                );
                faults.push(Fault { path: source.path.clone(), line: number + 1, what });
            }
        }
        previous = now;
    }
    faults
}

/// Names of bindings that say nothing of the thing they hold.
const RIDDLES_OF_BINDINGS: &str = "found seen own known kept given whole made there said asked";

/// Bindings of the product by `let` or `for` whose name is a riddle.
pub fn bindings(source: &Source) -> Vec<Fault> {
    let mut faults = Vec::new();
    let is_product = source.path.starts_with("crates/") && source.path.contains("/src/");
    for (number, line) in source.product().filter(|_| is_product) {
        let words: Vec<&str> = line.code.split_whitespace().collect();
        for (at, _) in words.iter().enumerate().filter(|(_, word)| matches!(**word, "let" | "for")) {
            let at = at + 1 + usize::from(words.get(at + 1) == Some(&"mut"));
            let name = words.get(at).map_or("", |word| word.trim_end_matches([':', ';']));
            if RIDDLES_OF_BINDINGS.split_whitespace().any(|riddle| riddle == name) {
                let what = format!("{name:?} says nothing of what it holds: name the binding after that");
                faults.push(Fault { path: source.path.clone(), line: number + 1, what });
            }
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_sentences_that_lead_elsewhere_are_found() {
        let lines = |text: &str| -> Vec<usize> {
            openings(&Source::new("crates/rehang-core/src/a.rs", text))
                .iter()
                .map(|fault| fault.line)
                .collect()
        };
        let bad = "//! Where it goes.\n\n/// Of fewer pairs.\nfn a() {}\n/// The same without a look.\nfn b() {\n    // Such parts.\n    c();\n}\n/// The same, by rows.\nfn d() {}\n/// A closer look.\nfn e() {}";
        assert_eq!(lines(bad), [1, 3, 5, 7, 10, 12]);
        let good = "//! Claims of items.\n\n/// Ridge by the Gram matrix.\n/// Of n pairs.\nfn a() {}\n/// `What` it is called.\nfn b() {\n    // Where a server died, nobody answers.\n    c(); // of no use\n}\n/// The sum.\nfn d() {}\n/// A close look.\nfn e() {}";
        assert!(lines(good).is_empty(), "{:?}", lines(good));
    }

    #[test]
    fn bindings_that_say_nothing_are_found() {
        let text = "fn a() {\n    let found = 1;\n    let mut own: u8 = 2;\n    for kept in b {}\n    let found_ids = 3; // let seen = 4;\n}";
        let faults = bindings(&Source::new("crates/rehang-core/src/a.rs", text));
        assert_eq!(faults.iter().map(|fault| fault.line).collect::<Vec<_>>(), [2, 3, 4]);
    }
}
