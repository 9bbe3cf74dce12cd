//! Amounts of memory as people write and read them.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// An amount of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

/// A size that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not an amount of memory: write a positive number with a unit, such as 12GB, 4GiB or 800MiB")]
pub struct UnreadableBytes {
    /// What was given.
    pub text: String,
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
        if self.0 < 1024 {
            return f.pad(&format!("{} B", self.0));
        }
        let mut amount = self.0 as f64 / 1024.0;
        let mut unit = 0;
        while amount >= 1024.0 && unit + 1 < UNITS.len() {
            amount /= 1024.0;
            unit += 1;
        }
        let digits = if amount >= 100.0 {
            0
        } else if amount >= 10.0 {
            1
        } else {
            2
        };
        f.pad(&format!("{amount:.digits$} {}", UNITS[unit]))
    }
}

impl FromStr for Bytes {
    type Err = UnreadableBytes;

    /// Reads `12GB` (10⁹), `4GiB` (2³⁰), `800M`, `1048576`. Capitals do not matter; `G` alone is `GB`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unreadable = || UnreadableBytes { text: text.to_owned() };
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(split);
        let number: f64 = number.parse().map_err(|_| unreadable())?;
        let scale: f64 = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1.0,
            "k" | "kb" => 1e3,
            "m" | "mb" => 1e6,
            "g" | "gb" => 1e9,
            "t" | "tb" => 1e12,
            "kib" => 1024.0,
            "mib" => 1024.0 * 1024.0,
            "gib" => 1024.0 * 1024.0 * 1024.0,
            "tib" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
            _ => return Err(unreadable()),
        };
        let bytes = number * scale;
        if !(1.0..9e18).contains(&bytes) {
            return Err(unreadable());
        }
        Ok(Bytes(bytes as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_decimal_and_binary_units() {
        for (text, bytes) in
            [("12GB", 12_000_000_000), ("4GiB", 4 << 30), ("800 MiB", 800 << 20), ("1.5g", 1_500_000_000), ("512", 512)]
        {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
        for text in ["", "GB", "0", "-1GB", "12XB", "1e9", "nan", "99999999999999TB"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }

    #[test]
    fn writes_three_digits() {
        for (bytes, text) in [
            (12, "12 B"),
            (2048, "2.00 KiB"),
            (52_001_832_960, "48.4 GiB"),
            (131_072, "128 KiB"),
            (6_387_793_920, "5.95 GiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }
}
