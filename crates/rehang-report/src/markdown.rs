//! Writes a document as Markdown: the words and tables of the HTML; a chart is its tables.

use std::fmt::Write;

use rehang_core::finding::{Finding, Severity};

use crate::document::{Block, Cell, Document, Kind, Table};
use crate::text::{escape_markdown, markdown_code, markdown_paragraph};

pub(crate) fn write(document: &Document<'_>) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "# {}\n\n{}\n",
        escape_markdown(document.title),
        markdown_paragraph(&document.subtitle)
    );
    let _ =
        writeln!(text, "**{}.** {}\n", escape_markdown(document.advice), escape_markdown(&document.verdict));
    for warning in &document.severe {
        write_warning(warning, &mut text);
    }
    if !document.key_numbers.is_empty() {
        text.push_str("| | | |\n|---|--:|---|\n");
        for number in &document.key_numbers {
            let value = escape_markdown(&format!("{}\u{a0}{}", number.value, number.unit));
            let _ = writeln!(
                text,
                "| {} | **{value}** | {} |",
                number.label,
                escape_markdown(&number.others.join(" · "))
            );
        }
        text.push('\n');
    }
    for section in &document.sections {
        let _ = writeln!(text, "## {}\n", escape_markdown(&section.title));
        for block in &section.blocks {
            match block {
                Block::Text(paragraph) if paragraph.is_empty() => {}
                Block::Text(paragraph) => {
                    let _ = writeln!(text, "{}\n", markdown_paragraph(paragraph));
                }
                Block::Table(table) => write_table(table, &mut text),
                Block::Chart(chart, tables) => {
                    let _ = writeln!(text, "### {}\n", escape_markdown(&chart.title));
                    for table in tables {
                        write_table(table, &mut text);
                    }
                }
                Block::Warning(warning) => write_warning(warning, &mut text),
            }
        }
    }
    let _ = writeln!(text, "---\n\n{}", markdown_paragraph(&document.colophon));
    text
}

fn write_warning(warning: &Finding, text: &mut String) {
    let _ = writeln!(
        text,
        "> **{}:** {} {} *{}*\n",
        severity(warning.severity),
        escape_markdown(&warning.seen),
        escape_markdown(&warning.may_mean),
        escape_markdown(&warning.remedy),
    );
}

fn write_table(table: &Table, text: &mut String) {
    // A blank behind the star would make it a list.
    let _ = writeln!(text, "*{}*\n", escape_markdown(&table.caption).trim());
    text.push('|');
    for column in &table.columns {
        let _ = write!(text, " {} |", escape_markdown(&column.heading));
    }
    text.push_str("\n|");
    for column in &table.columns {
        text.push_str(if column.kind == Kind::Number { "--:|" } else { "---|" });
    }
    text.push('\n');
    for row in &table.rows {
        text.push('|');
        for (column, cell) in table.columns.iter().zip(&row.cells) {
            let strong = cell.strong;
            let cell = if column.kind == Kind::Code { markdown_code(&cell.text) } else { prose(cell) };
            if (row.strong || strong) && !cell.is_empty() {
                let _ = write!(text, " **{cell}** |");
            } else {
                let _ = write!(text, " {cell} |");
            }
        }
        text.push('\n');
    }
    text.push('\n');
}

fn prose(cell: &Cell) -> String {
    match cell.aside.as_str() {
        "" => escape_markdown(&cell.text),
        aside if aside.starts_with('±') => escape_markdown(&format!("{} {aside}", cell.text)),
        aside => escape_markdown(&format!("{} ({aside})", cell.text)),
    }
}

fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Note => "Note",
        Severity::Warning => "Caution",
        Severity::Problem => "Severe",
    }
}
