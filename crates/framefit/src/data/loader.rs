//! Decoding ahead of training, in a given order, in a fixed set of buffers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use super::clip::ClipRef;
use super::dataset::{ClipReader, Dataset, Done};
use super::error::DataError;

/// Buffers of a loader of `clips` clips: one with the user, the others decoded ahead; none where none is ahead.
pub(crate) fn buffers(ahead: usize, clips: usize) -> usize {
    if ahead == 0 { 0 } else { ahead.saturating_add(1).min(clips.max(1)) }
}

/// A clip at the beginning of a buffer that is long enough for any.
type Loaded = (ClipRef, Box<[u8]>);

/// Hands out clips in order while a thread decodes the next ones.
///
/// All buffers are made at the start, for the longest clip, and go round; there are no more than clips in the data set.
/// Dropping the loader stops the thread after the frame it is at.
pub struct Loader {
    stop: Arc<AtomicBool>,
    /// `None` once the loader stops.
    ready: Option<Receiver<Result<Loaded, DataError>>>,
    free: Option<SyncSender<Box<[u8]>>>,
    current: Option<Loaded>,
    /// Of the current clip, if it has one for all its frames.
    label: u32,
    dataset: Arc<Dataset>,
    /// Clips not yet handed out; 0 after an error.
    left: usize,
    thread: Option<JoinHandle<()>>,
}

/// A clip in a buffer that goes back to the loader when the next clip is asked for.
#[derive(Debug, Clone, Copy)]
pub struct LoadedClip<'a> {
    /// Which clip.
    pub clip: ClipRef,
    /// Its frames, `[T][H][W][C]`, with the clip's own T ([`ClipRef::frames`]).
    pub frames: &'a [u8],
    /// One label, or one per frame, `[T]`, where frames have their own ([`IGNORE`](super::IGNORE): none).
    pub labels: &'a [u32],
}

impl Loader {
    /// Starts to decode `order`, `ahead` clips ahead (at least 1).
    pub fn new(dataset: &Arc<Dataset>, order: Vec<ClipRef>, ahead: usize) -> Result<Self, DataError> {
        // An order may name a clip more than once.
        let count = buffers(ahead.max(1), order.len().min(dataset.index().len()));
        let (give, ready) = sync_channel(count);
        let (free, take) = sync_channel(count);
        for _ in 0..count {
            // There is room for all of them, and `take` is alive.
            let _ = free.send(vec![0; dataset.shape().bytes()].into_boxed_slice());
        }
        let left = order.len();
        let stop = Arc::new(AtomicBool::new(false));
        let (data, stopped) = (dataset.clone(), stop.clone());
        let work = move || {
            let stop = || stopped.load(Ordering::Relaxed);
            let mut reader = ClipReader::new(&data);
            for clip in order {
                let Ok(mut buffer) = take.recv() else { return };
                let bytes = data.shape_of(&clip).bytes();
                let result = match buffer.get_mut(..bytes) {
                    Some(frames) => reader.read(&clip, frames, &stop),
                    None => Err(DataError::UnknownClip { number: clip.number, clips: data.index().len() }),
                };
                let result = match result {
                    Ok(Done::Whole) => Ok((clip, buffer)),
                    Ok(Done::Stopped) => return,
                    Err(error) => Err(error),
                };
                let failed = result.is_err();
                if give.send(result).is_err() || failed {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("framefit-decode".into())
            .spawn(work)
            .map_err(|cause| DataError::Thread { cause })?;
        Ok(Self {
            stop,
            ready: Some(ready),
            free: Some(free),
            current: None,
            label: 0,
            dataset: dataset.clone(),
            left,
            thread: Some(thread),
        })
    }

    /// The data set that the clips are of.
    pub(crate) fn dataset(&self) -> &Arc<Dataset> {
        &self.dataset
    }

    /// The next clip of the order; `None` after the last one, and after an error.
    #[allow(clippy::should_implement_trait, reason = "the clip borrows the loader")]
    pub fn next(&mut self) -> Result<Option<LoadedClip<'_>>, DataError> {
        if let (Some((_, buffer)), Some(free)) = (self.current.take(), &self.free) {
            // The thread may have ended; then the buffer is not needed any more.
            let _ = free.send(buffer);
        }
        let Some(ready) = self.ready.as_ref().filter(|_| self.left > 0) else { return Ok(None) };
        let left = std::mem::take(&mut self.left);
        let loaded = ready.recv().map_err(|_| DataError::Stopped { left })??;
        self.left = left - 1;
        let (clip, buffer) = self.current.insert(loaded);
        self.label = clip.label as u32;
        let labels = self.dataset.labels_of(clip).unwrap_or(std::slice::from_ref(&self.label));
        let frames = buffer.get(..self.dataset.shape_of(clip).bytes()).unwrap_or_default();
        Ok(Some(LoadedClip { clip: *clip, frames, labels }))
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Wakes the thread where it waits for a buffer or for room.
        self.free = None;
        self.ready = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
