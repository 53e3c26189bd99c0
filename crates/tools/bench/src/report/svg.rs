use super::NOTHING;
use super::canvas::{Anchor, Canvas, Font, colour};
use super::comparison::{Comparison, Role, Row};
use super::marks::{footnotes, ratio_note};
use super::panel::{Panel, whisker};
use crate::workload::Metric;

/// The width of every picture.
pub(super) const WIDTH_PX: f64 = 980.0;
/// The margin around the drawing.
pub(super) const MARGIN_PX: f64 = 34.0;
/// The width in between.
pub(super) const INNER_WIDTH_PX: f64 = WIDTH_PX - 2.0 * MARGIN_PX;

const TITLE: Font = Font::new(22.0, colour::INK).bold();
const SUBTITLE: Font = Font::new(13.0, colour::FAINT);
const NOTE: Font = Font::new(11.5, colour::FAINT);
/// The distance of base lines, relative to the font size.
const LEADING: f64 = 1.4;

/// A picture that grows downwards: heading, panels, notes.
pub(super) struct Card {
    pub(super) canvas: Canvas,
    /// The position of the next element.
    pub(super) y: f64,
    title: String,
}

impl Card {
    pub(super) fn new(heading: &Heading) -> Self {
        let mut card =
            Self { canvas: Canvas::default(), y: MARGIN_PX - 6.0, title: heading.title.to_owned() };
        card.paragraph(heading.title, TITLE);
        card.paragraph(heading.machine, SUBTITLE);
        card.y += 14.0;
        card
    }

    fn paragraph(&mut self, text: &str, font: Font) {
        for line in font.lines(text, INNER_WIDTH_PX) {
            self.y += LEADING * font.size_px;
            self.canvas.text((MARGIN_PX, self.y - 0.3 * font.size_px), Anchor::Start, font, &line);
        }
    }

    /// Adds notes at the bottom.
    pub(super) fn finish(mut self, notes: &[String]) -> String {
        for note in notes {
            self.paragraph(note, NOTE);
        }
        self.canvas.finish((WIDTH_PX, self.y + MARGIN_PX - 8.0), &self.title)
    }
}

/// The lines above a picture.
#[derive(Clone, Copy, Debug)]
pub struct Heading<'a> {
    /// The title.
    pub title: &'a str,
    /// The machine and the date, in a line.
    pub machine: &'a str,
}

/// The horizontal distance of panels.
const COLUMN_GAP_PX: f64 = 44.0;
/// The vertical distance of panels.
const ROW_GAP_PX: f64 = 26.0;
const LEGEND: Font = Font::new(11.5, colour::INK);
/// The width of a symbol of the legend, and of the space after its text.
const SIGN_PX: f64 = 25.0;
const LEGEND_GAP_PX: f64 = 20.0;
const LEGEND_PITCH_PX: f64 = 20.0;

/// The main picture: a panel for each workload with a bar for each back end.
#[must_use]
pub fn svg(comparison: &Comparison, heading: &Heading) -> String {
    let mut card = Card::new(heading);
    let rows: Vec<&Row> = comparison.by_metric().into_iter().flat_map(|(_, rows)| rows).collect();
    if rows.is_empty() {
        return card.finish(&[NOTHING.to_owned()]);
    }
    legend(&mut card, comparison);
    let columns = rows.len().min(2);
    let width = (INNER_WIDTH_PX - COLUMN_GAP_PX * (columns - 1) as f64) / columns as f64;
    for line in rows.chunks(columns) {
        let panels: Vec<Panel> = line.iter().map(|row| Panel::new(row, width)).collect();
        draw_line(&mut card, &panels, width);
    }
    let notes: Vec<String> = ratio_note(comparison).into_iter().chain(footnotes(comparison)).collect();
    card.finish(&notes)
}

fn draw_line(card: &mut Card, panels: &[Panel], width: f64) {
    let head = panels.iter().map(Panel::head_px).fold(0.0, f64::max);
    let body = panels.iter().map(Panel::body_px).fold(0.0, f64::max);
    for (column, panel) in panels.iter().enumerate() {
        let x = MARGIN_PX + column as f64 * (width + COLUMN_GAP_PX);
        panel.draw(&mut card.canvas, (x, card.y), head);
    }
    card.y += head + body + ROW_GAP_PX;
}

type Sign = fn(&mut Canvas, (f64, f64));

fn legend(card: &mut Card, comparison: &Comparison) {
    let (mut x, mut y) = (MARGIN_PX, card.y + 8.0);
    for (words, sign) in legend_entries(comparison) {
        let width = SIGN_PX + LEGEND.width_px(&words);
        if x > MARGIN_PX && x + width > MARGIN_PX + INNER_WIDTH_PX {
            (x, y) = (MARGIN_PX, y + LEGEND_PITCH_PX);
        }
        sign(&mut card.canvas, (x, y));
        let words = LEGEND.cut(&words, INNER_WIDTH_PX - SIGN_PX);
        card.canvas.text((x + SIGN_PX, y), Anchor::Start, LEGEND, &words);
        x += width + LEGEND_GAP_PX;
    }
    card.y = y + LEGEND_PITCH_PX;
}

fn legend_entries(comparison: &Comparison) -> impl Iterator<Item = (String, Sign)> {
    let has = |role| comparison.cells().any(|cell| cell.role == role);
    let ratios = comparison.cells().any(|cell| cell.ratio.is_some());
    let round_trips = comparison.rows.iter().any(|row| row.metric == Metric::Micros);
    let reference = &comparison.reference;
    let entries: [(bool, String, Sign); 7] = [
        (has(Role::Reference), reference.clone(), |canvas, at| swatch(canvas, at, colour::REFERENCE)),
        (has(Role::Variant), "its variants".to_owned(), |canvas, at| swatch(canvas, at, colour::VARIANT)),
        (has(Role::Peer), "others".to_owned(), |canvas, at| swatch(canvas, at, colour::PEER)),
        (ratios, format!("{reference} is n times better"), ratio_sign),
        (has(Role::Ceiling), "the most that can be reached".to_owned(), ceiling_sign),
        (true, "least to most".to_owned(), |canvas, (x, y)| whisker(canvas, (x, x + 18.0), y - 4.0)),
        (round_trips, "99th percentile".to_owned(), |canvas, (x, y)| {
            canvas.ring((x + 14.0, y - 4.0), 3.5, colour::INK);
        }),
    ];
    entries.into_iter().filter_map(|(present, words, sign)| present.then_some((words, sign)))
}

fn ratio_sign(canvas: &mut Canvas, (x, y): (f64, f64)) {
    canvas.text((x + 18.0, y), Anchor::End, Font::new(12.0, colour::FAINT), "n×");
}

fn swatch(canvas: &mut Canvas, (x, y): (f64, f64), fill: &str) {
    canvas.bar((x, y - 9.0), (18.0, 10.0), fill);
}

fn ceiling_sign(canvas: &mut Canvas, (x, y): (f64, f64)) {
    canvas.outline((x, y - 7.0), (18.0, 6.0), colour::CEILING);
}
