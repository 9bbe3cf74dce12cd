//! Videos and labels to clips.
