//! An independent proof of a packed schedule.
//!
//! It shares no code with the packer: it plays the schedule on a map from byte ranges to the buffer that last
//! wrote them. A read must find its own buffer's bytes, all of them; so an overlap, a read of what was freed
//! or never written, and a missing gradient all show.

use crate::graph::{Graph, ParamId};
use crate::schedule::{Access, Action, Buffer, Mode, Role, Schedule, Step, What};
use std::collections::BTreeMap;
use std::ops::Range;

/// Why a packed schedule cannot be trusted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A range beyond the arena or the buffer.
    #[error("step {step}: {role:?} reaches over its bounds")]
    OutOfBounds {
        /// Position of the step.
        step: usize,
        /// Which of its accesses.
        role: Role,
    },
    /// Two accesses of one step share bytes, and one of them writes.
    #[error("step {step}: {a:?} and {b:?} share bytes")]
    Aliased {
        /// Position of the step.
        step: usize,
        /// One access.
        a: Role,
        /// The other.
        b: Role,
    },
    /// Bytes that hold something else than what is read, or nothing.
    #[error("step {step}: {role:?} reads bytes {lo}..{hi} that hold {found:?} instead of {want:?}")]
    Stale {
        /// Position of the step.
        step: usize,
        /// Which of its accesses.
        role: Role,
        /// First wrong byte.
        lo: usize,
        /// One past the last.
        hi: usize,
        /// What they hold.
        found: Option<What>,
        /// What the step expects.
        want: What,
    },
    /// A parameter that no step of the micro-batch gives a gradient, or that the optimizer leaves out.
    #[error("parameter {param} has no {what}")]
    Missing {
        /// Its name.
        param: String,
        /// Gradient, clearing or optimizer step.
        what: &'static str,
    },
    /// A schedule that does not lie within its arena.
    #[error("it takes {bytes} bytes of an arena of {arena}")]
    TooLarge {
        /// What it takes.
        bytes: usize,
        /// What there is.
        arena: usize,
    },
    /// A parameter that is gone at the end of the step.
    #[error("{what:?} does not survive the step")]
    Lost {
        /// What was lost.
        what: What,
    },
}

/// Checks a schedule whose buffer i lies at `offsets[i]` of an arena of `arena` bytes.
///
/// # Errors
/// The first fault found.
pub fn check(graph: &Graph, schedule: &Schedule, offsets: &[usize], arena: usize) -> Result<(), Fault> {
    complete(graph, schedule)?;
    // The file lies beyond the arena.
    let addresses = schedule.buffers.iter().zip(offsets).map(|(b, &o)| if b.in_file() { arena + o } else { o });
    let offsets: &[usize] = &addresses.collect::<Vec<usize>>();
    let mut memory = Memory { owner: BTreeMap::new() };
    let persistent: Vec<usize> =
        (0..schedule.buffers.len()).filter(|&b| schedule.buffers[b].what.is_persistent()).collect();
    let tag = |b: usize| Tag { buffer: b, origin: offsets[b] as i64 };
    for &b in &persistent {
        if !matches!(schedule.buffers[b].what, What::Gradient(_)) {
            memory.write(whole(&schedule.buffers[b], offsets[b]), tag(b));
        }
    }
    // Twice over the micro-batch, as accumulation does, and once more from the start, as the next step does.
    let round =
        || schedule.begin.iter().chain(schedule.micro_steps()).chain(schedule.micro_steps()).chain(&schedule.update);
    for (index, step) in round().chain(round()).enumerate() {
        play(step, index, schedule, offsets, arena, &mut memory)?;
    }
    for &b in &persistent {
        let what = schedule.buffers[b].what;
        let range = whole(&schedule.buffers[b], offsets[b]);
        let trained = !schedule.update.is_empty();
        if (trained || !matches!(what, What::Gradient(_))) && memory.foreign(range, tag(b)).is_some() {
            return Err(Fault::Lost { what });
        }
    }
    Ok(())
}

fn whole(buffer: &Buffer, offset: usize) -> Range<usize> {
    offset..offset + buffer.elements() * buffer.dtype.bytes()
}

/// The bytes of an access, and what they must hold: the buffer, and where its frame 0 would lie.
fn bytes_of(buffer: &Buffer, access: &Access, offset: usize) -> Option<(Range<usize>, Tag)> {
    let window = access.window;
    if window.lo < access.base || window.lo > window.hi || window.hi > access.base + buffer.frames {
        return None;
    }
    let frame = buffer.frame * buffer.dtype.bytes();
    let lo = offset + (window.lo - access.base) * frame;
    let origin = offset as i64 - (access.base * frame) as i64;
    Some((lo..lo + window.len() * frame, Tag { buffer: access.buffer.0, origin }))
}

fn play(
    step: &Step,
    index: usize,
    schedule: &Schedule,
    offsets: &[usize],
    arena: usize,
    memory: &mut Memory,
) -> Result<(), Fault> {
    let mut ranges: Vec<(&Access, Range<usize>, Tag)> = Vec::new();
    for access in &step.accesses {
        let out = Fault::OutOfBounds { step: index, role: access.role };
        let (Some(buffer), Some(&offset)) = (schedule.buffers.get(access.buffer.0), offsets.get(access.buffer.0))
        else {
            return Err(out);
        };
        match bytes_of(buffer, access, offset) {
            Some((range, tag)) if range.end <= if buffer.in_file() { usize::MAX } else { arena } => {
                ranges.push((access, range, tag));
            }
            _ => return Err(out),
        }
    }
    for (i, (a, x, _)) in ranges.iter().enumerate() {
        for (b, y, _) in &ranges[i + 1..] {
            let writes = a.mode != Mode::Read || b.mode != Mode::Read;
            if writes && x.start < y.end && y.start < x.end {
                return Err(Fault::Aliased { step: index, a: a.role, b: b.role });
            }
        }
    }
    for (access, range, tag) in &ranges {
        if access.mode == Mode::Write {
            continue;
        }
        if let Some((wrong, owner)) = memory.foreign(range.clone(), *tag) {
            return Err(Fault::Stale {
                step: index,
                role: access.role,
                lo: wrong.start,
                hi: wrong.end,
                found: owner.map(|tag| schedule.buffers[tag.buffer].what),
                want: schedule.buffers[access.buffer.0].what,
            });
        }
    }
    for (access, range, tag) in ranges {
        if access.mode != Mode::Read {
            memory.write(range, tag);
        }
    }
    Ok(())
}

fn complete(graph: &Graph, schedule: &Schedule) -> Result<(), Fault> {
    if schedule.update.is_empty() {
        return Ok(());
    }
    for (index, param) in graph.params.iter().enumerate().filter(|(_, p)| p.trained) {
        let gradient = What::Gradient(ParamId(index));
        // Whether these accesses reach every frame of the gradient.
        let covers = |steps: &mut dyn Iterator<Item = &Step>, action: Action, mode: Mode| {
            let mut reached = Vec::new();
            for step in steps.filter(|step| step.action == action) {
                for access in step.accesses.iter().filter(|a| a.mode == mode) {
                    let Some(buffer) = schedule.buffers.get(access.buffer.0) else { continue };
                    if buffer.what == gradient {
                        reached.resize(buffer.frames, false);
                        let window = access.window;
                        reached.iter_mut().take(window.hi).skip(window.lo).for_each(|r| *r = true);
                    }
                }
            }
            !reached.is_empty() && reached.iter().all(|&r| r)
        };
        for (found, what) in [
            (covers(&mut schedule.begin.iter(), Action::Clear, Mode::Write), "clearing of its gradient"),
            (covers(&mut schedule.micro_steps(), Action::WeightGradient, Mode::Update), "gradient"),
            (covers(&mut schedule.update.iter(), Action::Update, Mode::Read), "optimizer step"),
        ] {
            if !found {
                return Err(Fault::Missing { param: param.name.clone(), what });
            }
        }
    }
    Ok(())
}

/// What bytes hold: a buffer's frames, counted from where its frame 0 would lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tag {
    buffer: usize,
    origin: i64,
}

/// Which buffer last wrote each byte: disjoint ranges by their start.
struct Memory {
    owner: BTreeMap<usize, (usize, Tag)>,
}

impl Memory {
    fn write(&mut self, range: Range<usize>, owner: Tag) {
        if range.is_empty() {
            return;
        }
        let before = self.owner.range(..range.start).next_back().map(|(&lo, &(hi, who))| (lo, hi, who));
        if let Some((lo, hi, who)) = before.filter(|&(_, hi, _)| hi > range.start) {
            self.owner.insert(lo, (range.start, who));
            if hi > range.end {
                self.owner.insert(range.end, (hi, who));
            }
        }
        let inside: Vec<(usize, usize, Tag)> =
            self.owner.range(range.clone()).map(|(&lo, &(hi, who))| (lo, hi, who)).collect();
        for (lo, hi, who) in inside {
            self.owner.remove(&lo);
            if hi > range.end {
                self.owner.insert(range.end, (hi, who));
            }
        }
        self.owner.insert(range.start, (range.end, owner));
    }

    /// The first part of the range that `owner` did not write last, and who did.
    fn foreign(&self, range: Range<usize>, owner: Tag) -> Option<(Range<usize>, Option<Tag>)> {
        let mut at = range.start;
        while at < range.end {
            let covering = self.owner.range(..=at).next_back().map(|(_, &piece)| piece).filter(|&(hi, _)| hi > at);
            match covering {
                Some((hi, who)) if who == owner => at = hi,
                Some((hi, who)) => return Some((at..hi.min(range.end), Some(who))),
                None => {
                    let hi = self.owner.range(at..range.end).next().map_or(range.end, |(&lo, _)| lo);
                    return Some((at..hi, None));
                }
            }
        }
        None
    }
}
