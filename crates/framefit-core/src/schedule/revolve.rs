//! Which states to keep: binomial checkpointing.
//!
//! Griewank and Walther, "Algorithm 799: Revolve" (2000). With c restorable states, the free one at the clip's
//! start among them, and each segment passed through at most r times, β(c, r) = C(c + r, c) segments are
//! covered; the split below reaches the least number of passes.

/// One turn of a forward-and-backward sweep over segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Pass through a segment: from the state before it to the state after it.
    Advance(usize),
    /// Keep the state at hand, at the boundary before this segment, in a slot.
    Keep {
        /// The segment after the boundary.
        segment: usize,
        /// The slot.
        slot: usize,
    },
    /// Take back a kept state.
    Restore {
        /// The segment after its boundary.
        segment: usize,
        /// The slot; `None` for the empty state at the clip's start.
        slot: Option<usize>,
    },
    /// Forward through a segment keeping what backward reads, and backward through it.
    Reverse(usize),
}

/// β(c, r), as far as it matters.
fn beta(c: usize, r: usize) -> u64 {
    let mut value: u64 = 1;
    for i in 1..=c.min(r) as u64 {
        value = match value.checked_mul((c + r) as u64 - i + 1) {
            Some(product) => product / i,
            None => return u64::MAX,
        };
    }
    value
}

/// Segments to pass through before the next state is kept.
fn split(segments: usize, restorable: usize) -> usize {
    let n = segments as u64;
    let mut r = 1;
    while beta(restorable, r) < n {
        r += 1;
    }
    // The left part has to be coverable with r − 1 passes, the right one with one state fewer.
    let most = beta(restorable, r - 1).min(n - 1);
    let least = n.saturating_sub(beta(restorable - 1, r)).max(1);
    let fair = n.saturating_sub(if r > 1 { beta(restorable - 1, r - 1) } else { 1 });
    fair.clamp(least.min(most), most).max(1) as usize
}

/// The turns that reverse `segments` segments with at most `slots` states kept at once.
pub fn revolve(segments: usize, slots: usize) -> Vec<Turn> {
    let mut turns = vec![Turn::Restore { segment: 0, slot: None }];
    let free: Vec<usize> = (0..slots).rev().collect();
    if segments > 0 {
        reverse(Start { segment: 0, slot: None }, segments, free, &mut turns);
    }
    turns
}

#[derive(Clone, Copy)]
struct Start {
    segment: usize,
    slot: Option<usize>,
}

/// Reverses `start.segment..end`; the state at the start is at hand, and can be restored.
fn reverse(start: Start, end: usize, mut free: Vec<usize>, turns: &mut Vec<Turn>) {
    let n = end - start.segment;
    if n == 1 {
        turns.push(Turn::Reverse(start.segment));
        return;
    }
    let Some(slot) = free.pop() else {
        for segment in (start.segment..end).rev() {
            turns.extend((start.segment..segment).map(Turn::Advance));
            turns.push(Turn::Reverse(segment));
            if segment > start.segment {
                turns.push(Turn::Restore { segment: start.segment, slot: start.slot });
            }
        }
        return;
    };
    let middle = start.segment + split(n, free.len() + 2);
    turns.extend((start.segment..middle).map(Turn::Advance));
    turns.push(Turn::Keep { segment: middle, slot });
    reverse(Start { segment: middle, slot: Some(slot) }, end, free.clone(), turns);
    turns.push(Turn::Restore { segment: start.segment, slot: start.slot });
    free.push(slot);
    reverse(start, middle, free, turns);
}

/// Passes through segments that reversing takes, apart from the one before each backward: r·n − β(c + 1, r − 1)
/// for c restorable states and the least r that covers n segments.
pub fn advances(segments: usize, slots: usize) -> u64 {
    if segments <= 1 {
        return 0;
    }
    let (n, restorable) = (segments as u64, slots + 1);
    let most = most_passes(segments, slots);
    (most as u64 * n).saturating_sub(beta(restorable + 1, most - 1))
}

/// How often a segment is passed through at most, apart from the pass before its backward.
pub fn most_passes(segments: usize, slots: usize) -> usize {
    if slots == 0 {
        return segments.saturating_sub(1);
    }
    (0..).find(|&r| beta(slots + 1, r) >= segments as u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The least number of advances, by trying every split.
    fn least(n: usize, slots: usize, known: &mut std::collections::HashMap<(usize, usize), u64>) -> u64 {
        if n <= 1 {
            return 0;
        }
        if slots == 0 {
            return (n * (n - 1) / 2) as u64;
        }
        if let Some(&value) = known.get(&(n, slots)) {
            return value;
        }
        let value = (1..n).map(|m| m as u64 + least(n - m, slots - 1, known) + least(m, slots, known)).min().unwrap();
        known.insert((n, slots), value);
        value
    }

    #[test]
    fn no_order_passes_through_fewer_segments() {
        let mut known = std::collections::HashMap::new();
        for n in 1..=60 {
            for slots in 0..=8 {
                let turns = revolve(n, slots);
                let counted = turns.iter().filter(|t| matches!(t, Turn::Advance(_))).count() as u64;
                assert_eq!(counted, least(n, slots, &mut known), "{n} segments, {slots} slots");
                assert_eq!(counted, advances(n, slots), "{n} segments, {slots} slots");
            }
        }
    }

    #[test]
    fn the_state_at_hand_is_always_the_right_one() {
        for n in 1..80 {
            for slots in 0..10 {
                let mut at = usize::MAX;
                let mut kept = vec![None; slots];
                let mut reversed = Vec::new();
                for turn in revolve(n, slots) {
                    match turn {
                        Turn::Advance(segment) => {
                            assert_eq!(at, segment);
                            at = segment + 1;
                        }
                        Turn::Keep { segment, slot } => {
                            assert_eq!(at, segment);
                            kept[slot] = Some(segment);
                        }
                        Turn::Restore { segment, slot } => {
                            assert_eq!(slot.map_or(Some(0), |s| kept[s]), Some(segment));
                            at = segment;
                        }
                        Turn::Reverse(segment) => {
                            assert_eq!(at, segment);
                            reversed.push(segment);
                        }
                    }
                }
                assert_eq!(reversed, (0..n).rev().collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn the_published_bound_is_reached() {
        // 600 segments with 40 states: each is passed through at most twice.
        let n = 600;
        assert!(beta(41, 2) >= n as u64);
        assert!(advances(n, 40) <= 2 * n as u64);
    }
}
