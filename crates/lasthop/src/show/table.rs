//! Columns of text.

/// A table whose columns are as wide as they must be.
#[derive(Debug)]
pub(super) struct Table {
    rows: Vec<Vec<String>>,
    /// Whether a column is numbers, which end at its right edge.
    is_right: Vec<bool>,
}

impl Table {
    /// A table with these headings; one that starts with `>` is for a column of numbers.
    pub(super) fn new(headings: &[&str]) -> Self {
        let is_right = headings.iter().map(|heading| heading.starts_with('>')).collect();
        let row = headings.iter().map(|heading| heading.trim_start_matches('>').to_owned()).collect();
        Self { rows: vec![row], is_right }
    }

    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The table less one column.
    pub(super) fn without(mut self, column: usize) -> Self {
        self.rows.iter_mut().for_each(|row| drop(row.remove(column)));
        self.is_right.remove(column);
        self
    }

    /// All lines, each with its end.
    pub(super) fn text(&self) -> String {
        let width = |column: usize| self.rows.iter().filter_map(|row| row.get(column)).map(String::len).max();
        let widths: Vec<usize> = (0..self.is_right.len()).map(|column| width(column).unwrap_or(0)).collect();
        self.rows.iter().map(|row| self.line(row, &widths)).collect()
    }

    fn line(&self, row: &[String], widths: &[usize]) -> String {
        let cells = row.iter().zip(widths).zip(&self.is_right);
        let padded = cells.map(|((cell, width), is_right)| match is_right {
            true => format!("{cell:>width$}"),
            false => format!("{cell:<width$}"),
        });
        let line = padded.collect::<Vec<_>>().join("  ");
        format!("{}\n", line.trim_end())
    }
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
}
