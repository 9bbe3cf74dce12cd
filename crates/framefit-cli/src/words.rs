//! Numbers as they are read: one voice for all commands.

use framefit::core::Bytes;

/// 3119040 -> 3,119,040
pub fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// 1 clip, 2 clips; for nouns that take an s.
pub fn count(n: usize, noun: &str) -> String {
    let s = if n == 1 { "" } else { "s" };
    format!("{} {noun}{s}", thousands(n as u64))
}

/// 93.4 %
pub fn percent(fraction: f64) -> String {
    format!("{:.1} %", fraction * 100.0)
}

/// A budget in the unit it was most likely written in, beside the one that plans are in: 12 GB (11.2 GiB)
pub fn budget(bytes: Bytes) -> String {
    const UNITS: [(&str, u64); 3] = [("TB", 1_000_000_000_000), ("GB", 1_000_000_000), ("MB", 1_000_000)];
    let decimal = UNITS.iter().find(|(_, scale)| bytes.0 >= *scale && bytes.0.is_multiple_of(*scale));
    decimal.map_or_else(|| bytes.to_string(), |(unit, scale)| format!("{} {unit} ({bytes})", bytes.0 / scale))
}

/// A size for --memory that is no less: 143654912 -> 144MB
pub fn enough(bytes: Bytes) -> String {
    match bytes.0 {
        0..10_000_000_000 => format!("{}MB", bytes.0.div_ceil(1_000_000)),
        more => format!("{}GB", more.div_ceil(1_000_000_000)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!([0, 999, 1000, 3_119_040].map(thousands), ["0", "999", "1,000", "3,119,040"]);
    }

    #[test]
    fn one_is_singular() {
        assert_eq!([0, 1, 1000].map(|n| count(n, "clip")), ["0 clips", "1 clip", "1,000 clips"]);
    }

    #[test]
    fn budgets_are_shown_as_they_were_written() {
        for (written, shown) in [
            ("12GB", "12 GB (11.2 GiB)"),
            ("250MB", "250 MB (238 MiB)"),
            ("4GiB", "4.00 GiB"),
            ("1000000", "1 MB (977 KiB)"),
        ] {
            assert_eq!(budget(written.parse().unwrap()), shown);
        }
        assert_eq!([143_654_912, 98 << 40].map(|b| enough(Bytes(b))), ["144MB", "107753GB"]);
    }
}
