//! Draws charts as inline SVG: lines with bands, levels, a note at a point, and labels at the ends of the
//! lines.
//!
//! A [`Chart`] says what is shown; [`draw`] lays it out for a wide page, for a narrow screen or as a file of
//! its own. Values that are not finite are left out: a line breaks there, and they never reach the SVG.

use std::fmt::Write;

use crate::numbers::{decimal, shown, significant};
use crate::palette::{EITHER, STYLES, chart_rules, coordinate, dashes, marker};
use crate::scale::{Scale, Span, spread_apart};
use crate::text::escape_html;

/// Content of a chart: its lines, levels, axes and title.
///
/// ```
/// use rehang_report::{Axis, Chart, Level, ChartLine};
///
/// let chart = Chart {
///     title: "mAP while the gallery is re-embedded".into(),
///     x: Axis::percent("re-embedded, %"),
///     y: Axis::percent("mAP, %"),
///     lines: vec![ChartLine::new("sigma", vec![(0.0, 37.0), (50.0, 48.0), (100.0, 53.0)])],
///     levels: vec![Level { name: "do nothing".into(), value: 34.2, dotted: false }],
///     ..Chart::default()
/// };
/// assert!(rehang_report::svg_curve(&chart).starts_with("<svg "));
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Chart {
    /// Title, in a few words.
    pub title: String,
    /// Description for those who cannot see the chart. An empty one is made from the lines.
    pub description: String,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// Lines, the most important one first.
    pub lines: Vec<ChartLine>,
    /// Horizontal lines across the whole chart, such as doing nothing.
    pub levels: Vec<Level>,
    /// A point to be noted, with a line down to the horizontal axis.
    pub note: Option<Note>,
}

/// One axis of a chart.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Axis {
    /// Quantity along the axis, with its unit.
    pub label: String,
    /// Spacing of values along the axis: linear or logarithmic.
    pub scale: Scale,
    /// Values that the axis never crosses, whatever the data are.
    pub bounds: Option<(f64, f64)>,
    /// Whether ticks below zero are written without their sign (a chart that is mirrored at zero).
    pub mirrored: bool,
}

impl Axis {
    /// Returns a linear axis for percent, which never leaves 0–100.
    pub fn percent(label: impl Into<String>) -> Self {
        Self { label: label.into(), bounds: Some((0.0, 100.0)), ..Self::default() }
    }
}

/// One line of a chart.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ChartLine {
    /// Name of the line; a line without one is not labelled.
    pub name: String,
    /// Points `(x, y)`, with x increasing.
    pub points: Vec<(f64, f64)>,
    /// Band around the line: `(x, low, high)`; empty for none.
    pub band: Vec<(f64, f64, f64)>,
    /// Look of the line: colour, dashes, width and markers.
    pub look: Look,
}

impl ChartLine {
    /// Returns a line by its name and points, with the look of its place among the lines.
    pub fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), points, ..Self::default() }
    }
}

/// Look of a line: its colour, dashes, width and markers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Look {
    /// Colour, dashes and marker of its place among the lines; the first line is the main one.
    #[default]
    Ordinary,
    /// The main line: solid, wide, with its name in bold.
    Main,
    /// Colour, dashes and marker of this number; `Main` has number 0.
    Numbered(usize),
    /// Colour, dashes and marker of this number, with a marker at every point.
    MarkedAtEveryPoint(usize),
    /// Grey and thin, without markers: a line to compare with.
    Quiet,
}

/// A horizontal line across a chart.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Level {
    /// Name of the level.
    pub name: String,
    /// Height of the level, in the unit of the vertical axis.
    pub value: f64,
    /// Whether the level is dotted instead of dashed, so that two levels can be told apart.
    pub dotted: bool,
}

/// A point to be noted, with a few words beside it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Note {
    /// Place on the horizontal axis.
    pub x: f64,
    /// Place on the vertical axis.
    pub y: f64,
    /// Text beside the point, in a few words.
    pub text: String,
}

impl Chart {
    /// Returns whether there is anything to draw.
    pub fn is_empty(&self) -> bool {
        !self
            .lines
            .iter()
            .any(|line| line.points.iter().any(|&(x, y)| shown(x).is_some() && shown(y).is_some()))
    }

    /// Returns the description, or one made from the lines.
    fn described(&self) -> String {
        if !self.description.is_empty() {
            return self.description.clone();
        }
        let mut text = format!("{} against {}.", self.y.label, self.x.label);
        for line in self.lines.iter().filter(|line| !line.name.is_empty()) {
            let mut ends = line.points.iter().filter(|(x, y)| shown(*x).is_some() && shown(*y).is_some());
            if let Some(first) = ends.next() {
                let last = ends.next_back().unwrap_or(first);
                let _ =
                    write!(text, " {}: from {} to {}.", line.name, significant(first.1), significant(last.1));
            }
        }
        for level in self.levels.iter().filter(|level| shown(level.value).is_some()) {
            let _ = write!(text, " {}: {}.", level.name, significant(level.value));
        }
        text
    }
}

/// Place where a chart is shown: a wide page, a phone, or a file of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Canvas {
    /// A page of ordinary width: labels stand right of the lines.
    Wide,
    /// A phone: no labels at the lines; the page shows [`legend`] instead.
    Narrow,
    /// A file of its own, with its colours in it.
    Standalone,
}

/// Height of a label, with its distance to the next one.
const LABEL_GAP: f64 = 16.0;
/// Width between the plot and the labels right of it, which the leaders need.
const LEADER_WIDTH: f64 = 30.0;

/// Draws the chart as an SVG element; `id` must be unique in the page.
pub(crate) fn draw(chart: &Chart, canvas: Canvas, id: &str) -> String {
    let layout = Layout::for_canvas(chart, canvas);
    let mut svg = String::new();
    let (width, height) = (layout.width, layout.height);
    let _ = write!(
        svg,
        "<svg class=\"rh {class}\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\"{size} role=\"img\" \
         aria-labelledby=\"{id}-title {id}-text\"><title id=\"{id}-title\">{title}</title><desc id=\"{id}-text\">{text}</desc>",
        class = match canvas {
            Canvas::Wide => "wide",
            Canvas::Narrow => "narrow",
            Canvas::Standalone => "standalone",
        },
        size = if canvas == Canvas::Standalone {
            format!(" width=\"{width}\" height=\"{height}\"")
        } else {
            String::new()
        },
        title = escape_html(&chart.title),
        text = escape_html(&chart.described()),
    );
    if canvas == Canvas::Standalone {
        let rules = chart_rules(EITHER.paper, EITHER.ink, EITHER.soft, EITHER.rule, |index| {
            EITHER.lines[index].to_string()
        });
        let _ = write!(svg, "<style>{rules}</style>");
        write_text(&mut svg, "strong", (layout.edge, 22.0), "", &chart.title);
    }
    layout.draw_axes(chart, &mut svg);
    layout.draw_levels(chart, &mut svg);
    layout.draw_bands(chart, &mut svg);
    layout.draw_note(chart, &mut svg);
    // The first line is the most important one, so it is drawn last and lies on top.
    for index in (0..chart.lines.len()).rev() {
        layout.draw_line(chart, index, &mut svg);
    }
    layout.draw_labels(chart, canvas, &mut svg);
    svg.push_str("</svg>");
    svg
}

/// Lists the lines and levels of a chart with a sample of each, in HTML. The list stands beside a narrow
/// chart, and beside a wide one that has no room for all labels.
pub(crate) fn legend(chart: &Chart) -> String {
    let wide = Layout::for_canvas(chart, Canvas::Wide);
    let class = if wide.labels(chart).len() > wide.labels_most() { "legend always" } else { "legend" };
    let mut html = format!("<ul class=\"{class}\" aria-hidden=\"true\">");
    let sample = |inner: &str| {
        format!("<svg class=\"rh sample\" viewBox=\"0 0 36 12\" width=\"36\" height=\"12\">{inner}</svg>")
    };
    for (index, line) in chart.lines.iter().enumerate().filter(|(_, line)| !line.name.is_empty()) {
        let style = Style::from_look(line.look, index);
        let inner = format!("{}{}", style.stroke("M1 6H35"), style.dot(18.0, 6.0, 3.6, ""));
        let _ = write!(html, "<li>{}{}</li>", sample(&inner), escape_html(&line.name));
    }
    for level in chart.levels.iter().filter(|level| shown(level.value).is_some()) {
        let inner =
            format!("<path class=\"level\" d=\"M1 6H35\" stroke-dasharray=\"{}\"/>", level_dashes(level));
        let _ = write!(html, "<li>{}{}</li>", sample(&inner), escape_html(&level_label(level)));
    }
    html.push_str("</ul>");
    html
}

/// Style of one drawn line.
struct Style {
    /// Number of the line in the palette; `None` for a quiet line.
    number: Option<usize>,
    wide: bool,
    every_point: bool,
}

impl Style {
    fn from_look(look: Look, place: usize) -> Self {
        match look {
            Look::Ordinary => Self { number: Some(place), wide: place == 0, every_point: false },
            Look::Main => Self { number: Some(0), wide: true, every_point: false },
            Look::Numbered(number) => Self { number: Some(number), wide: false, every_point: false },
            Look::MarkedAtEveryPoint(number) => Self { number: Some(number), wide: false, every_point: true },
            Look::Quiet => Self { number: None, wide: false, every_point: false },
        }
    }

    fn stroke(&self, path: &str) -> String {
        let Some(number) = self.number else {
            return format!("<path class=\"line quiet\" d=\"{path}\" stroke-dasharray=\"4 3\"/>");
        };
        let dashes = dashes(number);
        let dashes =
            if dashes.is_empty() { String::new() } else { format!(" stroke-dasharray=\"{dashes}\"") };
        let wide = if self.wide { " main" } else { "" };
        format!("<path class=\"line s{}{wide}\" d=\"{path}\"{dashes}/>", number % STYLES)
    }

    /// Draws a marker, with a text that is shown when somebody points at it; nothing for a quiet line.
    fn dot(&self, x: f64, y: f64, radius: f64, text: &str) -> String {
        let Some(number) = self.number else { return String::new() };
        let shape = marker(number, x, y, radius);
        let class = number % STYLES;
        if text.is_empty() {
            format!("{shape} class=\"f{class}\"/>")
        } else {
            let name = &shape[1..shape.find(' ').unwrap_or(shape.len())];
            format!("{shape} class=\"f{class}\"><title>{}</title></{name}>", escape_html(text))
        }
    }
}

/// A label right of the plot.
struct Label {
    text: String,
    /// Place where the line ends, from the left; `end` is from the top.
    end_x: f64,
    end: f64,
    /// Mean height of the line, from the top. It breaks ties between lines that end at the same place: lines
    /// that were higher before come first.
    height_before: f64,
    style: Option<Style>,
}

struct Layout {
    width: f64,
    height: f64,
    /// Distance of titles from the left.
    edge: f64,
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    x: Span,
    y: Span,
}

impl Layout {
    fn for_canvas(chart: &Chart, canvas: Canvas) -> Self {
        let points = || chart.lines.iter().flat_map(|line| line.points.iter());
        let bands =
            chart.lines.iter().flat_map(|line| line.band.iter()).flat_map(|&(_, low, high)| [low, high]);
        let levels = chart.levels.iter().map(|level| level.value);
        let heights = points().map(|&(_, y)| y).chain(bands).chain(levels);
        let (width, height, x_ticks) = match canvas {
            Canvas::Wide => (800.0, 400.0, 6),
            Canvas::Narrow => (360.0, 300.0, 4),
            Canvas::Standalone => (800.0, 430.0, 6),
        };
        let x = Span::around(points().map(|&(x, _)| x), chart.x.scale, chart.x.bounds, x_ticks);
        let y = Span::around(heights, chart.y.scale, chart.y.bounds, 5);
        let tick_width = y.ticks.iter().map(|(_, text)| text_width(text)).fold(0.0, f64::max);
        let names =
            chart.lines.iter().map(|line| line.name.clone()).chain(chart.levels.iter().map(level_label));
        let label_width = names.map(|name| text_width(&shortened(&name))).fold(0.0, f64::max);
        // A page has margins of its own. A picture needs some, and carries its title.
        let (title, edge) = if canvas == Canvas::Standalone { (30.0, 14.0) } else { (0.0, 0.0) };
        Self {
            width,
            height,
            edge,
            left: edge + (tick_width + 14.0).max(30.0),
            right: if canvas == Canvas::Narrow {
                width - 14.0
            } else {
                width - label_width - LEADER_WIDTH - 14.0 - edge
            },
            top: 30.0 + title,
            bottom: height - 44.0 - edge / 2.0,
            x,
            y,
        }
    }

    fn at(&self, x: f64, y: f64) -> Option<(f64, f64)> {
        Some((self.across(x)?, self.down(y)?))
    }

    fn across(&self, x: f64) -> Option<f64> {
        self.x.position(x).map(|x| self.left + x * (self.right - self.left))
    }

    fn down(&self, y: f64) -> Option<f64> {
        self.y.position(y).map(|y| self.bottom - y * (self.bottom - self.top))
    }

    fn draw_axes(&self, chart: &Chart, svg: &mut String) {
        let (left, right, bottom) = (coordinate(self.left), coordinate(self.right), coordinate(self.bottom));
        for (value, text) in &self.y.ticks {
            let Some(y) = self.down(*value) else { continue };
            let text = if chart.y.mirrored { text.trim_start_matches('−') } else { text };
            let class = if chart.y.mirrored && *value == 0.0 { "axis" } else { "grid" };
            let _ = write!(svg, "<path class=\"{class}\" d=\"M{left} {}H{right}\"/>", coordinate(y));
            write_text(svg, "soft", (self.left - 8.0, y + 4.0), "end", text);
        }
        let _ = write!(svg, "<path class=\"axis\" d=\"M{left} {bottom}H{right}\"/>");
        for (value, text) in &self.x.ticks {
            let x = self.across(*value).unwrap_or(self.left);
            let _ = write!(svg, "<path class=\"axis\" d=\"M{} {bottom}v5\"/>", coordinate(x));
            write_text(svg, "soft", (x, self.bottom + 19.0), "middle", text);
        }
        let middle = f64::midpoint(self.left, self.right);
        write_text(svg, "soft", (middle, self.bottom + 38.0), "middle", &chart.x.label);
        write_text(svg, "soft", (self.edge, self.top - 14.0), "", &chart.y.label);
    }

    fn draw_levels(&self, chart: &Chart, svg: &mut String) {
        for level in &chart.levels {
            let Some(y) = self.down(level.value) else { continue };
            let _ = write!(
                svg,
                "<path class=\"level\" d=\"M{} {}H{}\" stroke-dasharray=\"{}\"/>",
                coordinate(self.left),
                coordinate(y),
                coordinate(self.right),
                level_dashes(level),
            );
        }
    }

    fn draw_bands(&self, chart: &Chart, svg: &mut String) {
        for (index, line) in chart.lines.iter().enumerate().rev() {
            let Some(number) = Style::from_look(line.look, index).number else { continue };
            let edge: Vec<_> = line
                .band
                .iter()
                .filter_map(|&(x, low, high)| Some((self.at(x, low.min(high))?, self.at(x, low.max(high))?)))
                .collect();
            if edge.len() < 2 {
                continue;
            }
            let mut path = String::new();
            write_path(&edge.iter().map(|&(_, high)| high).collect::<Vec<_>>(), 'M', &mut path);
            write_path(&edge.iter().rev().map(|&(low, _)| low).collect::<Vec<_>>(), 'L', &mut path);
            let _ = write!(svg, "<path class=\"band f{}\" d=\"{path}Z\"/>", number % STYLES);
        }
    }

    fn draw_note(&self, chart: &Chart, svg: &mut String) {
        let Some(note) = &chart.note else { return };
        let Some((x, y)) = self.at(note.x, note.y) else { return };
        // The text stands on the side of the line that has room for it.
        let (anchor, shift) =
            if x + text_width(&note.text) + 10.0 > self.right { ("end", -6.0) } else { ("start", 6.0) };
        let _ = write!(
            svg,
            "<path class=\"axis\" d=\"M{} {}V{}\" stroke-dasharray=\"2 3\"/>",
            coordinate(x),
            coordinate(y),
            coordinate(self.bottom),
        );
        write_text(svg, "soft halo", (x + shift, self.bottom - 8.0), anchor, &note.text);
    }

    fn draw_line(&self, chart: &Chart, index: usize, svg: &mut String) {
        let line = &chart.lines[index];
        let style = Style::from_look(line.look, index);
        let placed: Vec<Option<(f64, f64)>> = line.points.iter().map(|&(x, y)| self.at(x, y)).collect();
        let mut path = String::new();
        for stretch in placed.split(Option::is_none) {
            write_path(&stretch.iter().copied().flatten().collect::<Vec<_>>(), 'M', &mut path);
        }
        if path.is_empty() {
            return;
        }
        svg.push_str(&style.stroke(&path));
        // Markers of different lines stand at different places, so that lines which coincide can be told
        // apart.
        let marked_points: Vec<usize> = if style.every_point {
            (0..placed.len()).collect()
        } else {
            let shift = (index as f64 + 0.5) / chart.lines.len() as f64;
            let mut marked_points: Vec<usize> = (0..7)
                .map(|step| {
                    ((step as f64 + shift) / 7.0 * placed.len().saturating_sub(1) as f64).round() as usize
                })
                .collect();
            marked_points.dedup();
            marked_points
        };
        for at in marked_points {
            if let Some((x, y)) = placed[at] {
                let (value_x, value_y) = line.points[at];
                let value_y = if chart.y.mirrored { value_y.abs() } else { value_y };
                let name = if line.name.is_empty() { String::new() } else { format!("{}: ", line.name) };
                let text =
                    format!("{name}{} at {}", value_text(value_y, &chart.y), value_text(value_x, &chart.x));
                svg.push_str(&style.dot(x, y, 3.6, &text));
            }
        }
    }

    /// Lists the labels right of the plot, levels first and then the lines by their importance: all of them,
    /// whether there is room or not.
    fn labels(&self, chart: &Chart) -> Vec<Label> {
        let lines = chart.lines.iter().enumerate().filter(|(_, line)| !line.name.is_empty()).filter_map(
            |(index, line)| {
                let placed: Vec<(f64, f64)> =
                    line.points.iter().filter_map(|&(x, y)| self.at(x, y)).collect();
                let &(end_x, end) = placed.last()?;
                let style = Style::from_look(line.look, index);
                Some(Label {
                    text: shortened(&line.name),
                    end_x,
                    end,
                    height_before: placed.iter().map(|(_, y)| y).sum::<f64>() / placed.len() as f64,
                    style: Some(style),
                })
            },
        );
        let levels = chart.levels.iter().filter_map(|level| {
            let end = self.down(level.value)?;
            Some(Label { text: level_label(level), end_x: self.right, end, height_before: end, style: None })
        });
        levels.chain(lines).collect()
    }

    /// Returns how many labels there is room for.
    fn labels_most(&self) -> usize {
        let (top, bottom) = self.label_bounds();
        ((bottom - top) / LABEL_GAP) as usize + 1
    }

    /// Returns the lowest and highest place of a label, from the top.
    fn label_bounds(&self) -> (f64, f64) {
        (self.top - 6.0, self.bottom + 6.0)
    }

    fn draw_labels(&self, chart: &Chart, canvas: Canvas, svg: &mut String) {
        if canvas == Canvas::Narrow {
            // A phone has no room beside the plot: lines are named in the legend, levels on their line. All
            // curves end near the new model's level (dotted) and begin near doing nothing, so each level is
            // named at its other end.
            for level in &chart.levels {
                let Some(y) = self.down(level.value) else { continue };
                let base = if y < self.top + 16.0 { y + 14.0 } else { y - 5.0 };
                let (x, anchor) =
                    if level.dotted { (self.left + 2.0, "start") } else { (self.right - 2.0, "end") };
                write_text(svg, "soft halo", (x, base), anchor, &level_label(level));
            }
            return;
        }
        let mut labels = self.labels(chart);
        labels.truncate(self.labels_most());
        // A twentieth of the mean height decides between lines that end almost together, as all curves of one
        // gallery do: at 100 % there is only one gallery.
        labels.sort_by(|a, b| (a.end + 0.05 * a.height_before).total_cmp(&(b.end + 0.05 * b.height_before)));
        let mut highest = f64::NEG_INFINITY;
        let wanted: Vec<f64> = labels
            .iter()
            .map(|label| {
                highest = highest.max(label.end);
                highest
            })
            .collect();
        let (top, bottom) = self.label_bounds();
        let spread = spread_apart(&wanted, LABEL_GAP, top, bottom);
        for (label, y) in labels.iter().zip(spread) {
            let (begin, end) = (label.end_x + 3.0, self.right + LEADER_WIDTH - 8.0);
            let class = label
                .style
                .as_ref()
                .and_then(|style| style.number)
                .map_or("axis".into(), |number| format!("s{}", number % STYLES));
            let _ = write!(
                svg,
                "<path class=\"leader {class}\" d=\"M{} {}L{} {}\"/>",
                coordinate(begin),
                coordinate(label.end),
                coordinate(end),
                coordinate(y),
            );
            if let Some(style) = &label.style {
                svg.push_str(&style.dot(end + 4.0, y, 3.6, ""));
            }
            let class = match &label.style {
                Some(style) if style.wide => "strong",
                Some(_) => "label",
                None => "soft",
            };
            write_text(svg, class, (end + 12.0, y + 4.0), "", &label.text);
        }
    }
}

/// Writes a text that stands at a point. `anchor` says which part of the text stands there; empty means its
/// start.
fn write_text(svg: &mut String, class: &str, (x, y): (f64, f64), anchor: &str, text: &str) {
    let anchor = if anchor.is_empty() { String::new() } else { format!(" text-anchor=\"{anchor}\"") };
    let (x, y, text) = (coordinate(x), coordinate(y), escape_html(text));
    let _ = write!(svg, "<text class=\"{class}\" x=\"{x}\" y=\"{y}\"{anchor}>{text}</text>");
}

/// Writes points as a path, without those that lie within a sixth of a pixel of the line through their
/// neighbours: no eye sees them, and they are most of a page's size.
fn write_path(points: &[(f64, f64)], begin: char, path: &mut String) {
    const TOLERANCE: f64 = 0.16;
    let mut keep = vec![false; points.len()];
    let mut stretches = vec![(0, points.len().saturating_sub(1))];
    // Douglas and Peucker's method: a stretch is one straight line unless a point is too far from it.
    while let Some((first, last)) = stretches.pop() {
        let Some((&from, &to)) = points.get(first).zip(points.get(last)) else { continue };
        (keep[first], keep[last]) = (true, true);
        let (dx, dy) = (to.0 - from.0, to.1 - from.1);
        let length = dx.hypot(dy).max(1e-9);
        let distance = |&(x, y): &(f64, f64)| (dx * (y - from.1) - dy * (x - from.0)).abs() / length;
        let between = (first + 1..last).map(|index| (index, distance(&points[index])));
        if let Some((index, _)) =
            between.max_by(|a, b| a.1.total_cmp(&b.1)).filter(|&(_, far)| far > TOLERANCE)
        {
            stretches.extend([(first, index), (index, last)]);
        }
    }
    let mut command = begin;
    for (x, y) in points.iter().zip(&keep).filter(|(_, keep)| **keep).map(|(point, _)| point) {
        let _ = write!(path, "{command}{} {}", coordinate(*x), coordinate(*y));
        command = 'L';
    }
}

fn level_dashes(level: &Level) -> &'static str {
    if level.dotted { "1.5 4" } else { "6 4" }
}

fn level_label(level: &Level) -> String {
    format!(
        "{} {}",
        level.name,
        if level.value.abs() < 1.0 { significant(level.value) } else { decimal(level.value, 1) }
    )
}

fn value_text(value: f64, axis: &Axis) -> String {
    match axis.bounds {
        Some(_) => format!("{} %", decimal(value, 1)),
        None => significant(value),
    }
}

/// Shortens a name until it fits beside a plot.
fn shortened(name: &str) -> String {
    const LONGEST: usize = 30;
    if name.chars().count() <= LONGEST {
        return name.into();
    }
    name.chars().take(LONGEST - 1).chain(['…']).collect()
}

/// Estimates how wide a text is at 12 pixels. Fonts differ, so this is on the wide side.
fn text_width(text: &str) -> f64 {
    text.chars()
        .map(|character| match character {
            'i' | 'l' | 'j' | 't' | 'f' | 'r' | 'I' | '.' | ',' | ':' | ';' | '\'' | '|' | '!' | ' '
            | '·' | '(' | ')' => 4.2,
            'm' | 'w' | 'M' | 'W' | '@' | '%' => 11.0,
            'A'..='Z' => 8.6,
            _ if character.is_ascii() => 7.3,
            _ => 9.5,
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_breaks_where_it_is_not_defined() {
        let points =
            vec![(0.0, 1.0), (1.0, 2.0), (2.0, f64::NAN), (3.0, 1.0), (4.0, f64::INFINITY), (f64::NAN, 1.0)];
        let band = vec![(0.0, f64::NEG_INFINITY, 2.0), (1.0, 0.5, 2.5), (3.0, 0.5, f64::NAN)];
        let chart = Chart {
            lines: vec![ChartLine { band, ..ChartLine::new("line", points) }],
            levels: vec![Level { name: "level".into(), value: f64::NAN, dotted: false }],
            note: Some(Note { x: f64::NAN, y: 1.0, text: "note".into() }),
            ..Chart::default()
        };
        for canvas in [Canvas::Wide, Canvas::Narrow, Canvas::Standalone] {
            let svg = draw(&chart, canvas, "id");
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            let path = svg
                .split("class=\"line s0 main\" d=\"")
                .nth(1)
                .and_then(|rest| rest.split('"').next())
                .unwrap();
            assert_eq!(path.matches('M').count(), 2, "{path}");
        }
    }

    #[test]
    fn labels_that_find_no_room_are_left_to_the_legend() {
        let chart = |lines: usize| Chart {
            lines: (0..lines)
                .map(|line| ChartLine::new(format!("line {line}"), vec![(0.0, 1.0), (1.0, line as f64)]))
                .collect(),
            levels: vec![Level { name: "level".into(), value: 2.0, dotted: false }],
            ..Chart::default()
        };
        for (canvas, height) in [(Canvas::Wide, 400.0), (Canvas::Standalone, 430.0)] {
            let svg = draw(&chart(40), canvas, "id");
            let heights: Vec<f64> = svg
                .split("<text class=\"label\"")
                .skip(1)
                .map(|rest| rest.split(" y=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap())
                .collect();
            assert!(heights.len() >= 16 && heights.iter().all(|&y| y < height), "{heights:?}");
            assert!(svg.contains(">line 0</text>") && svg.contains(">level 2.0</text>"), "{svg}");
            assert!(!svg.contains(">line 39</text>"), "{svg}");
        }
        assert!(legend(&chart(40)).contains("legend always") && legend(&chart(40)).contains("line 39"));
        assert!(!legend(&chart(5)).contains("always"));
    }

    #[test]
    fn a_chart_of_nothing_is_still_a_chart() {
        let chart = Chart::default();
        assert!(chart.is_empty());
        assert!(draw(&chart, Canvas::Wide, "id").ends_with("</svg>"));
    }
}
