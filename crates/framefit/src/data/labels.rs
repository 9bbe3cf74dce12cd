//! What a manifest labels, recognised by its columns.

use std::path::PathBuf;

use super::frame_labels::FrameManifest;
use super::manifest::{Manifest, ManifestError};
use super::table::open_all;

/// Labelled videos: one label per clip, or one per frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Labels {
    /// Each row is a clip, or a video of clips, with one label.
    PerClip(Manifest),
    /// Frames have labels of their own.
    PerFrame(FrameManifest),
}

impl Labels {
    /// Reads one or two manifests as [`FrameManifest::read`] if one of them has a column `frame` and neither
    /// `start_frame` nor `end_frame`, else as [`Manifest::read`].
    pub fn read(paths: &[PathBuf]) -> Result<Self, ManifestError> {
        let tables = open_all(paths)?;
        for table in &tables {
            if table.labels_frames()? {
                return FrameManifest::of_tables(&tables).map(Self::PerFrame);
            }
        }
        Manifest::of_tables(&tables).map(Self::PerClip)
    }

    /// As [`Labels::read`], for a model that already has its classes.
    pub fn read_with_classes(paths: &[PathBuf], classes: &[String]) -> Result<Self, ManifestError> {
        let tables = open_all(paths)?;
        for table in &tables {
            if table.labels_frames()? {
                return FrameManifest::of_tables_with_classes(&tables, classes).map(Self::PerFrame);
            }
        }
        Manifest::of_tables_with_classes(&tables, classes).map(Self::PerClip)
    }

    /// Whether frames have labels of their own.
    pub const fn per_frame(&self) -> bool {
        matches!(self, Self::PerFrame(_))
    }

    /// Videos, classes and rows; with labels per frame, one row per video.
    pub const fn manifest(&self) -> &Manifest {
        match self {
            Self::PerClip(manifest) => manifest,
            Self::PerFrame(frames) => frames.manifest(),
        }
    }
}

impl From<Manifest> for Labels {
    fn from(manifest: Manifest) -> Self {
        Self::PerClip(manifest)
    }
}

impl From<FrameManifest> for Labels {
    fn from(manifest: FrameManifest) -> Self {
        Self::PerFrame(manifest)
    }
}
