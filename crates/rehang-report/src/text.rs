//! Text from data is put into a page only through these functions.

/// Text for HTML and SVG, in content and in double-quoted attributes.
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

/// Text for one line of Markdown, in prose and in table cells.
///
/// Every character that could begin markup is escaped, and line breaks become spaces, so that a name can neither
/// leave its cell nor become a link, an image or HTML.
pub(crate) fn escape_markdown(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
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

/// Text as Markdown code, fenced by more backticks than it holds; bars are escaped for the table around it.
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

/// The character, or `\u{fffd}` for control characters and those that turn the direction of the text around them.
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
}
