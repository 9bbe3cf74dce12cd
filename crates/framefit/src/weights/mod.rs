//! Tensors in safetensors files, under the user's names and in the user's layout.
//!
//! Values pass through one small block, so that a file is read and written in [`BLOCK`] bytes of memory
//! whatever its size. A file is written beside its place, synced, then renamed: it is there whole or not at all.

mod error;

pub(crate) use error::Place;
pub use error::{Difference, WeightsError};

use framefit_core::Bytes;
use framefit_core::graph::StoredOrder;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

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

/// Writes a file of tensors with one text of metadata under `key`. It has the mode of a file that was there, else
/// the one that the user's mask gives to new files.
///
/// # Errors
/// When the file cannot be written; what was there before is untouched then, and nothing else is left.
pub fn write(path: &Path, entries: &[Entry<'_>], key: &str, text: String) -> Result<(), WeightsError> {
    let data: usize = entries.iter().map(|entry| size_of_val(entry.data)).sum();
    let failed = |header: usize| {
        let bytes = Bytes((size_of::<u64>() + header + data) as u64);
        move |cause: std::io::Error| WeightsError::Write { path: path.to_owned(), bytes, cause }
    };
    let header = header(entries, key, text).map_err(failed(0))?;
    let failed = failed(header.len());
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut temporary = beside(path, folder).map_err(&failed)?;
    send(temporary.as_file_mut(), &header, entries).map_err(&failed)?;
    temporary.as_file().sync_all().map_err(&failed)?;
    temporary.persist(path).map_err(|e| failed(e.error))?;
    // The rename itself is durable once the folder is synced; not every system lets a folder be opened.
    if let Ok(folder) = File::open(folder) {
        let _ = folder.sync_all();
    }
    Ok(())
}

/// Names, types, extents and places, padded to eight bytes.
fn header(entries: &[Entry<'_>], key: &str, text: String) -> std::io::Result<Vec<u8>> {
    let mut offset = 0;
    let mut infos = Vec::new();
    for entry in entries {
        let end = offset + size_of_val(entry.data);
        let info = TensorInfo { dtype: Dtype::F32, shape: entry.dims.to_vec(), data_offsets: (offset, end) };
        infos.push((entry.name.clone(), info));
        offset = end;
    }
    let metadata = Some(HashMap::from([(key.to_owned(), text)]));
    let mut header = serde_json::to_vec(&Metadata::new(metadata, infos).map_err(std::io::Error::other)?)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    Ok(header)
}

/// What the names of unfinished files end with.
const UNFINISHED: &str = ".tmp";

/// An empty file that is removed unless it is renamed to `path`, with the mode that `path` has or would have.
fn beside(path: &Path, folder: &Path) -> std::io::Result<NamedTempFile> {
    let mut prefix = path.file_name().unwrap_or_default().to_owned();
    prefix.push(".");
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).suffix(UNFINISHED);
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let file = builder.tempfile_in(folder)?;
    #[cfg(unix)]
    if let Ok(older) = path.metadata() {
        file.as_file().set_permissions(older.permissions())?;
    }
    Ok(file)
}

/// Removes what writers of `path` that were killed have left beside it. No other may be at work there.
pub(crate) fn remove_unfinished(path: &Path) {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else { return };
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let left = entry.file_name();
        let rest = left.to_str().and_then(|left| left.strip_prefix(name)?.strip_prefix('.')?.strip_suffix(UNFINISHED));
        if rest.is_some() {
            // One that cannot be removed is in nobody's way.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

fn send(to: &mut File, header: &[u8], entries: &[Entry<'_>]) -> std::io::Result<()> {
    let mut out = BufWriter::with_capacity(BLOCK / 4, to);
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(header)?;
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
            out.write_all(bytemuck::cast_slice(block))?;
            from += count;
        }
    }
    out.flush()
}

/// The index in the user's axes of a value that is infinite or NaN, of a tensor in stored order, and the value.
pub(crate) fn not_finite(dims: &[usize], stored: &StoredOrder, data: &[f32]) -> Option<(Vec<usize>, f32)> {
    // Without an exit in the middle of a block, so that it runs at the speed of memory.
    let finite = |block: &[f32]| block.iter().fold(true, |all, value| all & value.is_finite());
    if data.chunks(4096).all(finite) {
        return None;
    }
    let mut first = None;
    stored.each(0, data.len(), |user, stored| {
        if first.is_none() && !data[stored].is_finite() {
            first = Some((user, data[stored]));
        }
    });
    first.map(|(user, value)| (index(dims, user), value))
}

/// The place in each of `dims` of the value number `at`.
fn index(dims: &[usize], mut at: usize) -> Vec<usize> {
    let mut index: Vec<usize> = dims
        .iter()
        .rev()
        .map(|&extent| {
            let place = at % extent.max(1);
            at /= extent.max(1);
            place
        })
        .collect();
    index.reverse();
    index
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
        if size > LONGEST_HEADER {
            return Err(WeightsError::Other { path: path.to_owned() });
        }
        if size > length.saturating_sub(8) {
            return Err(broken(format!("its header should be {size} bytes long, but all of it is {length}")));
        }
        let mut header = vec![0; size as usize];
        file.read_exact(&mut header).map_err(unreadable)?;
        if !header.starts_with(b"{") {
            return Err(WeightsError::Other { path: path.to_owned() });
        }
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

    /// The names of all tensors, in the order of their values.
    pub fn names(&self) -> Vec<String> {
        self.header.offset_keys()
    }

    /// Whether the file's tensors are the model's, each with its extents; those named `besides` may be there too.
    ///
    /// # Errors
    /// The first that differs, in the model's order.
    pub fn check(&self, model: &[(String, &[usize])], besides: impl Fn(&str) -> bool) -> Result<(), WeightsError> {
        let mut differences: Vec<Difference> =
            model.iter().filter_map(|(name, want)| self.info(name, want).err()).collect();
        let known: HashSet<&str> = model.iter().map(|(name, _)| name.as_str()).collect();
        let mut extra = self.names();
        extra.retain(|name| !known.contains(name.as_str()) && !besides(name));
        let of = model.len() + extra.len();
        differences.extend(extra.into_iter().map(|name| {
            let got = self.header.info(&name).map(|info| info.shape.clone()).unwrap_or_default();
            Difference::Extra { name, got }
        }));
        let differing = differences.len();
        match differences.into_iter().next() {
            None => Ok(()),
            Some(first) => Err(WeightsError::OtherModel { path: self.path.clone(), first, differing, of }),
        }
    }

    fn info(&self, name: &str, want: &[usize]) -> Result<&TensorInfo, Difference> {
        match self.header.info(name) {
            Some(info) if info.shape == want => Ok(info),
            Some(info) => {
                let got = info.shape.clone();
                Err(Difference::Shape { name: name.to_owned(), want: want.to_vec(), got })
            }
            None => Err(Difference::Missing { name: name.to_owned(), want: want.to_vec() }),
        }
    }

    /// Reads a tensor of single precision into stored order.
    ///
    /// # Errors
    /// When it is missing, of other extents, of another type, holds a value that is no number, or cannot be read.
    pub fn read(
        &mut self,
        name: &str,
        dims: &[usize],
        stored: &StoredOrder,
        to: &mut [f32],
    ) -> Result<(), WeightsError> {
        let path = || self.path.clone();
        let other = |first| WeightsError::OtherModel { path: path(), first, differing: 1, of: 1 };
        let info = self.info(name, dims).map_err(other)?;
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
        match not_finite(dims, stored, to) {
            None => Ok(()),
            Some((index, value)) => Err(WeightsError::NotFinite { path: path(), name: name.to_owned(), index, value }),
        }
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
        assert!(error.contains("the model has 'a' of 4, the file has none"), "{error}");
        let error = file.read("b", &[2, 2], &stored, &mut to).unwrap_err().to_string();
        assert!(error.contains("'b' is 4 in the file and 2x2 in the model"), "{error}");
    }

    #[test]
    fn tensors_of_another_model_are_compared_with_all_of_this_one() {
        let (_folder, path) = temporary();
        let stored = StoredOrder::of(&[4], &[0]);
        let entry = |name: &str, dims| Entry { name: name.to_owned(), dims, stored: &stored, data: &[1.0; 4] };
        write(&path, &[entry("w", &[4]), entry("b", &[2, 2]), entry("moment", &[4])], "framefit", String::new())
            .unwrap();
        let file = TensorFile::open(&path).unwrap();
        let check = |model: &[(&str, &[usize])]| {
            let model: Vec<(String, &[usize])> = model.iter().map(|&(name, dims)| (name.to_owned(), dims)).collect();
            file.check(&model, |name| name == "moment").map_err(|e| e.to_string())
        };
        assert_eq!(check(&[("b", &[2, 2]), ("w", &[4])]), Ok(()));
        for (model, said) in [
            (&[("w", &[4][..]), ("b", &[4])][..], "'b' is 2x2 in the file and 4 in the model; 1 of 2"),
            (&[("w", &[5]), ("b", &[4])], "'w' is 4 in the file and 5 in the model; 2 of 2"),
            (&[("v", &[1, 3]), ("w", &[4])], "the model has 'v' of 1x3, the file has none; 2 of 3"),
            (&[("w", &[4])], "the file has 'b' of 2x2, the model has none; 1 of 2"),
        ] {
            let error = check(model).unwrap_err();
            assert!(error.contains(said) && error.contains("weights.safetensors"), "{error}");
        }
    }

    #[test]
    fn values_that_are_no_numbers_are_named_with_their_index() {
        let (_folder, path) = temporary();
        let stored = StoredOrder::of(&[5, 3, 2], &[1, 2, 0]);
        for (bad, said) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf")] {
            let mut data = [0f32; 30];
            // The user's value 4·6 + 5 is stored at (2·2 + 1)·5 + 4.
            data[29] = bad;
            let entry = Entry { name: "fc1.weight".to_owned(), dims: &[5, 6], stored: &stored, data: &data };
            write(&path, &[entry], "framefit", String::new()).unwrap();
            let mut file = TensorFile::open(&path).unwrap();
            let error = file.read("fc1.weight", &[5, 6], &stored, &mut [0.0; 30]).unwrap_err().to_string();
            assert!(error.contains(&format!("'fc1.weight'[4, 5] is {said}: ")), "{error}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn files_have_the_mode_that_a_plain_create_gives() {
        use std::os::unix::fs::PermissionsExt;
        let (folder, path) = temporary();
        let stored = StoredOrder::of(&[1], &[0]);
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o7777;
        let written = || {
            let entry = Entry { name: "b".to_owned(), dims: &[1], stored: &stored, data: &[1.0] };
            write(&path, &[entry], "framefit", String::new()).unwrap();
            mode(&path)
        };
        let plain = folder.path().join("plain");
        std::fs::write(&plain, "").unwrap();
        assert_eq!(written(), mode(&plain));
        for own in [0o600, 0o664] {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(own)).unwrap();
            assert_eq!(written(), own, "a file that is there keeps its mode");
        }
    }

    #[test]
    fn what_a_killed_writer_left_is_removed_and_nothing_else() {
        let (folder, path) = temporary();
        let at = |name: &str| folder.path().join(name);
        let left = beside(&path, folder.path()).unwrap().into_temp_path().keep().unwrap();
        let others = ["weights.safetensors", "weights.safetensors.old", "other.safetensors.abc.tmp", "x.tmp"];
        for name in others {
            std::fs::write(at(name), "").unwrap();
        }
        remove_unfinished(&path);
        assert!(!left.exists());
        assert!(others.iter().all(|name| at(name).exists()));
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
