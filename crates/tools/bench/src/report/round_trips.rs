use super::canvas::{Anchor, Canvas, Font, colour};
use super::caption::{details, headline};
use super::comparison::{Cell, Comparison, Role, Row};
use super::figures::{figure, place_in_words};
use super::scale::Logarithmic;
use super::svg::{Card, Heading, INNER_WIDTH_PX, MARGIN_PX};
use crate::sample::RoundTrip;

const HEADLINE: Font = Font::new(15.0, colour::INK).bold();
const DETAIL: Font = Font::new(11.5, colour::FAINT);
const NAME: Font = Font::new(12.0, colour::INK);
const TICK: Font = Font::new(11.0, colour::FAINT);

const HEAD_PX: f64 = 44.0;
const PITCH_PX: f64 = 25.0;
const AXIS_PX: f64 = 20.0;
const PANEL_GAP_PX: f64 = 22.0;
const GAP_PX: f64 = 14.0;
/// Width of a column of numbers.
const COLUMN_PX: f64 = 58.0;
const NAMES_PX_MAX: f64 = 220.0;

/// A name and a value in ns.
type Percentile = (&'static str, fn(&RoundTrip) -> u64);

const PERCENTILES: [Percentile; 4] = [
    ("p50", |trip| trip.p50_ns),
    ("p90", |trip| trip.p90_ns),
    ("p99", |trip| trip.p99_ns),
    ("p99.9", |trip| trip.p999_ns),
];

/// The percentiles of round trips, a panel for each such workload, all on one logarithmic axis.
#[must_use]
pub fn svg_round_trips(comparison: &Comparison, heading: &Heading) -> String {
    let mut card = Card::new(heading);
    let rows: Vec<&Row> = comparison.rows.iter().filter(|row| trips(row).next().is_some()).collect();
    let Some(axis) = Axis::of(&rows) else {
        return card.finish(&["No round trips were measured.".to_owned()]);
    };
    for row in rows {
        let y = card.y;
        card.canvas.group(&row.workload.to_string(), |canvas| axis.draw_panel(canvas, y, row));
        card.y += HEAD_PX + trips(row).count() as f64 * PITCH_PX + AXIS_PX + PANEL_GAP_PX;
    }
    card.finish(&[
        "From left to right: p50, p90, p99 and p99.9 in µs on a logarithmic scale; medians of the samples."
            .to_owned(),
    ])
}

/// The axis that all panels share.
struct Axis {
    names_px: f64,
    scale: Logarithmic,
    length_px: f64,
}

impl Axis {
    /// `None` if there are no round trips.
    fn of(rows: &[&Row]) -> Option<Self> {
        let cells = || rows.iter().flat_map(|row| trips(row));
        let values = || cells().flat_map(|(_, trip)| PERCENTILES.map(|(_, value)| micros(value(&trip))));
        let least = values().reduce(f64::min)?;
        let most = values().reduce(f64::max)?;
        let names = cells().map(|(cell, _)| font(cell).width_px(&cell.backend)).fold(0.0, f64::max);
        let names_px = names.min(NAMES_PX_MAX);
        let length_px = INNER_WIDTH_PX - names_px - 2.0 * GAP_PX - COLUMN_PX * PERCENTILES.len() as f64;
        Some(Self { names_px, scale: Logarithmic::around(least, most, length_px), length_px })
    }

    fn start(&self) -> f64 {
        MARGIN_PX + self.names_px + GAP_PX
    }

    fn column(&self, index: usize) -> f64 {
        self.start() + self.length_px + GAP_PX + COLUMN_PX * (index + 1) as f64
    }

    fn draw_panel(&self, canvas: &mut Canvas, y: f64, row: &Row) {
        self.draw_head(canvas, y, row);
        let top = y + HEAD_PX;
        self.draw_ticks(canvas, (top, top + trips(row).count() as f64 * PITCH_PX));
        for (index, (cell, trip)) in trips(row).enumerate() {
            self.draw_back_end(canvas, top + (index as f64 + 0.5) * PITCH_PX, cell, &trip);
        }
    }

    fn draw_head(&self, canvas: &mut Canvas, y: f64, row: &Row) {
        let mut notes = details(&row.workload);
        notes.push("µs, less is better".to_owned());
        notes.extend(place_in_words(row));
        let width = self.column(0) - COLUMN_PX - MARGIN_PX;
        canvas.text(
            (MARGIN_PX, y + 15.0),
            Anchor::Start,
            HEADLINE,
            &HEADLINE.cut(&headline(&row.workload), width),
        );
        canvas.text((MARGIN_PX, y + 32.0), Anchor::Start, DETAIL, &DETAIL.cut(&notes.join(" · "), width));
        for (index, (name, _)) in PERCENTILES.iter().enumerate() {
            canvas.text((self.column(index), y + 32.0), Anchor::End, DETAIL, name);
        }
    }

    fn draw_ticks(&self, canvas: &mut Canvas, (top, bottom): (f64, f64)) {
        for tick in self.scale.ticks() {
            let x = self.start() + self.scale.at(tick);
            canvas.line((x, top), (x, bottom), colour::GRID, "1");
            let words = tick.to_string();
            canvas.text((x + TICK.width_px(&words) / 2.0, bottom + 14.0), Anchor::End, TICK, &words);
        }
    }

    fn draw_back_end(&self, canvas: &mut Canvas, middle: f64, cell: &Cell, trip: &RoundTrip) {
        let font = font(cell);
        let name = font.cut(&cell.backend, self.names_px);
        canvas.text((self.start() - GAP_PX, middle + 4.0), Anchor::End, font, &name);
        let colour = line_colour(cell.role);
        let places = PERCENTILES.map(|(_, value)| self.start() + self.scale.at(micros(value(trip))));
        canvas.line((places[0], middle), (places[3], middle), colour, "2");
        canvas.line((places[3], middle - 5.0), (places[3], middle + 5.0), colour, "2");
        canvas.ring((places[2], middle), 4.0, colour);
        canvas.dot((places[1], middle), 3.0, colour);
        canvas.dot((places[0], middle), 5.5, colour);
        for (index, (_, value)) in PERCENTILES.iter().enumerate() {
            canvas.text((self.column(index), middle + 4.0), Anchor::End, font, &figure(micros(value(trip))));
        }
    }
}

fn trips(row: &Row) -> impl Iterator<Item = (&Cell, RoundTrip)> {
    row.cells.iter().filter_map(|cell| Some((cell, cell.round_trip?)))
}

/// At least 1 ns, as a logarithmic axis has no 0.
fn micros(ns: u64) -> f64 {
    ns.max(1) as f64 / 1e3
}

fn font(cell: &Cell) -> Font {
    match cell.role {
        Role::Reference => NAME.bold(),
        Role::Ceiling => TICK,
        Role::Variant | Role::Peer => NAME,
    }
}

fn line_colour(role: Role) -> &'static str {
    match role {
        Role::Reference => colour::REFERENCE,
        Role::Variant => colour::VARIANT,
        Role::Peer => colour::FAINT,
        Role::Ceiling => colour::PEER,
    }
}
