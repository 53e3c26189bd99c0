//! Columns of text.

use super::state::NO_GUEST;
use crate::output::screen;

/// The separator between columns, and the one for narrow tables.
const WIDE: &str = "  ";
const NARROW: &str = " ";
/// The width of a table in a file or a pipe, if narrower separators suffice.
const COLUMNS: usize = 80;
/// Least width of a shortened name.
const WORD_MIN: usize = 8;

/// A table whose columns are as wide as necessary.
#[derive(Clone, Debug)]
pub(super) struct Table {
    rows: Vec<Vec<String>>,
    /// Whether a column has numbers, which are aligned to the right.
    is_right: Vec<bool>,
    /// Whether a column has addresses, which must not be shortened.
    is_whole: Vec<bool>,
}

impl Table {
    /// A table with these headings; `>` marks a column of numbers, `=` one of addresses.
    pub(super) fn new(headings: &[&str]) -> Self {
        let starts = |mark: char| headings.iter().map(|heading| heading.starts_with(mark)).collect();
        let row = headings.iter().map(|heading| heading.trim_start_matches(['>', '=']).to_owned()).collect();
        Self { rows: vec![row], is_right: starts('>'), is_whole: starts('=') }
    }

    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let (long, short) = NO_GUEST;
        self.rows.push(cells.into_iter().map(|cell| cell.replacen(long, short, 1)).collect());
    }

    /// The table without a column.
    pub(super) fn without(mut self, column: usize) -> Self {
        self.rows.iter_mut().for_each(|row| drop(row.remove(column)));
        self.is_right.remove(column);
        self.is_whole.remove(column);
        self
    }

    /// All lines; for a terminal they fit its width.
    pub(super) fn text(&self) -> String {
        match screen() {
            Some(screen) => self.fitted(screen.columns),
            None => self.whole(),
        }
    }

    /// All lines without shortening; separators are narrow in a table that is too wide for a terminal.
    fn whole(&self) -> String {
        self.lines(if self.width(WIDE) > COLUMNS { NARROW } else { WIDE })
    }

    /// All lines, within a number of columns. A table that does not fit gets narrow separators first, then shorter
    /// numbers, and last names without their middle.
    pub(super) fn fitted(&self, columns: usize) -> String {
        if self.width(WIDE) <= columns {
            return self.lines(WIDE);
        }
        if self.width(NARROW) <= columns {
            return self.lines(NARROW);
        }
        let mut table =
            Self { rows: self.rows.iter().map(|row| self.shortened(row)).collect(), ..self.clone() };
        while let Some(excess) = table.width(NARROW).checked_sub(columns).filter(|excess| *excess > 0) {
            if !table.cut_names(excess) {
                break;
            }
        }
        table.lines(NARROW)
    }

    fn widths(&self) -> Vec<usize> {
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
        };
        (0..self.is_right.len()).map(|column| width(column).unwrap_or(0)).collect()
    }

    fn width(&self, separator: &str) -> usize {
        self.widths().iter().sum::<usize>() + separator.len() * self.is_right.len().saturating_sub(1)
    }

    fn shortened(&self, row: &[String]) -> Vec<String> {
        let short = |(cell, is_right): (&String, &bool)| match is_right {
            true => cell.parse::<u64>().map_or_else(|_| cell.clone(), short_count),
            false => cell.clone(),
        };
        row.iter().zip(&self.is_right).map(short).collect()
    }

    /// Narrows the widest column of words by `excess` at most. Returns false if none can be narrowed.
    fn cut_names(&mut self, excess: usize) -> bool {
        let is_word = |column: usize| !self.is_right[column] && !self.is_whole[column];
        let words = self.widths().into_iter().enumerate().filter(|(column, _)| is_word(*column));
        let Some((column, width)) =
            words.max_by_key(|(_, width)| *width).filter(|(_, width)| *width > WORD_MIN)
        else {
            return false;
        };
        let width = width.saturating_sub(excess).max(WORD_MIN);
        self.rows.iter_mut().filter_map(|row| row.get_mut(column)).for_each(|cell| *cell = cut(cell, width));
        true
    }

    fn lines(&self, separator: &str) -> String {
        let widths = self.widths();
        self.rows.iter().map(|row| self.line(row, &widths, separator)).collect()
    }

    fn line(&self, row: &[String], widths: &[usize], separator: &str) -> String {
        let cells = row.iter().zip(widths).zip(&self.is_right);
        let padded = cells.map(|((cell, width), is_right)| match is_right {
            true => format!("{cell:>width$}"),
            false => format!("{cell:<width$}"),
        });
        let line = padded.collect::<Vec<_>>().join(separator);
        format!("{}\n", line.trim_end())
    }
}

/// A text of at most `width` characters. A longer one keeps its beginning and end.
fn cut(text: &str, width: usize) -> String {
    let letters: Vec<char> = text.chars().collect();
    if letters.len() <= width {
        return text.to_owned();
    }
    let (first, last) = (width / 2, width - width / 2 - 1);
    let ends = letters[..first].iter().chain(['\u{2026}'].iter()).chain(&letters[letters.len() - last..]);
    ends.collect()
}

/// A number of five and more digits in four or five characters.
fn short_count(count: u64) -> String {
    if count < 10_000 { count.to_string() } else { super::rates::short(count as f64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_start_and_numbers_end_at_the_same_place() {
        let mut table = Table::new(&["NAME", ">COUNT", "WHY"]);
        table.row(["a".into(), "1".into(), "x".into()]);
        table.row(["longer".into(), "1000000".into(), String::new()]);
        assert_eq!(table.text(), "NAME      COUNT  WHY\na             1  x\nlonger  1000000\n");
        assert_eq!(table.without(1).text(), "NAME    WHY\na       x\nlonger\n");
    }

    #[test]
    fn a_table_fits_the_terminal() {
        let mut table = Table::new(&["NAME", "STATE", ">COUNT"]);
        table.row(["tenant-42-web-frontend-01".into(), "waiting for guest".into(), "1234567890".into()]);
        table.row(["vm1".into(), "running".into(), "9999".into()]);
        let widest = |columns| table.fitted(columns).lines().map(|line| line.chars().count()).max();
        assert_eq!(
            (widest(200), widest(47), widest(46), widest(45)),
            (Some(47), Some(47), Some(45), Some(45))
        );
        for columns in 24..=47 {
            assert!(widest(columns) <= Some(columns), "{columns}: {}", table.fitted(columns));
        }
        let expected = "NAME          STATE    COUNT\ntenant\u{2026}end-01 no guest 1.23G\nvm1           running   9999\n";
        assert_eq!(table.fitted(28), expected);
        assert_eq!(table.fitted(5).lines().count(), 3, "what cannot fit is shown");
    }

    #[test]
    fn a_file_gets_names_and_numbers_whole() {
        let mut table = Table::new(&["NAME", "=MAC", ">COUNT"]);
        table.row(["n".repeat(50), "02:00:00:00:00:01".into(), "1234567890".into()]);
        assert_eq!(table.whole().lines().last().map(str::len), Some(79), "narrow separators are enough");
        table.row(["n".repeat(64), "-".into(), "1".into()]);
        assert!(table.whole().contains(&"n".repeat(64)) && table.whole().contains("1234567890"));
        assert!(table.fitted(40).contains("02:00:00:00:00:01"), "an address is not cut");
    }
}
