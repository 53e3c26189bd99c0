//! Texts and shapes as elements of SVG.

use std::fmt::Write;

/// Typefaces that are there on most systems and have clear digits.
const FONTS: &str = "system-ui, 'Segoe UI', Inter, Roboto, 'Helvetica Neue', Arial, sans-serif";
/// Before the second part of a text in two colours.
pub const PART_GAP_PX: f64 = 8.0;

/// Colours that stay apart for colour-blind readers, and in grey.
pub mod colour {
    /// Behind everything.
    pub const PAPER: &str = "#ffffff";
    /// Around a picture.
    pub const EDGE: &str = "#d9dee4";
    /// Texts.
    pub const INK: &str = "#1b2026";
    /// Texts beside the point.
    pub const FAINT: &str = "#5d6875";
    /// Lines of a scale.
    pub const GRID: &str = "#e6eaee";
    /// The thing in question.
    pub const REFERENCE: &str = "#1769d2";
    /// Variants of it.
    pub const VARIANT: &str = "#93bbee";
    /// Others.
    pub const PEER: &str = "#c2c9d2";
    /// Limits.
    pub const CEILING: &str = "#8e99a6";
    /// Spreads.
    pub const WHISKER: &str = "#3a434d";
}

/// To which side of its place a text stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// Behind it.
    Start,
    /// In front of it.
    End,
}

/// How a text looks.
#[derive(Clone, Copy, Debug)]
pub struct Font {
    /// From line to line, about.
    pub size_px: f64,
    /// Bold or not.
    pub bold: bool,
    /// As CSS has it.
    pub colour: &'static str,
}

impl Font {
    /// A plain one.
    #[must_use]
    pub const fn new(size_px: f64, colour: &'static str) -> Self {
        Self { size_px, bold: false, colour }
    }

    /// The same, bold.
    #[must_use]
    pub const fn bold(self) -> Self {
        Self { bold: true, ..self }
    }

    /// Room to keep for a text.
    #[must_use]
    pub fn width_px(&self, text: &str) -> f64 {
        let bold = if self.bold { 1.08 } else { 1.0 };
        width_em(text) * self.size_px * bold
    }

    /// A text in lines of at most a width, broken at blanks; a longer word is cut.
    #[must_use]
    pub fn lines(&self, text: &str, width_px: f64) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        for word in text.split(' ').filter(|word| !word.is_empty()) {
            let word = self.cut(word, width_px);
            match lines.last_mut() {
                Some(line) if self.width_px(&format!("{line} {word}")) <= width_px => {
                    *line += &format!(" {word}")
                }
                _ => lines.push(word),
            }
        }
        lines
    }

    /// A text, cut at a width.
    #[must_use]
    pub fn cut(&self, text: &str, width_px: f64) -> String {
        if self.width_px(text) <= width_px {
            return text.to_owned();
        }
        let mut cut = text.to_owned();
        while !cut.is_empty() && self.width_px(&cut) + self.width_px("…") > width_px {
            cut.pop();
        }
        cut + "…"
    }
}

/// An SVG document while it is drawn. Places are in px from the upper left corner.
#[derive(Debug, Default)]
pub struct Canvas {
    body: String,
}

impl Canvas {
    /// A filled rectangle.
    pub fn bar(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), fill: &str) {
        self.element(
            "rect",
            &[("x", x), ("y", y), ("width", width), ("height", height), ("rx", 2.0)],
            fill,
            None,
        );
    }

    /// The outline of a rectangle.
    pub fn outline(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), stroke: &str) {
        let places = [("x", x), ("y", y), ("width", width), ("height", height), ("rx", 2.0)];
        self.element("rect", &places, "none", Some((stroke, "1", "")));
    }

    /// A filled circle.
    pub fn dot(&mut self, (x, y): (f64, f64), radius: f64, fill: &str) {
        self.element("circle", &[("cx", x), ("cy", y), ("r", radius)], fill, None);
    }

    /// An empty circle.
    pub fn ring(&mut self, (x, y): (f64, f64), radius: f64, stroke: &str) {
        let places = [("cx", x), ("cy", y), ("r", radius)];
        self.element("circle", &places, colour::PAPER, Some((stroke, "1.5", "")));
    }

    /// A straight line.
    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), stroke: &str, width: &str) {
        self.stroke(from, to, (stroke, width, ""));
    }

    /// A straight line of dashes.
    pub fn dashes(&mut self, from: (f64, f64), to: (f64, f64), stroke: &str) {
        self.stroke(from, to, (stroke, "1", "3 3"));
    }

    /// A text on its base line.
    pub fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, font: Font, text: &str) {
        let anchor = if anchor == Anchor::Start { "start" } else { "end" };
        let _ =
            write!(self.body, r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" {}>"#, attributes(font));
        let _ = writeln!(self.body, "{}</text>", escaped(text));
    }

    /// A text of two parts, each in its own font.
    pub fn parts(&mut self, (x, y): (f64, f64), [first, second]: [(Font, &str); 2]) {
        let _ =
            write!(self.body, r#"<text x="{x:.1}" y="{y:.1}" {}>{}"#, attributes(first.0), escaped(first.1));
        if !second.1.is_empty() {
            let (font, text) = (attributes(second.0), escaped(second.1));
            let _ = write!(self.body, r#"<tspan dx="{PART_GAP_PX}" {font}>{text}</tspan>"#);
        }
        self.body.push_str("</text>\n");
    }

    /// The text that a pointer shows over the elements drawn by `draw`.
    pub fn group(&mut self, title: &str, draw: impl FnOnce(&mut Self)) {
        let _ = writeln!(self.body, "<g><title>{}</title>", escaped(title));
        draw(self);
        self.body.push_str("</g>\n");
    }

    fn stroke(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), stroke: (&str, &str, &str)) {
        self.element("line", &[("x1", x1), ("y1", y1), ("x2", x2), ("y2", y2)], "none", Some(stroke));
    }

    fn element(
        &mut self,
        name: &str,
        places: &[(&str, f64)],
        fill: &str,
        stroke: Option<(&str, &str, &str)>,
    ) {
        let _ = write!(self.body, "<{name}");
        for (key, value) in places {
            let _ = write!(self.body, r#" {key}="{value:.1}""#);
        }
        let _ = write!(self.body, r#" fill="{fill}""#);
        if let Some((colour, width, dashes)) = stroke {
            let _ = write!(self.body, r#" stroke="{colour}" stroke-width="{width}""#);
            let _ =
                if dashes.is_empty() { Ok(()) } else { write!(self.body, r#" stroke-dasharray="{dashes}""#) };
        }
        self.body.push_str("/>\n");
    }

    /// The document, on a card of its own so that it can stand on any ground.
    #[must_use]
    pub fn finish(self, (width, height): (f64, f64), title: &str) -> String {
        let (title, body) = (escaped(title), self.body);
        let (inner_width, inner_height) = (width - 1.0, height - 1.0);
        format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0}" height="{height:.0}" viewBox="0 0 {width:.0} {height:.0}" role="img" font-family="{FONTS}">
<title>{title}</title>
<rect x="0.5" y="0.5" width="{inner_width:.1}" height="{inner_height:.1}" rx="12" fill="{paper}" stroke="{edge}"/>
{body}</svg>
"#,
            paper = colour::PAPER,
            edge = colour::EDGE,
        )
    }
}

/// Room for a text against the size of its font: the width of the widest usual typeface, rounded up. An estimate that
/// is too large costs blank space, one too small lets texts overlap.
#[must_use]
pub fn width_em(text: &str) -> f64 {
    text.chars().map(char_em).sum()
}

fn char_em(sign: char) -> f64 {
    match sign {
        'i' | 'j' | 'l' | 'I' | ' ' | '\u{a0}' | '.' | ',' | ':' | ';' | '\'' | '|' | '·' => 0.33,
        'f' | 'r' | 't' | '(' | ')' | '-' | '/' | '[' | ']' => 0.42,
        'm' | 'w' | 'M' | 'W' | '%' => 0.97,
        'A'..='Z' => 0.72,
        '±' | '×' => 0.84,
        '!'..='~' | 'µ' | '–' | '†' => 0.64,
        _ => 1.0,
    }
}

fn attributes(Font { size_px, bold, colour }: Font) -> String {
    let weight = if bold { 600 } else { 400 };
    format!(r#"font-size="{size_px}" font-weight="{weight}" fill="{colour}""#)
}

/// Without a meaning to XML, and without the control characters that it forbids.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for sign in text.chars() {
        match sign {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&apos;"),
            '\u{fffe}' | '\u{ffff}' => escaped.push(char::REPLACEMENT_CHARACTER),
            _ if sign.is_control() => escaped.push(' '),
            _ => escaped.push(sign),
        }
    }
    escaped
}
