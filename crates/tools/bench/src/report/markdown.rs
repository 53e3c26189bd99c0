use super::NOTHING;
use super::comparison::{Cell, Comparison, Role, Row};
use super::figures::{direction, place, subject, times, times_by_round, with_deviation};
use super::marks::{driver_notes, footnotes, marks, placement_note, ratio_note};

/// The comparison as Markdown: a table for each metric and the notes below.
#[must_use]
pub fn markdown(comparison: &Comparison) -> String {
    if comparison.rows.is_empty() {
        return format!("{NOTHING}\n");
    }
    let mut text = String::new();
    for (metric, rows) in comparison.by_metric() {
        text += &format!("**{}: {}**\n\n", subject(metric), direction(metric));
        text += &table(comparison, &rows);
    }
    let notes = notes(comparison);
    text + &notes.iter().map(|note| format!("- {}\n", escaped(note))).collect::<String>()
}

fn table(comparison: &Comparison, rows: &[&Row]) -> String {
    let present = |name: &&String| rows.iter().any(|row| row.cell(name).is_some());
    let backends: Vec<&String> = comparison.backends.iter().filter(present).collect();
    let heads = backends.iter().map(|name| escaped(name));
    let mut text = line(["workload".to_owned(), "cores".to_owned()].into_iter().chain(heads));
    text += &line(
        ["---".to_owned(), "---".to_owned()].into_iter().chain(backends.iter().map(|_| "---:".to_owned())),
    );
    for row in rows {
        let labels = [format!("`{}`", row.workload), place(row).join(", ")];
        let cells = backends.iter().map(|name| row.cell(name).map_or(String::new(), cell));
        text += &line(labels.into_iter().chain(cells));
    }
    text + "\n"
}

fn line(cells: impl Iterator<Item = String>) -> String {
    format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
}

fn cell(cell: &Cell) -> String {
    let Some(value) = &cell.value else { return "–".to_owned() };
    let text = escaped(&(with_deviation(value) + &marks(cell)));
    let text = if cell.role == Role::Reference { format!("**{text}**") } else { text };
    let Some(ratio) = &cell.ratio else { return text };
    let by_round = times_by_round(ratio).map_or(String::new(), |range| format!(" ({range})"));
    format!("{text}<br>{}{by_round}", times(ratio))
}

fn notes(comparison: &Comparison) -> Vec<String> {
    let spread =
        "±: the sample farthest from the median; in parentheses the least and the most of ratios by round.";
    let mut notes = vec![spread.to_owned()];
    notes.extend(ratio_note(comparison));
    notes.extend(footnotes(comparison));
    notes.extend(driver_notes(comparison));
    notes.push(placement_note());
    notes
}

/// With Markdown's special characters escaped.
fn escaped(text: &str) -> String {
    let special = |sign: char| matches!(sign, '\\' | '|' | '*' | '_' | '`' | '<' | '>' | '[' | ']');
    text.chars().flat_map(|sign| special(sign).then_some('\\').into_iter().chain([sign])).collect()
}
