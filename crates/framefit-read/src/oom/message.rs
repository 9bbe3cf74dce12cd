use framefit_core::Bytes;
use serde::Serialize;

/// An amount as a message states it, rounded to so many digits.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Amount {
    /// The number.
    pub bytes: Bytes,
    /// Half of the last digit's worth: what the message leaves open, either way.
    pub within: Bytes,
}

impl Amount {
    /// Whether an exact number of bytes would have been written like this.
    pub fn is(&self, bytes: u64) -> bool {
        bytes.abs_diff(self.bytes.0) <= self.within.0
    }

    /// Reads `48.43 GiB`.
    fn read(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        let (number, unit) = (words.next()?, words.next()?);
        let unit = match unit.trim_end_matches(|c: char| !c.is_ascii_alphabetic()) {
            "bytes" | "B" => 1.0,
            "KiB" => 1024.0,
            "MiB" => 1024.0 * 1024.0,
            "GiB" => 1024.0 * 1024.0 * 1024.0,
            "TiB" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
            _ => return None,
        };
        let value: f64 = number.parse().ok().filter(|v: &f64| v.is_finite() && *v >= 0.0)?;
        let digits = number.split_once('.').map_or(0, |(_, fraction)| fraction.len().min(9) as i32);
        let half = if unit == 1.0 { 0.0 } else { 0.5 * 10f64.powi(-digits) * unit };
        let bytes = value * unit;
        (bytes < 9e18).then_some(Self { bytes: Bytes(bytes.round() as u64), within: Bytes(half.ceil() as u64) })
    }
}

/// One message "CUDA out of memory", in its older or its newer wording.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Message {
    /// The line it starts in, from 1.
    pub line: usize,
    /// What could not be had.
    pub requested: Amount,
    /// The device's memory.
    pub capacity: Option<Amount>,
    /// What was left of it.
    pub free: Option<Amount>,
    /// What PyTorch's tensors held.
    pub allocated: Option<Amount>,
}

const START: &str = "Tried to allocate ";

/// All messages in a text, in order.
pub fn read(text: &str) -> Vec<Message> {
    let mut messages = Vec::new();
    let mut from = 0;
    while let Some(found) = text.get(from..).and_then(|rest| rest.find(START)) {
        let start = from + found;
        from = start + START.len();
        let body = text.get(from..).unwrap_or_default();
        // A message ends where the next one begins, and is never longer than a paragraph.
        let end = body.find(START).unwrap_or(body.len()).min(2000);
        let end = (0..=end).rev().find(|&i| body.is_char_boundary(i)).unwrap_or(0);
        let body = &body[..end];
        let Some(requested) = Amount::read(body) else { continue };
        let line = text[..start].matches('\n').count() + 1;
        let (capacity, free, allocated) = if body.contains("total capacity;") {
            (before(body, "total capacity;"), before(body, "free;"), before(body, "already allocated;"))
        } else {
            (after(body, "has a total capacity of "), after(body, "of which "), after(body, "Of the allocated memory "))
        };
        messages.push(Message { line, requested, capacity, free, allocated });
    }
    messages
}

fn after(body: &str, words: &str) -> Option<Amount> {
    body.split_once(words).and_then(|(_, rest)| Amount::read(rest))
}

/// The older wording has the amount before the words: `11.99 GiB total capacity;`
fn before(body: &str, words: &str) -> Option<Amount> {
    let (head, _) = body.split_once(words)?;
    let mut words = head.split_whitespace().rev();
    let (unit, number) = (words.next()?, words.next()?);
    Amount::read(&format!("{number} {unit}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: f64 = 1024.0 * 1024.0 * 1024.0;

    fn gib(amount: Option<Amount>) -> f64 {
        amount.map_or(f64::NAN, |a| (a.bytes.0 as f64 / GIB * 100.0).round() / 100.0)
    }

    #[test]
    fn the_newer_wording() {
        let text = "Traceback\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total \
                    capacity of 11.76 GiB of which 1.25 GiB is free. Process 1 has 9.10 GiB memory in use. Of the \
                    allocated memory 8.75 GiB is allocated by PyTorch, and 96.00 MiB is reserved by PyTorch but \
                    unallocated.";
        let [message] = &read(text)[..] else { panic!("one message") };
        assert_eq!(message.line, 2);
        assert_eq!(message.requested.bytes.0, 2_684_354_560);
        assert_eq!([message.capacity, message.free, message.allocated].map(gib), [11.76, 1.25, 8.75]);
    }

    #[test]
    fn the_older_wording() {
        let text = "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 7.80 GiB total capacity; \
                    6.34 GiB already allocated; 9.50 MiB free; 6.52 GiB reserved in total by PyTorch)";
        let [message] = &read(text)[..] else { panic!("one message") };
        assert_eq!(message.requested.bytes.0, 20 << 20);
        assert_eq!([message.capacity, message.allocated].map(gib), [7.80, 6.34]);
        assert_eq!(message.free.unwrap().bytes.0, 9_961_472);
    }

    #[test]
    fn a_rounded_amount_stands_for_all_that_round_to_it() {
        let amount = Amount::read("48.43 GiB.").unwrap();
        assert!(amount.is(512 * 25_392_000 * 4));
        assert!(!amount.is(512 * 25_402_000 * 4));
    }

    #[test]
    fn text_without_a_message_and_broken_amounts_give_nothing() {
        for text in [
            "",
            "all is well",
            "Tried to allocate",
            "Tried to allocate much",
            "Tried to allocate 1e400 GiB",
            "Tried to allocate 5 Ω",
        ] {
            assert_eq!(read(text), [], "{text}");
        }
    }
}
