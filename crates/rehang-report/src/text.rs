//! Escapes text from data; only through these functions it gets into a page.

/// Escapes text for HTML and SVG, in content and in double-quoted attributes.
///
/// Control characters, which no XML document may hold, become `\u{fffd}`.
pub(crate) fn escape_html(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\n' | '\t' => escaped.push(character),
            _ => escaped.push(printable(character)),
        }
    }
    escaped
}

/// Escapes text within a line of Markdown, in prose and in table cells; see [`markdown_paragraph`] for text
/// that begins a line.
///
/// Every character that could begin markup is escaped, and line breaks become spaces, so that a name can
/// neither leave its cell nor become a link, an image or HTML. Web addresses, which many readers of Markdown
/// turn into links (`https://…`, `www.…`), are escaped too; what some readers make of mail addresses cannot
/// be escaped.
pub(crate) fn escape_markdown(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for (at, character) in text.char_indices() {
        match character {
            ':' if text[at..].starts_with("://") => escaped.push_str("\\:"),
            '.' if follows_www(&text[..at]) => escaped.push_str("\\."),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '\n' | '\t' | '\r' => escaped.push(' '),
            '\\' | '`' | '*' | '_' | '[' | ']' | '#' | '|' | '~' | '!' => {
                escaped.push('\\');
                escaped.push(character);
            }
            _ => escaped.push(printable(character)),
        }
    }
    escaped
}

fn follows_www(before: &str) -> bool {
    before.as_bytes().last_chunk::<3>().is_some_and(|last| last.eq_ignore_ascii_case(b"www"))
}

/// Escapes text that is a paragraph of Markdown: as [`escape_markdown`], and its beginning makes it neither a
/// list nor a rule.
pub(crate) fn markdown_paragraph(text: &str) -> String {
    let escaped = escape_markdown(text);
    // Four spaces would make the paragraph code; fewer have no meaning.
    let line = escaped.trim_start_matches(' ');
    let (number, after_number) = line.split_at(line.bytes().take_while(u8::is_ascii_digit).count());
    let is_marker = match after_number.as_bytes() {
        [b'.' | b')'] | [b'.' | b')', b' ', ..] => !number.is_empty(),
        [b'-' | b'+' | b'=', ..] => number.is_empty(),
        _ => false,
    };
    format!("{number}{}{after_number}", if is_marker { "\\" } else { "" })
}

/// Writes text as Markdown code, fenced by more backticks than it holds; bars are escaped for the table
/// around it.
pub(crate) fn markdown_code(text: &str) -> String {
    if text.trim().is_empty() {
        return String::new();
    }
    let longest_run = text.split(|character| character != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest_run + 1);
    let padding = if longest_run > 0 { " " } else { "" };
    let line: String = text
        .chars()
        .map(|character| if character.is_whitespace() { ' ' } else { printable(character) })
        .collect::<String>()
        .replace('|', "\\|");
    format!("{fence}{padding}{line}{padding}{fence}")
}

/// Returns the character, or `\u{fffd}` for control characters and those that turn the direction of the text
/// around them.
fn printable(character: char) -> char {
    match character {
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{fffe}' | '\u{ffff}' => '\u{fffd}',
        _ if character.is_control() => '\u{fffd}',
        _ => character,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_in_data_stays_text() {
        assert_eq!(
            escape_html("<script>'a' & \"b\"</script>\0"),
            "&lt;script&gt;&#39;a&#39; &amp; &quot;b&quot;&lt;/script&gt;\u{fffd}"
        );
        assert_eq!(escape_markdown("a|b\n[x](y) <i>"), "a\\|b \\[x\\](y) &lt;i&gt;");
        assert_eq!(markdown_code("a`b|c"), "`` a`b\\|c ``");
        assert_eq!(markdown_code(""), "");
    }

    #[test]
    fn a_web_address_in_markdown_is_no_link() {
        assert_eq!(escape_markdown("see https://a.example: now"), "see https\\://a.example: now");
        assert_eq!(escape_markdown("FTP://a WWW.a.example www2.b"), "FTP\\://a WWW\\.a.example www2.b");
    }

    #[test]
    fn a_paragraph_in_markdown_is_no_list_no_rule_and_no_code() {
        for (text, written) in [
            ("1. first", "1\\. first"),
            ("12) twelfth", "12\\) twelfth"),
            ("3.", "3\\."),
            ("- minus", "\\- minus"),
            ("+ plus", "\\+ plus"),
            ("---", "\\---"),
            ("===", "\\==="),
            ("* star", "\\* star"),
            ("\t    1. deep", "1\\. deep"),
            ("3.5 of 7", "3.5 of 7"),
            ("1,079 items", "1,079 items"),
            ("old → new", "old → new"),
            ("", ""),
        ] {
            assert_eq!(markdown_paragraph(text), written);
        }
    }
}
