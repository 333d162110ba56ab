//! Colours, dash patterns and markers of the lines of a chart.
//!
//! Three things tell a line apart at once, so that none of them has to be seen: its colour (hues of the
//! Okabe–Ito palette, which stay apart for colour-blind readers), its dash pattern and its marker.

use std::fmt::Write;

/// Number of different lines; further lines repeat the colours with other dash patterns.
pub(crate) const STYLES: usize = 8;

/// Colours of one background.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Palette {
    /// Background that the colours are made for.
    pub(crate) paper: &'static str,
    /// Colour of text.
    pub(crate) ink: &'static str,
    /// Colour of text of less weight: axes, remarks.
    pub(crate) soft: &'static str,
    /// Colour of grid lines and borders.
    pub(crate) rule: &'static str,
    /// Colours of the lines, in order.
    pub(crate) lines: [&'static str; STYLES],
}

/// Palette for white paper.
pub(crate) const LIGHT: Palette = Palette {
    paper: "#ffffff",
    ink: "#1c2127",
    soft: "#5a636e",
    rule: "#dfe3e8",
    lines: ["#0b62a8", "#c04a0c", "#00805e", "#a8457f", "#8a6500", "#1d7f98", "#7a5230", "#5b6470"],
};

/// Palette for a dark screen.
pub(crate) const DARK: Palette = Palette {
    paper: "#14181d",
    ink: "#e3e7ec",
    soft: "#9aa5b1",
    rule: "#2b323a",
    lines: ["#6cb4f5", "#f59566", "#4fcb9f", "#e59cc8", "#e3bd55", "#63cbe2", "#cdab8a", "#a9b3be"],
};

/// Palette for a picture that may be shown on white or on a dark screen without knowing which.
pub(crate) const EITHER: Palette = Palette {
    paper: "none",
    ink: "#6f7a86",
    soft: "#77828e",
    rule: "#8b95a055",
    lines: ["#2f81cf", "#d2601f", "#1f926e", "#bb5b93", "#a17a14", "#2a8ea8", "#96704a", "#76808c"],
};

/// Returns the dash pattern of a line; empty for a solid one. Lines that share a colour differ in their
/// pattern.
pub(crate) fn dashes(index: usize) -> &'static str {
    const DASHES: [&str; STYLES] = ["", "8 3", "2 3", "9 3 2 3", "14 4", "5 2 1 2 1 2", "4 4", "1 5"];
    DASHES[(index + index / STYLES) % STYLES]
}

/// Draws the marker of a line, as an SVG shape around `(x, y)`. Lines that share a colour differ in their
/// marker.
pub(crate) fn marker(index: usize, x: f64, y: f64, radius: f64) -> String {
    let polygon = |corners: &[(f64, f64)]| {
        let mut points = String::new();
        for (dx, dy) in corners {
            let _ = write!(points, "{} {} ", coordinate(x + dx * radius), coordinate(y + dy * radius));
        }
        format!("<polygon points=\"{}\"", points.trim_end())
    };
    match (index + index / STYLES * 4) % STYLES {
        0 => {
            format!("<circle cx=\"{}\" cy=\"{}\" r=\"{}\"", coordinate(x), coordinate(y), coordinate(radius))
        }
        1 => polygon(&[(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)]),
        2 => polygon(&[(0.0, -1.2), (1.1, 0.8), (-1.1, 0.8)]),
        3 => polygon(&[(0.0, -1.3), (1.1, 0.0), (0.0, 1.3), (-1.1, 0.0)]),
        4 => polygon(&[(0.0, 1.2), (1.1, -0.8), (-1.1, -0.8)]),
        5 => {
            // A cross: one of its arms, turned by a right angle three times.
            let mut arm: [(f64, f64); 3] = [(-0.4, -1.2), (0.4, -1.2), (0.4, -0.4)];
            let mut corners = Vec::new();
            for _ in 0..4 {
                corners.extend(arm);
                arm = arm.map(|(x, y)| (-y, x));
            }
            polygon(&corners)
        }
        6 => polygon(&[(-1.3, -0.55), (1.3, -0.55), (1.3, 0.55), (-1.3, 0.55)]),
        _ => polygon(&[(-0.55, -1.3), (0.55, -1.3), (0.55, 1.3), (-0.55, 1.3)]),
    }
}

/// Writes a coordinate for SVG: one decimal at most. Callers pass finite numbers only; anything else becomes
/// 0, so that no page ever holds `NaN`.
pub(crate) fn coordinate(value: f64) -> String {
    let rounded = (value * 10.0).round() / 10.0;
    let rounded = if rounded.is_finite() { rounded + 0.0 } else { 0.0 };
    format!("{rounded}")
}

/// Writes the rules that colour the classes of a chart; `colour` names the colour of a line, the other
/// colours are given.
pub(crate) fn chart_rules(
    paper: &str,
    ink: &str,
    soft: &str,
    rule: &str,
    mut colour: impl FnMut(usize) -> String,
) -> String {
    let mut rules = format!(
        ".rh text{{font:12px system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif;\
         font-variant-numeric:tabular-nums;fill:{ink}}}.rh .soft{{fill:{soft}}}.rh .strong{{font-weight:600}}\
         .rh .halo{{paint-order:stroke;stroke:{paper};stroke-width:4px;stroke-linejoin:round}}\
         .rh .grid{{stroke:{rule};stroke-width:1}}.rh .axis{{stroke:{soft};stroke-width:1}}\
         .rh .line{{fill:none;stroke-width:1.7;stroke-linejoin:round;stroke-linecap:round}}\
         .rh .main{{stroke-width:2.8}}.rh .leader{{fill:none;stroke-width:1;opacity:.45}}.rh .band{{opacity:.13;stroke:none}}\
         .rh .level{{stroke:{soft};stroke-width:1.4;fill:none}}.rh .quiet{{stroke:{soft};fill:none}}"
    );
    for index in 0..STYLES {
        let colour = colour(index);
        let _ = write!(rules, ".rh .s{index}{{stroke:{colour}}}.rh .f{index}{{fill:{colour}}}");
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    fn luminance(colour: &str) -> f64 {
        let part = |at: usize| {
            let value = f64::from(u8::from_str_radix(&colour[at..at + 2], 16).unwrap()) / 255.0;
            if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5)
    }

    fn contrast(first: &str, second: &str) -> f64 {
        let (first, second) = (luminance(first), luminance(second));
        (first.max(second) + 0.05) / (first.min(second) + 0.05)
    }

    /// WCAG 2: text needs 4.5 to 1, the lines of a chart 3 to 1.
    #[test]
    fn every_colour_stands_out_from_its_background() {
        for palette in [LIGHT, DARK] {
            assert!(contrast(palette.ink, palette.paper) > 7.0);
            assert!(contrast(palette.soft, palette.paper) > 4.5);
            for line in palette.lines {
                assert!(contrast(line, palette.paper) > 4.5, "{line} on {}", palette.paper);
            }
        }
        for background in [LIGHT.paper, DARK.paper, "#0d1117"] {
            for line in EITHER.lines.into_iter().chain([EITHER.ink, EITHER.soft]) {
                assert!(
                    contrast(line, background) > 3.0,
                    "{line} on {background}: {}",
                    contrast(line, background)
                );
            }
        }
    }

    #[test]
    fn lines_that_share_a_colour_differ_in_their_dashes_and_markers() {
        for index in 0..STYLES {
            assert_ne!(dashes(index), dashes(index + STYLES));
            assert_ne!(marker(index, 0.0, 0.0, 1.0), marker(index + STYLES, 0.0, 0.0, 1.0));
        }
    }

    #[test]
    fn a_coordinate_is_always_a_number() {
        assert_eq!(coordinate(f64::NAN), "0");
        assert_eq!(coordinate(f64::INFINITY), "0");
        assert_eq!(coordinate(-0.01), "0");
        assert_eq!(coordinate(12.34), "12.3");
    }
}
