//! Tensors in safetensors files, under the user's names and in the user's layout.
//!
//! Values pass through one small block, so that a file is read and written in [`BLOCK`] bytes of memory
//! whatever its size. A file is written beside its place, synced, then renamed: it is there whole or not at all.

mod error;

pub use error::WeightsError;

use framefit_core::graph::StoredOrder;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Most bytes that reading or writing a file takes, its header apart.
pub const BLOCK: usize = 1 << 20;

/// Longest header that is read.
const LONGEST_HEADER: u64 = 64 << 20;

/// A tensor to be written.
pub struct Entry<'a> {
    /// The user's name.
    pub name: String,
    /// Extents in the user's framework.
    pub dims: &'a [usize],
    /// How `data` lies.
    pub stored: &'a StoredOrder,
    /// The values, in stored order.
    pub data: &'a [f32],
}

/// Writes a file of tensors with one text of metadata under `key`.
///
/// # Errors
/// When the file cannot be written; what was there before is untouched then.
pub fn write(path: &Path, entries: &[Entry<'_>], key: &str, text: String) -> Result<(), WeightsError> {
    let failed = |cause: std::io::Error| WeightsError::Write { path: path.to_owned(), cause };
    let mut offset = 0;
    let mut infos = Vec::new();
    for entry in entries {
        let end = offset + size_of_val(entry.data);
        let info = TensorInfo { dtype: Dtype::F32, shape: entry.dims.to_vec(), data_offsets: (offset, end) };
        infos.push((entry.name.clone(), info));
        offset = end;
    }
    let header = Metadata::new(Some(HashMap::from([(key.to_owned(), text)])), infos)
        .map_err(|e| failed(std::io::Error::other(e)))?;
    let mut header = serde_json::to_vec(&header).map_err(|e| failed(e.into()))?;
    header.resize(header.len().next_multiple_of(8), b' ');

    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut temporary = tempfile::Builder::new().suffix(".tmp").tempfile_in(folder).map_err(failed)?;
    let mut out = BufWriter::with_capacity(BLOCK / 4, temporary.as_file_mut());
    out.write_all(&(header.len() as u64).to_le_bytes()).map_err(failed)?;
    out.write_all(&header).map_err(failed)?;
    let mut block = vec![0f32; BLOCK / 4 / size_of::<f32>()];
    for entry in entries {
        let mut from = 0;
        while from < entry.data.len() {
            let count = block.len().min(entry.data.len() - from);
            entry.stored.each(from, count, |user, stored| block[user - from] = entry.data[stored]);
            let block = &mut block[..count];
            for value in block.iter_mut() {
                *value = f32::from_ne_bytes(value.to_le_bytes());
            }
            out.write_all(bytemuck::cast_slice(block)).map_err(failed)?;
            from += count;
        }
    }
    out.flush().map_err(failed)?;
    drop(out);
    temporary.as_file().sync_all().map_err(failed)?;
    temporary.persist(path).map_err(|e| failed(e.error))?;
    // The rename itself is durable once the folder is synced; not every system lets a folder be opened.
    if let Ok(folder) = File::open(folder) {
        let _ = folder.sync_all();
    }
    Ok(())
}

/// A file of tensors, its header read.
pub struct TensorFile {
    path: PathBuf,
    file: BufReader<File>,
    header: Metadata,
    data: u64,
}

impl TensorFile {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// When it cannot be read, is no safetensors file, or is cut off.
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        let unreadable = |cause: std::io::Error| WeightsError::Read { path: path.to_owned(), cause };
        let broken = |why: String| WeightsError::Broken { path: path.to_owned(), why };
        let file = File::open(path).map_err(unreadable)?;
        let length = file.metadata().map_err(unreadable)?.len();
        let mut file = BufReader::with_capacity(BLOCK / 4, file);
        let mut size = [0; 8];
        file.read_exact(&mut size).map_err(|_| broken("it is shorter than a header".to_owned()))?;
        let size = u64::from_le_bytes(size);
        if size > LONGEST_HEADER || size > length {
            return Err(broken(format!("its header would be {size} bytes long")));
        }
        let mut header = vec![0; size as usize];
        file.read_exact(&mut header).map_err(unreadable)?;
        let header: Metadata = serde_json::from_slice(&header).map_err(|e| broken(format!("its header: {e}")))?;
        let data = 8 + size;
        let whole = data.saturating_add(header.data_len() as u64);
        if whole != length {
            return Err(broken(format!("it should be {whole} bytes long, but is {length}")));
        }
        Ok(Self { path: path.to_owned(), file, header, data })
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The metadata under `key`.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.header.metadata().as_ref()?.get(key).map(String::as_str)
    }

    /// The names of all tensors, sorted.
    pub fn names(&self) -> Vec<String> {
        let mut names = self.header.offset_keys();
        names.sort_unstable();
        names
    }

    /// Reads a tensor of single precision into stored order.
    ///
    /// # Errors
    /// When it is missing, of other extents, of another type, or cannot be read.
    pub fn read(
        &mut self,
        name: &str,
        dims: &[usize],
        stored: &StoredOrder,
        to: &mut [f32],
    ) -> Result<(), WeightsError> {
        let path = || self.path.clone();
        let Some(info) = self.header.info(name) else {
            return Err(WeightsError::Missing { path: path(), name: name.to_owned(), found: self.names() });
        };
        if info.shape != dims {
            return Err(WeightsError::Shape {
                path: path(),
                name: name.to_owned(),
                want: dims.to_vec(),
                got: info.shape.clone(),
            });
        }
        if info.dtype != Dtype::F32 {
            let got = format!("{:?}", info.dtype);
            return Err(WeightsError::Type { path: path(), name: name.to_owned(), got });
        }
        let start = self.data + info.data_offsets.0 as u64;
        let unreadable = |cause: std::io::Error| WeightsError::Read { path: self.path.clone(), cause };
        self.file.seek(SeekFrom::Start(start)).map_err(unreadable)?;
        let mut block = vec![0u8; BLOCK / 4];
        let per_block = block.len() / size_of::<f32>();
        let mut from = 0;
        while from < to.len() {
            let count = per_block.min(to.len() - from);
            let bytes = &mut block[..count * size_of::<f32>()];
            self.file.read_exact(bytes).map_err(unreadable)?;
            let values = bytes.as_chunks::<4>().0;
            stored.each(from, count, |user, stored| to[stored] = f32::from_le_bytes(values[user - from]));
            from += count;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn temporary() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights.safetensors");
        (folder, path)
    }

    #[test]
    fn what_is_written_in_the_users_layout_reads_back_into_ours() {
        let (_folder, path) = temporary();
        let stored = StoredOrder::of(&[5, 3, 2], &[1, 2, 0]);
        let data: Vec<f32> = (0..30).map(|i| i as f32).collect();
        let entry = Entry { name: "conv1.weight".to_owned(), dims: &[5, 6], stored: &stored, data: &data };
        write(&path, &[entry], "framefit", "{}".to_owned()).unwrap();

        let bytes = std::fs::read(&path).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let tensor = file.tensor("conv1.weight").unwrap();
        assert_eq!(tensor.shape(), [5, 6]);
        let first = f32::from_le_bytes(tensor.data()[..4].try_into().unwrap());
        let second = f32::from_le_bytes(tensor.data()[4..8].try_into().unwrap());
        assert_eq!((first, second), (0.0, 5.0), "the user's last axis is the stored middle one");

        let mut back = vec![0.0; 30];
        let mut file = TensorFile::open(&path).unwrap();
        file.read("conv1.weight", &[5, 6], &stored, &mut back).unwrap();
        assert_eq!(back, data);
        assert_eq!(file.metadata("framefit"), Some("{}"));
    }

    #[test]
    fn tensors_longer_than_a_block_keep_their_order() {
        let (_folder, path) = temporary();
        let n = BLOCK / 4 + 77;
        let stored = StoredOrder::of(&[7, n], &[1, 0]);
        let data: Vec<f32> = (0..7 * n).map(|i| i as f32).collect();
        let entry = Entry { name: "w".to_owned(), dims: &[7, n], stored: &stored, data: &data };
        write(&path, &[entry], "framefit", String::new()).unwrap();
        let mut back = vec![0.0; data.len()];
        TensorFile::open(&path).unwrap().read("w", &[7, n], &stored, &mut back).unwrap();
        assert!(back == data);
    }

    #[test]
    fn broken_files_are_errors_that_say_what_is_wrong() {
        let (_folder, path) = temporary();
        let stored = StoredOrder::of(&[4], &[0]);
        let entry = Entry { name: "b".to_owned(), dims: &[4], stored: &stored, data: &[1.0; 4] };
        write(&path, &[entry], "framefit", String::new()).unwrap();
        let good = std::fs::read(&path).unwrap();
        for cut in [0, 4, 8, 20, good.len() - 1] {
            std::fs::write(&path, &good[..cut]).unwrap();
            let error = TensorFile::open(&path).err().unwrap();
            assert!(error.to_string().contains("weights.safetensors"), "{error}");
        }
        std::fs::write(&path, &good).unwrap();
        let mut file = TensorFile::open(&path).unwrap();
        let mut to = [0.0; 4];
        let error = file.read("a", &[4], &stored, &mut to).unwrap_err().to_string();
        assert!(error.contains("no tensor 'a'") && error.contains('b'), "{error}");
        let error = file.read("b", &[2, 2], &stored, &mut to).unwrap_err().to_string();
        assert!(error.contains("[2, 2]") && error.contains("[4]"), "{error}");
    }

    #[test]
    fn a_failed_write_leaves_the_older_file_and_nothing_else() {
        let (folder, path) = temporary();
        std::fs::write(&path, "older").unwrap();
        let stored = StoredOrder::of(&[1], &[0]);
        let entry = Entry { name: "b".to_owned(), dims: &[1], stored: &stored, data: &[1.0] };
        let nowhere = folder.path().join("missing/weights.safetensors");
        assert!(write(&nowhere, &[entry], "framefit", String::new()).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"older");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
