//! Aligned columns of text.

/// How a column is aligned.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
}

/// Rows with their columns aligned, two spaces between them; no trailing spaces.
pub fn aligned(columns: &[Align], rows: &[Vec<String>]) -> String {
    let width =
        |column: usize| rows.iter().filter_map(|r| r.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for ((cell, align), width) in row.iter().zip(columns).zip(&widths) {
            let room = " ".repeat(width.saturating_sub(cell.chars().count()));
            if !line.is_empty() {
                line.push_str("  ");
            }
            match align {
                Align::Left => line.push_str(&format!("{cell}{room}")),
                Align::Right => line.push_str(&format!("{room}{cell}")),
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [["a", "1"], ["long", "23"]].map(|r| r.map(str::to_owned).to_vec());
        assert_eq!(aligned(&[Align::Left, Align::Right], &rows), "a      1\nlong  23\n");
    }
}
