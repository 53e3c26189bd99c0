use super::canvas::{Anchor, Canvas, Font, PART_GAP_PX, colour};
use super::caption::{details, headline};
use super::comparison::{Cell, Role, Row};
use super::figures::{direction, figure, measure, place_in_words, times};
use super::marks::marks;
use super::scale::Linear;
use crate::workload::Metric;

const HEADLINE: Font = Font::new(15.0, colour::INK).bold();
const DETAIL: Font = Font::new(11.5, colour::FAINT);
const NAME: Font = Font::new(12.0, colour::INK);
const CEILING_NAME: Font = Font::new(11.0, colour::FAINT);
const VALUE: Font = Font::new(12.0, colour::INK);
const RATIO: Font = Font::new(12.0, colour::FAINT);

const HEADLINE_PX: f64 = 20.0;
const DETAIL_PX: f64 = 16.0;
/// The distance between two bars.
const PITCH_PX: f64 = 25.0;
const BAR_PX: f64 = 17.0;
const CEILING_PITCH_PX: f64 = 19.0;
const CEILING_BAR_PX: f64 = 6.0;
/// The distance between names, bars and values.
const GAP_PX: f64 = 8.0;
/// The largest share of the width for names.
const NAME_SHARE_MAX: f64 = 0.4;
/// A ceiling or a 99th percentile further than this beyond the longest bar is cut, so that bars remain distinguishable.
const CEILING_BEYOND_MAX: f64 = 1.4;
const P99_BEYOND_MAX: f64 = 2.2;
/// Text widths are estimated generously; this share of an estimate is surely covered by text.
const COVERED_SHARE: f64 = 0.9;

/// One workload's bars.
pub(super) struct Panel<'a> {
    row: &'a Row,
    headlines: Vec<String>,
    details: Vec<String>,
    names_px: f64,
    scale: Linear,
}

impl<'a> Panel<'a> {
    pub(super) fn new(row: &'a Row, width_px: f64) -> Self {
        let names = row.cells.iter().map(|cell| name_font(cell).width_px(&cell.backend)).fold(0.0, f64::max);
        let names_px = names.min(NAME_SHARE_MAX * width_px);
        let labels = row.cells.iter().map(|cell| label_px(row, cell)).fold(0.0, f64::max);
        let length_px = width_px - names_px - labels - 2.0 * GAP_PX;
        let mut notes = details(&row.workload);
        notes.push(format!("{}, {}", unit(row.metric), direction(row.metric)));
        notes.extend(place_in_words(row));
        Self {
            row,
            headlines: HEADLINE.lines(&headline(&row.workload), width_px),
            details: detail_lines(&notes, width_px),
            names_px,
            scale: Linear { max: scale_max(row), length_px: length_px.max(0.0) },
        }
    }

    /// The height of the text above the bars.
    pub(super) fn head_px(&self) -> f64 {
        self.headlines.len() as f64 * HEADLINE_PX + self.details.len() as f64 * DETAIL_PX + 8.0
    }

    /// The height of the bars.
    pub(super) fn body_px(&self) -> f64 {
        self.row.cells.iter().map(pitch_px).sum()
    }

    /// Draws the panel with bars that start `head_px` below `at`.
    pub(super) fn draw(&self, canvas: &mut Canvas, at: (f64, f64), head_px: f64) {
        canvas.group(&self.row.workload.to_string(), |canvas| {
            self.draw_head(canvas, at);
            self.draw_bars(canvas, (at.0, at.1 + head_px));
        });
    }

    fn draw_head(&self, canvas: &mut Canvas, (x, mut y): (f64, f64)) {
        for line in &self.headlines {
            y += HEADLINE_PX;
            canvas.text((x, y - 5.0), Anchor::Start, HEADLINE, line);
        }
        for line in &self.details {
            y += DETAIL_PX;
            canvas.text((x, y - 4.0), Anchor::Start, DETAIL, line);
        }
    }

    fn draw_bars(&self, canvas: &mut Canvas, (x, y): (f64, f64)) {
        let start = x + self.names_px + GAP_PX;
        self.draw_ceiling_lines(canvas, (start, y));
        let mut top = y;
        for cell in &self.row.cells {
            let middle = top + pitch_px(cell) / 2.0;
            let font = name_font(cell);
            let name = font.cut(&cell.backend, self.names_px);
            canvas.text((start - GAP_PX, middle + 4.0), Anchor::End, font, &name);
            self.draw_value(canvas, (start, middle), cell);
            top += pitch_px(cell);
        }
        canvas.line((start, y), (start, top), colour::FAINT, "1");
    }

    /// Draws the lines of ceilings behind all bars, down to their own.
    fn draw_ceiling_lines(&self, canvas: &mut Canvas, (start, y): (f64, f64)) {
        let mut bottom = y;
        for cell in &self.row.cells {
            let x =
                cell.median().filter(|median| !self.scale.cuts(*median)).map(|median| self.scale.at(median));
            if let (Role::Ceiling, Some(x)) = (cell.role, x) {
                canvas.dashes((start + x, y), (start + x, bottom + 6.0), colour::CEILING);
            }
            bottom += pitch_px(cell);
        }
    }

    fn draw_value(&self, canvas: &mut Canvas, (start, middle): (f64, f64), cell: &Cell) {
        let Some(value) = cell.value else {
            return canvas.text((start + GAP_PX, middle + 4.0), Anchor::Start, RATIO, NOT_MEASURED);
        };
        let mut end = self.scale.at(value.median);
        if cell.role == Role::Ceiling {
            let top = middle - CEILING_BAR_PX / 2.0;
            canvas.bar((start, top), (end, CEILING_BAR_PX), colour::PAPER);
            canvas.outline((start, top), (end, CEILING_BAR_PX), colour::CEILING);
            if self.scale.cuts(value.median) {
                gap(canvas, (start + 0.8 * end, middle));
            }
        } else {
            canvas.bar((start, middle - BAR_PX / 2.0), (end, BAR_PX), fill(cell.role));
        }
        if value.samples > 1 && cell.role != Role::Ceiling {
            let ends = (start + self.scale.at(value.min), start + self.scale.at(value.max));
            whisker(canvas, ends, middle);
            end = end.max(self.scale.at(value.max));
        }
        end = end.max(self.draw_p99(canvas, (start, middle), cell));
        self.draw_label(canvas, (start + end + GAP_PX, middle), cell);
    }

    /// Draws the mark of the 99th percentile and returns its position; 0 if there is none.
    fn draw_p99(&self, canvas: &mut Canvas, (start, middle): (f64, f64), cell: &Cell) -> f64 {
        let Some(p99) = p99_micros(self.row, cell) else { return 0.0 };
        let end = self.scale.at(p99);
        let bar = cell.value.map_or(0.0, |value| self.scale.at(value.max));
        canvas.line((start + bar.min(end), middle), (start + end, middle), colour::CEILING, "1");
        if self.scale.cuts(p99) {
            arrow(canvas, (start + end, middle));
        } else {
            canvas.ring((start + end, middle), 3.5, colour::INK);
        }
        end + 4.0
    }

    fn draw_label(&self, canvas: &mut Canvas, (x, middle): (f64, f64), cell: &Cell) {
        let (value, ratio) = label(self.row, cell);
        let font = value_font(cell);
        let y = middle + 4.0;
        let size = (COVERED_SHARE * label_px(self.row, cell) + 4.0, font.size_px + 2.0);
        canvas.bar((x - 3.0, y - font.size_px), size, colour::PAPER);
        canvas.parts((x, y), [(font, &value), (RATIO, &ratio)]);
    }
}

const NOT_MEASURED: &str = "not measured";

/// A line from the minimum to the maximum with a stop at both ends.
pub(super) fn whisker(canvas: &mut Canvas, (from, to): (f64, f64), middle: f64) {
    canvas.line((from, middle), (to, middle), colour::WHISKER, "1");
    for x in [from, to] {
        canvas.line((x, middle - 3.5), (x, middle + 3.5), colour::WHISKER, "1");
    }
}

/// A gap in a bar that is too long to be shown.
fn gap(canvas: &mut Canvas, (x, middle): (f64, f64)) {
    let slant = |canvas: &mut Canvas, x: f64, colour, width| {
        canvas.line((x - 2.0, middle + 6.0), (x + 2.0, middle - 6.0), colour, width);
    };
    slant(canvas, x, colour::PAPER, "4");
    slant(canvas, x - 2.5, colour::CEILING, "1");
    slant(canvas, x + 2.5, colour::CEILING, "1");
}

/// Marks a value beyond the scale.
fn arrow(canvas: &mut Canvas, (x, middle): (f64, f64)) {
    for side in [-3.5, 3.5] {
        canvas.line((x - 3.5, middle + side), (x, middle), colour::WHISKER, "1.2");
    }
}

fn fill(role: Role) -> &'static str {
    match role {
        Role::Reference => colour::REFERENCE,
        Role::Variant => colour::VARIANT,
        Role::Peer | Role::Ceiling => colour::PEER,
    }
}

fn name_font(cell: &Cell) -> Font {
    match cell.role {
        Role::Reference => NAME.bold(),
        Role::Ceiling => CEILING_NAME,
        Role::Variant | Role::Peer => NAME,
    }
}

fn value_font(cell: &Cell) -> Font {
    match cell.role {
        Role::Reference => VALUE.bold(),
        Role::Ceiling => CEILING_NAME,
        Role::Variant | Role::Peer => VALUE,
    }
}

fn pitch_px(cell: &Cell) -> f64 {
    if cell.role == Role::Ceiling { CEILING_PITCH_PX } else { PITCH_PX }
}

fn unit(metric: Metric) -> &'static str {
    match metric {
        Metric::Micros => "µs, median",
        Metric::CpuPercent => "% of a core taken",
        Metric::Mpps | Metric::Gbps => metric.unit(),
    }
}

/// Joins the parts with dots; breaks lines at the dots where possible.
fn detail_lines(parts: &[String], width_px: f64) -> Vec<String> {
    let whole = |part: &String| {
        if DETAIL.width_px(part) < 0.9 * width_px { part.replace(' ', "\u{a0}") } else { part.clone() }
    };
    let lines = DETAIL.lines(&parts.iter().map(whole).collect::<Vec<_>>().join("\u{a0}· "), width_px);
    lines.iter().map(|line| line.trim_end_matches("\u{a0}·").to_owned()).collect()
}

fn p99_micros(row: &Row, cell: &Cell) -> Option<f64> {
    let shown = row.metric == Metric::Micros && cell.role != Role::Ceiling;
    cell.round_trip.filter(|_| shown).map(|trip| trip.p99_ns as f64 / 1e3)
}

/// The text behind a bar: the value, and the ratio, which has another colour.
fn label(row: &Row, cell: &Cell) -> (String, String) {
    let value = cell.median().map_or(NOT_MEASURED.to_owned(), |median| measure(median, row.metric));
    let p99 = p99_micros(row, cell).map_or(String::new(), |p99| format!(", p99 {}", figure(p99)));
    let ratio = cell.ratio.as_ref().filter(|_| cell.role != Role::Ceiling).map_or(String::new(), times);
    (value + &p99 + &marks(cell), ratio)
}

fn label_px(row: &Row, cell: &Cell) -> f64 {
    let (value, ratio) = label(row, cell);
    value_font(cell).width_px(&value) + PART_GAP_PX + RATIO.width_px(&ratio)
}

/// The end of the scale: the longest bar or whisker; ceilings and percentiles may go somewhat beyond.
fn scale_max(row: &Row) -> f64 {
    let most = |ceilings: bool| {
        let cells = row.cells.iter().filter(|cell| (cell.role == Role::Ceiling) == ceilings);
        cells.filter_map(|cell| cell.value).map(|value| value.max).fold(0.0, f64::max)
    };
    let (bars, ceilings) = (most(false), most(true));
    let p99 = row.cells.iter().filter_map(|cell| p99_micros(row, cell)).fold(0.0, f64::max);
    let beyond = ceilings.min(CEILING_BEYOND_MAX * bars).max(p99.min(P99_BEYOND_MAX * bars));
    if bars > 0.0 { bars.max(beyond) } else { ceilings }
}
