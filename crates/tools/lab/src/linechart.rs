//! Line charts as SVG: a line for each architecture.

use lasthop_chart::{Anchor, Canvas, Font, colour};

const WIDTH_PX: f64 = 760.0;
const HEIGHT_PX: f64 = 380.0;
const LEFT_PX: f64 = 70.0;
const RIGHT_PX: f64 = 140.0;
const TOP_PX: f64 = 60.0;
const BOTTOM_PX: f64 = 56.0;
/// Apart for colour-blind readers, and in the order of the lines.
const LINES: [&str; 5] = [colour::REFERENCE, "#d1495b", "#2e8b57", "#e09f3e", "#6f4e9b"];

/// A figure: values of lines by x.
#[derive(Clone, Debug)]
pub(crate) struct LineFigure {
    pub(crate) name: &'static str,
    pub(crate) title: String,
    pub(crate) x_name: &'static str,
    pub(crate) y_name: &'static str,
    pub(crate) xs: Vec<u64>,
    pub(crate) lines: Vec<(&'static str, Vec<f64>)>,
}

impl LineFigure {
    /// The values as a table, a line for each x.
    pub(crate) fn tsv(&self) -> String {
        let names: Vec<&str> = self.lines.iter().map(|(name, _)| *name).collect();
        let mut text = format!("{}\t{}\n", self.x_name, names.join("\t"));
        for (at, x) in self.xs.iter().enumerate() {
            let values: Vec<String> =
                self.lines.iter().map(|(_, values)| format!("{:.5}", values[at])).collect();
            text += &format!("{x}\t{}\n", values.join("\t"));
        }
        text
    }

    /// The picture.
    pub(crate) fn svg(&self) -> String {
        let mut canvas = Canvas::default();
        let top = self.lines.iter().flat_map(|(_, values)| values).copied().fold(0.0, f64::max) * 1.05;
        let top = if top > 0.0 { top } else { 1.0 };
        let y_of = |value: f64| HEIGHT_PX - BOTTOM_PX - (HEIGHT_PX - BOTTOM_PX - TOP_PX) * value / top;
        let step = (WIDTH_PX - LEFT_PX - RIGHT_PX) / self.xs.len().max(1) as f64;
        let x_of = |at: usize| LEFT_PX + step * (at as f64 + 0.5);
        canvas.text((16.0, 26.0), Anchor::Start, Font::new(15.0, colour::INK).bold(), &self.title);
        canvas.text((16.0, 46.0), Anchor::Start, Font::new(12.0, colour::FAINT), self.y_name);
        let small = Font::new(12.0, colour::FAINT);
        for tick in ticks(top) {
            canvas.line((LEFT_PX, y_of(tick)), (WIDTH_PX - RIGHT_PX, y_of(tick)), colour::GRID, "1");
            canvas.text((LEFT_PX - 6.0, y_of(tick) + 4.0), Anchor::End, small, &short(tick));
        }
        for (at, x) in self.xs.iter().enumerate() {
            let text = short(*x as f64);
            let half = small.width_px(&text) / 2.0;
            canvas.text((x_of(at) - half, HEIGHT_PX - BOTTOM_PX + 18.0), Anchor::Start, small, &text);
        }
        canvas.text((LEFT_PX, HEIGHT_PX - 14.0), Anchor::Start, small, self.x_name);
        for ((_, values), stroke) in self.lines.iter().zip(LINES.iter().cycle()) {
            let points: Vec<(f64, f64)> =
                values.iter().enumerate().map(|(at, value)| (x_of(at), y_of(*value))).collect();
            points.windows(2).for_each(|ends| canvas.line(ends[0], ends[1], stroke, "2"));
            points.iter().for_each(|point| canvas.dot(*point, 3.0, stroke));
        }
        for (row, ((name, _), stroke)) in self.lines.iter().zip(LINES.iter().cycle()).enumerate() {
            let y = TOP_PX + 18.0 * row as f64;
            canvas.dot((WIDTH_PX - RIGHT_PX + 18.0, y), 4.0, stroke);
            canvas.text(
                (WIDTH_PX - RIGHT_PX + 30.0, y + 4.0),
                Anchor::Start,
                Font::new(12.0, colour::INK),
                name,
            );
        }
        canvas.finish((WIDTH_PX, HEIGHT_PX), &self.title)
    }
}

/// At most six values of a scale up to `top`.
fn ticks(top: f64) -> Vec<f64> {
    let power = 10_f64.powf(top.log10().floor());
    let steps = [0.2, 0.5, 1.0, 2.0].map(|factor| factor * power);
    let step = steps.into_iter().find(|step| top / step <= 6.0).unwrap_or(power);
    (0..=(top / step) as u32).map(|number| f64::from(number) * step).collect()
}

/// A number with three digits at most.
fn short(number: f64) -> String {
    match number {
        number if number >= 1e6 => format!("{}M", digits(number / 1e6)),
        number if number >= 1e3 => format!("{}k", digits(number / 1e3)),
        number => digits(number),
    }
}

fn digits(number: f64) -> String {
    let text = format!("{number:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_a_table_and_a_picture_of_the_same_values() {
        let figure = LineFigure {
            name: "test",
            title: "A <figure>".to_owned(),
            x_name: "pairs",
            y_name: "Gbit/s",
            xs: vec![1, 2, 16],
            lines: vec![("one", vec![1.0, 2.0, 3.0]), ("other", vec![0.0; 3])],
        };
        assert_eq!(figure.tsv().lines().nth(3), Some("16\t3.00000\t0.00000"));
        let svg = figure.svg();
        assert!(svg.contains("A &lt;figure&gt;") && svg.matches("<circle").count() == 2 * 3 + 2);
    }

    #[test]
    fn scales_have_few_round_values() {
        assert_eq!(ticks(95.0), [0.0, 20.0, 40.0, 60.0, 80.0]);
        assert_eq!([short(65_483.0), short(0.25), short(3e6)], ["65.48k", "0.25", "3M"]);
        assert!((1..200).all(|top| ticks(f64::from(top)).len() <= 7));
    }
}
