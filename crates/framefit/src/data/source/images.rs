//! A folder of PNG or JPEG images, one per frame, in natural order of their names.

use std::ops::Range;
use std::path::{Path, PathBuf};

use image::{ImageDecoder, ImageReader};

use super::{MAX_FRAMES, MAX_SIDE, Pixels, Sink, SourceError, VideoInfo, colour, guarded};
use crate::data::natural;

pub(super) struct Images {
    path: PathBuf,
    names: Vec<PathBuf>,
    /// What the names take.
    name_bytes: u64,
    height: usize,
    width: usize,
    stored: Vec<u8>,
    converted: Vec<u8>,
}

/// What an image file may hold beside its pixels: headers, colour profiles, a thumbnail.
const MAX_FILE_OVERHEAD: u64 = 1 << 20;

impl Images {
    pub(super) fn open(path: &Path) -> Result<Self, SourceError> {
        let io = |cause| SourceError::Io { path: path.into(), cause };
        let mut names = Vec::new();
        for entry in std::fs::read_dir(path).map_err(io)? {
            let name = PathBuf::from(entry.map_err(io)?.file_name());
            let hidden = name.to_string_lossy().starts_with('.');
            let kind = name.extension().map(|kind| kind.to_string_lossy().to_ascii_lowercase());
            if !hidden && matches!(kind.as_deref(), Some("png" | "jpg" | "jpeg")) {
                names.push(name);
            }
            if names.len() as u64 > MAX_FRAMES {
                let (what, got) = ("the number of images", names.len() as u64);
                return Err(SourceError::Limit { path: path.into(), what, got, limit: MAX_FRAMES });
            }
        }
        names.sort_by(|a, b| natural::compare(&a.to_string_lossy(), &b.to_string_lossy()));
        let Some(first) = names.first() else {
            return Err(SourceError::NoImages { path: path.into() });
        };
        let (height, width) = dimensions(&path.join(first))?;
        let name_bytes = names.iter().map(|name| 64 + name.as_os_str().len() as u64).sum();
        Ok(Self { path: path.into(), names, name_bytes, height, width, stored: Vec::new(), converted: Vec::new() })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn info(&self) -> VideoInfo {
        // The image (up to four 16-bit channels), the frame handed out, the file (as `read` accepts it), and what the
        // decoder keeps of a progressive JPEG (16-bit coefficients of three components).
        let pixels = (self.height * self.width) as u64;
        let decoder_bytes = pixels * (8 + 3 + 4 + 6) + MAX_FILE_OVERHEAD + (128 << 10) + self.name_bytes;
        VideoInfo { frames: self.names.len(), height: self.height, width: self.width, decoder_bytes }
    }

    /// All images have the size of the first one.
    pub(super) fn verify(&self) -> Result<(), SourceError> {
        for name in self.names.iter().skip(1) {
            self.check(name, dimensions(&self.path.join(name))?)?;
        }
        Ok(())
    }

    fn check(&self, name: &Path, other_size: (usize, usize)) -> Result<(), SourceError> {
        let first_size = (self.height, self.width);
        if other_size == first_size {
            return Ok(());
        }
        let first = self.names.first().map(|name| self.path.join(name)).unwrap_or_default();
        Err(SourceError::ImageSize { first, first_size, other: self.path.join(name), other_size })
    }

    pub(super) fn read(
        &mut self,
        frames: Range<usize>,
        pixels: Pixels,
        sink: &mut Sink<'_>,
    ) -> Result<(), SourceError> {
        for number in frames {
            let Some(name) = self.names.get(number) else { break };
            let path = self.path.join(name);
            self.check(name, dimensions(&path)?)?;
            let got = std::fs::metadata(&path).map_err(|cause| SourceError::Io { path: path.clone(), cause })?.len();
            let limit = 4 * (self.height * self.width) as u64 + MAX_FILE_OVERHEAD;
            if got > limit {
                return Err(SourceError::Limit { path, what: "the size of the image file in bytes", got, limit });
            }
            let failed = |what: String| SourceError::Image { path: path.clone(), what };
            let reader = reader(&path)?;
            let decoder =
                guarded(|| reader.into_decoder()).map_err(failed)?.map_err(|cause| failed(cause.to_string()))?;
            let kind = decoder.color_type();
            let bytes = usize::try_from(decoder.total_bytes()).unwrap_or(usize::MAX);
            if bytes > self.height * self.width * 8 {
                return Err(SourceError::Image { path, what: format!("its {bytes} bytes do not fit its size") });
            }
            self.stored.resize(bytes, 0);
            let stored = &mut self.stored;
            guarded(|| decoder.read_image(stored)).map_err(failed)?.map_err(|cause| failed(cause.to_string()))?;
            let frame: &[u8] = match (kind, pixels) {
                (image::ColorType::L8, Pixels::Grey) | (image::ColorType::Rgb8, Pixels::Rgb) => &self.stored,
                _ => {
                    let step = usize::from(kind.bytes_per_pixel());
                    let wide = usize::from(kind.bytes_per_pixel() / kind.channel_count()) == 2;
                    // 16-bit samples are in the machine's order; their high byte is the 8-bit level.
                    let high = usize::from(wide && cfg!(target_endian = "little"));
                    let size = if wide { 2 } else { 1 };
                    let colours = kind.has_color();
                    let level = |pixel: &[u8], channel: usize| pixel.get(channel * size + high).copied().unwrap_or(0);
                    let rgb = |pixel: &[u8]| match colours {
                        true => [level(pixel, 0), level(pixel, 1), level(pixel, 2)],
                        false => [level(pixel, 0); 3],
                    };
                    self.converted.resize(self.height * self.width * pixels.channels(), 0);
                    let stored = self.stored.chunks_exact(step.max(1));
                    match pixels {
                        Pixels::Grey => {
                            for (out, pixel) in self.converted.iter_mut().zip(stored) {
                                *out = colour::luma(rgb(pixel));
                            }
                        }
                        Pixels::Rgb => {
                            for (out, pixel) in self.converted.as_chunks_mut::<3>().0.iter_mut().zip(stored) {
                                *out = rgb(pixel);
                            }
                        }
                    }
                    &self.converted
                }
            };
            if sink(number, frame).is_break() {
                break;
            }
        }
        Ok(())
    }
}

fn reader(path: &Path) -> Result<ImageReader<std::io::BufReader<std::fs::File>>, SourceError> {
    let io = |cause| SourceError::Io { path: path.into(), cause };
    ImageReader::open(path).map_err(io)?.with_guessed_format().map_err(io)
}

/// Height and width from an image's header.
fn dimensions(path: &Path) -> Result<(usize, usize), SourceError> {
    let failed = |what: String| SourceError::Image { path: path.into(), what };
    let reader = reader(path)?;
    let (width, height) =
        guarded(|| reader.into_dimensions()).map_err(failed)?.map_err(|cause| failed(cause.to_string()))?;
    for (what, got) in [("the height", height), ("the width", width)] {
        if u64::from(got) > MAX_SIDE {
            return Err(SourceError::Limit { path: path.into(), what, got: got.into(), limit: MAX_SIDE });
        }
    }
    Ok((height as usize, width as usize))
}
