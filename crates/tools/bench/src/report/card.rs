use super::canvas::{Anchor, Canvas, Font, colour};
use super::svg::Heading;

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
