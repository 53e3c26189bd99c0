use super::NOTHING;
use super::comparison::{Cell, Comparison, Role, Row};
use super::figures::{direction, place, subject, times, times_by_round, with_deviation};
use super::marks::{driver_notes, footnotes, marks, placement_note, ratio_note};

/// Characters in a line of a usual terminal window.
const LINE_CHARS: usize = 120;
/// The length at which the name of a back end is broken.
const NAME_CHARS: usize = 13;
/// The first column takes the rest of [`LINE_CHARS`], within these bounds.
const LABEL_CHARS_MIN: usize = 22;
const LABEL_CHARS_MAX: usize = 46;
/// Between columns.
const GAP_CHARS: usize = 2;

/// The lines of one cell.
type Block = Vec<String>;

/// The comparison as plain text: workloads by metric, a column for each back end; up to six of them fit in 120 columns.
#[must_use]
pub fn table(comparison: &Comparison) -> String {
    if comparison.rows.is_empty() {
        return format!("{NOTHING}\n");
    }
    let names: Vec<Block> = comparison.backends.iter().map(|name| wrap(name, NAME_CHARS)).collect();
    let widths = widths(comparison, &names);
    let mut text = String::new();
    for (metric, rows) in comparison.by_metric() {
        text += &format!("{}: {}\n", subject(metric), direction(metric));
        text += &line_up(&[&[Block::new()], names.as_slice()].concat(), &widths);
        for row in rows {
            text += &line_up(&blocks(comparison, row, widths[0]), &widths);
        }
        text.push('\n');
    }
    notes(comparison).iter().fold(text, |text, note| text + &wrap(note, LINE_CHARS).join("\n") + "\n")
}

fn notes(comparison: &Comparison) -> Vec<String> {
    let spread =
        "±: the sample farthest from the median; below n× the least and the most of ratios by round.";
    let mut notes = vec![spread.to_owned()];
    notes.extend(ratio_note(comparison));
    notes.extend(footnotes(comparison));
    notes.extend(driver_notes(comparison));
    notes.push(placement_note());
    notes
}

fn widths(comparison: &Comparison, names: &[Block]) -> Vec<usize> {
    let mut widths: Vec<usize> = names.iter().map(block_chars).collect();
    for row in &comparison.rows {
        for (width, block) in widths.iter_mut().zip(cells(comparison, row)) {
            *width = block_chars(&block).max(*width);
        }
    }
    let taken: usize = widths.iter().map(|width| width + GAP_CHARS).sum();
    let label = LINE_CHARS.saturating_sub(taken).clamp(LABEL_CHARS_MIN, LABEL_CHARS_MAX);
    [&[label], widths.as_slice()].concat()
}

fn blocks(comparison: &Comparison, row: &Row, label_chars: usize) -> Vec<Block> {
    let mut label = wrap(&row.workload.to_string(), label_chars);
    let place = wrap(&place(row).join(", "), label_chars - 2);
    label.extend(place.iter().map(|line| format!("  {line}")));
    [&[label], cells(comparison, row).as_slice()].concat()
}

fn cells(comparison: &Comparison, row: &Row) -> Vec<Block> {
    comparison.backends.iter().map(|backend| row.cell(backend).map_or(Block::new(), block)).collect()
}

fn block(cell: &Cell) -> Block {
    let Some(value) = &cell.value else { return vec!["–".to_owned()] };
    let mut block = vec![with_deviation(value) + &marks(cell)];
    if cell.role == Role::Reference {
        block.push("reference".to_owned());
    }
    if let Some(ratio) = &cell.ratio {
        block.push(times(ratio));
        block.extend(times_by_round(ratio));
    }
    block
}

fn block_chars(block: &Block) -> usize {
    block.iter().map(|line| line.chars().count()).max().unwrap_or(0)
}

/// Puts blocks next to each other: the first one left-aligned, others right-aligned.
fn line_up(blocks: &[Block], widths: &[usize]) -> String {
    let height = blocks.iter().map(Vec::len).max().unwrap_or(0);
    let mut text = String::new();
    for index in 0..height {
        let mut line = String::new();
        for (column, (block, &width)) in blocks.iter().zip(widths).enumerate() {
            let part = block.get(index).map_or("", String::as_str);
            let right = width + GAP_CHARS;
            line += &if column == 0 { format!("{part:<width$}") } else { format!("{part:>right$}") };
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// Wraps to lines of at most this many characters, at blanks, commas and dashes; longer parts stay whole.
fn wrap(text: &str, chars_max: usize) -> Block {
    let mut lines = vec![String::new()];
    for part in text.split_inclusive([' ', ',', '-']) {
        let line = lines.last_mut().expect("there is always a line");
        if !line.is_empty() && line.chars().count() + part.trim_end().chars().count() > chars_max {
            lines.push(part.to_owned());
        } else {
            line.push_str(part);
        }
    }
    lines.into_iter().map(|line| line.trim_end().to_owned()).collect()
}
