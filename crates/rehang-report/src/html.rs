//! Writes a document as one HTML file that needs nothing else: no script, no font, no network.

use std::fmt::Write;

use rehang_core::finding::{Finding, Severity};

use crate::chart::{Canvas, Chart, draw, legend};
use crate::document::{Block, Cell, Document, Kind, Table};
use crate::numbers::counted;
use crate::palette::{DARK, LIGHT, Palette, chart_rules};
use crate::text::escape_html;

/// Rules of the page itself; [`style_sheet`] puts the colours before them.
const STYLE: &str = include_str!("page.css");

pub(crate) fn write(document: &Document<'_>) -> String {
    let mut html = String::new();
    let title = escape_html(document.title);
    let _ = write!(
        html,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n<style>\n{}</style>\n</head>\n<body>\n<main>\n",
        style_sheet(),
    );
    let _ = write!(
        html,
        "<header>\n<h1>{title}</h1>\n<p class=\"subtitle\">{}</p>\n</header>\n",
        escape_html(&document.subtitle)
    );
    let _ = write!(
        html,
        "<section class=\"verdict\" aria-label=\"Verdict\">\n<p><strong>{}.</strong> {}</p>\n",
        escape_html(document.advice),
        escape_html(&document.verdict),
    );
    for warning in &document.severe {
        write_warning(warning, &mut html);
    }
    if !document.key_numbers.is_empty() {
        html.push_str("<dl class=\"numbers\">\n");
        for number in &document.key_numbers {
            let other_values: Vec<String> =
                number.others.iter().map(|other| format!("<span>{}</span>", escape_html(other))).collect();
            let _ = writeln!(
                html,
                "<div><dt>{}</dt><dd class=\"value\">{} <small>{}</small></dd><dd>{}</dd></div>",
                escape_html(number.label),
                escape_html(&number.value),
                escape_html(&number.unit),
                other_values.join(" · "),
            );
        }
        html.push_str("</dl>\n");
    }
    if document.warnings > 0 {
        let warnings = counted(document.warnings, "warning", "warnings");
        let _ = writeln!(html, "<p class=\"more\">Read with care: <a href=\"#warnings\">{warnings}</a>.</p>");
    }
    html.push_str("</section>\n");
    let mut charts = 0;
    for section in &document.sections {
        let _ = write!(
            html,
            "<section id=\"{}\">\n<h2>{}</h2>\n",
            escape_html(&section.id),
            escape_html(&section.title)
        );
        for block in &section.blocks {
            match block {
                Block::Text(text) if text.is_empty() => {}
                Block::Text(text) => {
                    let _ = writeln!(html, "<p>{}</p>", escape_html(text));
                }
                Block::Table(table) => write_table(table, &mut html),
                Block::Chart(chart, tables) => {
                    charts += 1;
                    write_chart(chart, tables, charts, &mut html);
                }
                Block::Warning(warning) => write_warning(warning, &mut html),
            }
        }
        html.push_str("</section>\n");
    }
    let _ = write!(
        html,
        "</main>\n<footer><p>{}</p></footer>\n</body>\n</html>\n",
        escape_html(&document.colophon)
    );
    html
}

/// Joins the style sheet: both palettes as variables, the rules of the charts, then those of the page.
fn style_sheet() -> String {
    let variables = |palette: Palette| {
        let mut text = format!(
            "--paper:{};--ink:{};--soft:{};--rule:{};",
            palette.paper, palette.ink, palette.soft, palette.rule
        );
        for (index, colour) in palette.lines.iter().enumerate() {
            let _ = write!(text, "--line{index}:{colour};");
        }
        text
    };
    let charts = chart_rules("var(--paper)", "var(--ink)", "var(--soft)", "var(--rule)", |index| {
        format!("var(--line{index})")
    });
    format!(
        ":root{{{light}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n{charts}\n{STYLE}",
        light = variables(LIGHT),
        dark = variables(DARK),
    )
}

fn write_chart(chart: &Chart, tables: &[Table], number: usize, html: &mut String) {
    let _ = write!(
        html,
        "<figure>\n<figcaption>{}</figcaption>\n{}\n{}\n{}\n",
        escape_html(&chart.title),
        draw(chart, Canvas::Wide, &format!("chart{number}")),
        draw(chart, Canvas::Narrow, &format!("chart{number}-narrow")),
        legend(chart),
    );
    html.push_str("<details><summary>Numbers</summary>\n");
    for table in tables {
        write_table(table, html);
    }
    html.push_str("</details>\n</figure>\n");
}

fn write_table(table: &Table, html: &mut String) {
    let caption = escape_html(&table.caption);
    let _ = write!(
        html,
        "<div class=\"table\" role=\"region\" aria-label=\"{caption}\" tabindex=\"0\">\n<table>\n<caption>{caption}</caption>\n"
    );
    if table.columns.iter().any(|column| !column.heading.is_empty()) {
        html.push_str("<thead><tr>");
        for column in &table.columns {
            let _ =
                write!(html, "<th scope=\"col\"{}>{}</th>", class(column.kind), escape_html(&column.heading));
        }
        html.push_str("</tr></thead>\n");
    }
    html.push_str("<tbody>\n");
    for row in &table.rows {
        html.push_str(if row.strong { "<tr class=\"strong\">" } else { "<tr>" });
        for (index, (column, cell)) in table.columns.iter().zip(&row.cells).enumerate() {
            let content = cell_content(cell, column.kind);
            if index == 0 {
                let _ = write!(html, "<th scope=\"row\"{}>{content}</th>", class(column.kind));
            } else {
                let _ = write!(html, "<td{}>{content}</td>", class(column.kind));
            }
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody>\n</table>\n</div>\n");
}

fn class(kind: Kind) -> &'static str {
    match kind {
        Kind::Text => "",
        Kind::Number => " class=\"number\"",
        Kind::Code => " class=\"code\"",
    }
}

fn cell_content(cell: &Cell, kind: Kind) -> String {
    let mut text = escape_html(&cell.text);
    if cell.strong {
        text = format!("<strong>{text}</strong>");
    }
    match (kind, cell.aside.is_empty()) {
        (Kind::Code, _) => format!("<code>{text}</code>"),
        (_, true) => text,
        (_, false) => format!("{text} <small>{}</small>", escape_html(&cell.aside)),
    }
}

fn write_warning(warning: &Finding, html: &mut String) {
    let (class, sign, name) = match warning.severity {
        Severity::Note => ("note", "i", "Note"),
        Severity::Warning => ("caution", "!", "Caution"),
        Severity::Problem => ("severe", "!!", "Severe"),
    };
    let _ = write!(
        html,
        "<div class=\"warning {class}\" role=\"note\">\n<span class=\"sign\" aria-hidden=\"true\">{sign}</span>\n\
         <p><strong>{name}: {}</strong> {} <em>{}</em></p>\n</div>\n",
        escape_html(&warning.seen),
        escape_html(&warning.may_mean),
        escape_html(&warning.remedy),
    );
}
