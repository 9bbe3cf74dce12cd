//! Natural order: runs of digits compare as numbers, the rest as text.

use std::cmp::Ordering;

/// `frame2` before `frame10`; equal numbers with different zeros (`07`, `7`) fall back to plain text order, so that
/// the order is total.
pub(crate) fn compare(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (a, b);
    loop {
        match (left.chars().next(), right.chars().next()) {
            (None, None) => return a.cmp(b),
            (None, Some(_)) => return Ordering::Less,
            (Some(_), None) => return Ordering::Greater,
            (Some(x), Some(y)) if x.is_ascii_digit() && y.is_ascii_digit() => {
                let (number_l, rest_l) = digits(left);
                let (number_r, rest_r) = digits(right);
                let order = number_l.len().cmp(&number_r.len()).then_with(|| number_l.cmp(number_r));
                if order != Ordering::Equal {
                    return order;
                }
                (left, right) = (rest_l, rest_r);
            }
            (Some(x), Some(y)) => {
                if x != y {
                    return x.cmp(&y);
                }
                left = left.get(x.len_utf8()..).unwrap_or_default();
                right = right.get(y.len_utf8()..).unwrap_or_default();
            }
        }
    }
}

/// The leading digits without leading zeros, and what follows them.
fn digits(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, rest) = text.split_at(end);
    (number.trim_start_matches('0'), rest)
}

#[cfg(test)]
mod tests {
    use super::compare;

    #[test]
    fn numbers_compare_as_numbers() {
        let mut names = vec!["b", "a10", "a2", "a02", "10", "9", "a", "a2b", "å1", "100000000000000000000000", "09"];
        names.sort_by(|a, b| compare(a, b));
        let want = ["09", "9", "10", "100000000000000000000000", "a", "a02", "a2", "a2b", "a10", "b", "å1"];
        assert_eq!(names, want);
    }
}
