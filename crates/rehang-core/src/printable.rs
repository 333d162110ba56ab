//! Foreign text on a terminal.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Escapes everything in a text that steers a terminal as `\u{…}`: control characters other than line ends
/// and tabs, and marks that reverse the direction of writing. Ids, sources, answers of services, words of
/// programs and fields of files may hold anything. So every face that prints passes its whole output through
/// this one function.
///
/// ```
/// assert_eq!(rehang_core::printable("cat\x1b[2J.png\r\n"), "cat\\u{1b}[2J.png\\u{d}\n");
/// assert_eq!(rehang_core::printable("Äpfel\tund ☂"), "Äpfel\tund ☂");
/// ```
pub fn printable(text: &str) -> Cow<'_, str> {
    let steers = |character: char| {
        (character.is_control() && !matches!(character, '\n' | '\t'))
            || matches!(character, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(steers) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if steers(character) {
            // Writing to a string cannot fail.
            let _ = write!(shown, "{}", character.escape_unicode());
        } else {
            shown.push(character);
        }
    }
    Cow::Owned(shown)
}
