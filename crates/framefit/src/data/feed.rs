//! Clips into the places of a micro-batch: decoded ahead, or straight there.

use super::augment::{Flip, Scatter, flip_frames, scatter, scatter_labels};
use super::clip::ClipRef;
use super::dataset::{ClipReader, Dataset};
use super::error::DataError;
use super::loader::Loader;
use std::sync::Arc;

/// Hands out clips in a given order.
pub enum Feed<'a> {
    /// A thread decodes ahead of what is asked for.
    Ahead(Loader),
    /// Each clip is decoded when it is asked for, to where it goes: a clip at a time takes no memory besides.
    Direct(Direct<'a>),
}

/// Decodes on demand.
pub struct Direct<'a> {
    dataset: &'a Dataset,
    reader: ClipReader<'a>,
    order: std::vec::IntoIter<ClipRef>,
    /// A clip on its way among others.
    buffer: Vec<u8>,
}

impl<'a> Feed<'a> {
    /// Clips in this order, `ahead` of them decoded ahead.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn new(dataset: &'a Arc<Dataset>, order: Vec<ClipRef>, ahead: usize) -> Result<Self, DataError> {
        if ahead > 0 {
            return Ok(Feed::Ahead(Loader::new(dataset, order, ahead)?));
        }
        let reader = ClipReader::new(dataset);
        Ok(Feed::Direct(Direct { dataset, reader, order: order.into_iter(), buffer: Vec::new() }))
    }

    /// The next clip, its frames to their place in `frames`, `[T][N][H][W][C]`, its labels to theirs in `labels`,
    /// `[T][N]` or `[N]`. `draw` says how the clip is flipped.
    ///
    /// # Errors
    /// When the order is at its end, or the video cannot be read.
    pub fn fill(
        &mut self,
        to: (usize, usize),
        draw: impl Fn(&ClipRef) -> Flip,
        frames: &mut [u8],
        labels: &mut [u32],
    ) -> Result<ClipRef, DataError> {
        let (place, clips) = to;
        match self {
            Feed::Ahead(loader) => {
                let dataset = loader.dataset().clone();
                let Some(loaded) = loader.next()? else { return Err(DataError::Stopped { left: clips - place }) };
                let flip = draw(&loaded.clip);
                let to = Scatter { shape: dataset.shape_of(&loaded.clip), clips, place, flip };
                scatter(loaded.frames, to, frames)?;
                scatter_labels(loaded.labels, to, labels)?;
                Ok(loaded.clip)
            }
            Feed::Direct(direct) => {
                let Some(clip) = direct.order.next() else { return Err(DataError::Stopped { left: clips - place }) };
                let shape = direct.dataset.shape_of(&clip);
                let to = Scatter { shape, clips, place, flip: draw(&clip) };
                if clips == 1 {
                    direct.reader.read(&clip, frames, &|| false)?;
                    flip_frames(shape, to.flip, frames);
                } else {
                    direct.buffer.resize(direct.dataset.shape().bytes(), 0);
                    let buffer = direct.buffer.get_mut(..shape.bytes()).unwrap_or_default();
                    direct.reader.read(&clip, buffer, &|| false)?;
                    scatter(buffer, to, frames)?;
                }
                let own = [clip.label as u32];
                scatter_labels(direct.dataset.labels_of(&clip).unwrap_or(&own), to, labels)?;
                Ok(clip)
            }
        }
    }
}
