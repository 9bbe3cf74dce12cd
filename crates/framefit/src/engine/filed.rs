//! The file in which plans keep what barriers need of the whole clip.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// A file without a name, of the size that the plans ask for: it is gone when the engine is, or the process.
pub(super) struct Filed {
    file: File,
    folder: PathBuf,
    bytes: u64,
    /// Why the last step that used it failed.
    failed: RefCell<Option<io::Error>>,
}

/// What the file could not do.
#[derive(Debug, thiserror::Error)]
#[error(
    "{}: {cause}, for a file of {} bytes that holds values of whole clips: free space there, name another folder \
     with --barrier-folder, or leave them in memory",
    folder.display(), bytes
)]
pub struct FiledError {
    /// Where the file is.
    pub folder: PathBuf,
    /// The bytes it takes in all.
    pub bytes: u64,
    /// The system's answer.
    pub cause: io::Error,
}

impl Filed {
    /// Takes all of the file's space at once, so that a full disk is found out before the first step.
    pub(super) fn new(folder: &Path, bytes: u64) -> Result<Self, FiledError> {
        let made = tempfile::tempfile_in(folder).and_then(|file| reserve(&file, bytes).map(|()| file));
        let folder = folder.to_owned();
        match made {
            Ok(file) => Ok(Self { file, folder, bytes, failed: RefCell::new(None) }),
            Err(cause) => Err(FiledError { folder, bytes, cause }),
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn write(&self, offset: usize, from: &[u8]) -> Option<()> {
        let mut file = &self.file;
        self.done(file.seek(SeekFrom::Start(offset as u64)).and_then(|_| file.write_all(from)))
    }

    pub(super) fn read(&self, offset: usize, to: &mut [u8]) -> Option<()> {
        let mut file = &self.file;
        self.done(file.seek(SeekFrom::Start(offset as u64)).and_then(|_| file.read_exact(to)))
    }

    fn done(&self, result: io::Result<()>) -> Option<()> {
        result.map_err(|cause| self.failed.replace(Some(cause))).ok()
    }

    /// Why the last step failed, if the file was the reason.
    pub(super) fn failure(&self) -> Option<FiledError> {
        let cause = self.failed.take()?;
        Some(FiledError { folder: self.folder.clone(), bytes: self.bytes, cause })
    }
}

#[cfg(target_os = "linux")]
fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    match fallocate(file, FallocateFlags::empty(), 0, bytes.max(1)) {
        Ok(()) => Ok(()),
        // A file system that cannot say: writing will.
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => file.set_len(bytes),
        Err(error) => Err(error.into()),
    }
}

#[cfg(not(target_os = "linux"))]
fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    file.set_len(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_the_folder_stays_empty() {
        let folder = tempfile::tempdir().unwrap();
        let filed = Filed::new(folder.path(), 100).unwrap();
        filed.write(40, &[1, 2, 3]).unwrap();
        let mut back = [0; 4];
        filed.read(39, &mut back).unwrap();
        assert_eq!(back, [0, 1, 2, 3]);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        assert!(filed.failure().is_none());
    }

    #[test]
    fn a_folder_that_is_not_there_or_too_small_is_named() {
        let missing = Filed::new(Path::new("no/such/folder"), 5).err().unwrap();
        assert!(missing.to_string().starts_with("no/such/folder: "), "{missing}");
        let folder = tempfile::tempdir().unwrap();
        let large = Filed::new(folder.path(), 1 << 60).err().unwrap().to_string();
        assert!(large.contains(&format!("{}", 1u64 << 60)) && large.contains("--barrier-folder"), "{large}");
    }
}
