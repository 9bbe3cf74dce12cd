//! Y'CbCr to RGB or grey, as swscale converts by default.
//!
//! The matrix is the one that the stream names (BT.709, BT.2020, SMPTE 240M, FCC); BT.601 where it names none, as
//! `ffmpeg` assumes. Limited range is expanded to 0..=255, full range is kept. Each chroma sample colours the luma
//! samples it was averaged from, without interpolation, and fractions of a level are cut off: so RGB is within 2 levels
//! of what `ffmpeg -pix_fmt rgb24` writes for 4:2:0. Grey is rounded, and equal to `-pix_fmt gray`.

use super::Pixels;

/// How many luma samples share one chroma sample, along each axis. Where luma has an odd number of rows or columns, the
/// last chroma sample colours one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Subsampling {
    /// 2 in 4:2:0 and 4:2:2, 1 in 4:4:4.
    pub(crate) columns: usize,
    /// 2 in 4:2:0, 1 in 4:2:2 and 4:4:4.
    pub(crate) rows: usize,
}

/// Planes of one frame, 8 bits per sample, without padding between rows.
#[derive(Clone, Copy)]
pub(crate) struct Planes<'a> {
    pub(crate) width: usize,
    pub(crate) y: &'a [u8],
    pub(crate) u: &'a [u8],
    pub(crate) v: &'a [u8],
    pub(crate) subsampling: Subsampling,
}

/// Coefficients of one matrix and range, as factors for [`high`]: levels come out times 32, which leaves room for sums
/// beyond black and white in 16 bits.
pub(crate) struct Converter {
    luma: i16,
    black: i16,
    v_to_r: i16,
    u_to_g: i16,
    v_to_g: i16,
    u_to_b: i16,
    /// Luma expanded to full range and rounded.
    grey: Box<[u8; 256]>,
}

/// Bits of a fraction of a level.
const FRACTION: u32 = 5;
/// Luma samples that are converted together: enough for loops over vectors.
const BLOCK: usize = 64;

impl Converter {
    /// `matrix`: matrix_coefficients of ITU-T H.273.
    pub(crate) fn new(matrix: u8, full_range: bool) -> Self {
        let (red, blue) = match matrix {
            1 => (0.2126, 0.0722),
            4 => (0.30, 0.11),
            7 => (0.212, 0.087),
            9 | 10 => (0.2627, 0.0593),
            _ => (0.299, 0.114),
        };
        let green = 1.0 - red - blue;
        let (offset, luma, chroma) = if full_range { (0.0, 1.0, 1.0) } else { (16.0, 255.0 / 219.0, 255.0 / 224.0) };
        // Luma is given shifted by 7, chroma by 8.
        let of_luma = |gain: f64| (gain * f64::from(1 << (16 - 7 + FRACTION))).round() as i16;
        let of_chroma = |gain: f64| (gain * chroma * f64::from(1 << (16 - 8 + FRACTION))).round() as i16;
        let mut grey = Box::new([0; 256]);
        for (code, grey) in grey.iter_mut().enumerate() {
            // The conversion saturates.
            *grey = ((code as f64 - offset) * luma).round() as u8;
        }
        Self {
            luma: of_luma(luma),
            black: (offset * luma * f64::from(1 << FRACTION)) as i16,
            v_to_r: of_chroma(2.0 * (1.0 - red)),
            u_to_g: of_chroma(-2.0 * (1.0 - blue) * blue / green),
            v_to_g: of_chroma(-2.0 * (1.0 - red) * red / green),
            u_to_b: of_chroma(2.0 * (1.0 - blue)),
            grey,
        }
    }

    /// Planes → `[H][W]`.
    pub(crate) fn grey(&self, planes: Planes<'_>, out: &mut [u8]) {
        for (out, level) in out.iter_mut().zip(planes.y) {
            *out = self.grey[usize::from(*level)];
        }
    }

    /// Planes → `[H][W][3]`.
    pub(crate) fn rgb(&self, planes: Planes<'_>, out: &mut [u8]) {
        if planes.width == 0 {
            return;
        }
        let chroma_width = planes.width.div_ceil(planes.subsampling.columns);
        let rows = planes.y.chunks_exact(planes.width).zip(out.chunks_exact_mut(3 * planes.width)).enumerate();
        for (row, (y, out)) in rows {
            let at = row / planes.subsampling.rows * chroma_width;
            let (Some(u), Some(v)) = (planes.u.get(at..at + chroma_width), planes.v.get(at..at + chroma_width)) else {
                return;
            };
            match planes.subsampling.columns {
                1 => self.row(y, u, v, out, Self::chroma_of_each),
                _ => self.row(y, u, v, out, Self::chroma_of_pairs),
            }
        }
    }

    /// `C` chroma samples for [`BLOCK`] of luma.
    fn row<const C: usize>(
        &self,
        y: &[u8],
        u: &[u8],
        v: &[u8],
        out: &mut [u8],
        chroma: impl Fn(&Self, &[u8; C], &[u8; C]) -> Chroma,
    ) {
        let ((y, y_rest), (out, out_rest)) = (y.as_chunks::<BLOCK>(), out.as_chunks_mut::<{ 3 * BLOCK }>());
        let whole = (y.len() * C).min(u.len()).min(v.len());
        let ((u, u_rest), (v, v_rest)) = (u.split_at(whole), v.split_at(whole));
        for (((y, out), u), v) in y.iter().zip(out).zip(u.as_chunks().0).zip(v.as_chunks().0) {
            self.block(y, &chroma(self, u, v), out);
        }
        if !y_rest.is_empty() {
            let mut block = [0; 3 * BLOCK];
            self.block(&padded(y_rest), &chroma(self, &padded(u_rest), &padded(v_rest)), &mut block);
            out_rest.iter_mut().zip(block).for_each(|(out, level)| *out = level);
        }
    }

    #[inline]
    fn chroma_of_pairs(&self, u: &[u8; BLOCK / 2], v: &[u8; BLOCK / 2]) -> Chroma {
        let mut chroma = [[0i16; BLOCK]; 3];
        let [red, green, blue] = &mut chroma;
        let pairs = u.iter().zip(v).zip(red.as_chunks_mut().0).zip(green.as_chunks_mut().0).zip(blue.as_chunks_mut().0);
        for ((((u, v), red), green), blue) in pairs {
            let levels = self.chroma(*u, *v);
            (*red, *green, *blue) = ([levels[0]; 2], [levels[1]; 2], [levels[2]; 2]);
        }
        chroma
    }

    #[inline]
    fn chroma_of_each(&self, u: &[u8; BLOCK], v: &[u8; BLOCK]) -> Chroma {
        let mut chroma = [[0i16; BLOCK]; 3];
        let [red, green, blue] = &mut chroma;
        for ((((u, v), red), green), blue) in u.iter().zip(v).zip(red).zip(green).zip(blue) {
            [*red, *green, *blue] = self.chroma(*u, *v);
        }
        chroma
    }

    /// What one chroma sample adds to red, green and blue.
    #[inline]
    fn chroma(&self, u: u8, v: u8) -> [i16; 3] {
        let (u, v) = ((i16::from(u) - 128) << 8, (i16::from(v) - 128) << 8);
        [high(v, self.v_to_r), high(u, self.u_to_g) + high(v, self.v_to_g), high(u, self.u_to_b)]
    }

    #[inline]
    fn block(&self, y: &[u8; BLOCK], chroma: &Chroma, out: &mut [u8; 3 * BLOCK]) {
        let mut levels = [[0u8; BLOCK]; 3];
        for (levels, chroma) in levels.iter_mut().zip(chroma) {
            for ((level, code), chroma) in levels.iter_mut().zip(y).zip(chroma) {
                let luma = high(i16::from(*code) << 7, self.luma) - self.black;
                *level = ((luma + chroma) >> FRACTION).clamp(0, 255) as u8;
            }
        }
        let [red, green, blue] = &levels;
        for (((pixel, red), green), blue) in out.as_chunks_mut::<3>().0.iter_mut().zip(red).zip(green).zip(blue) {
            *pixel = [*red, *green, *blue];
        }
    }
}

/// What chroma adds to red, green and blue of a block.
type Chroma = [[i16; BLOCK]; 3];

/// The high half of the product.
fn high(a: i16, b: i16) -> i16 {
    ((i32::from(a) * i32::from(b)) >> 16) as i16
}

fn padded<const N: usize>(values: &[u8]) -> [u8; N] {
    let mut block = [0; N];
    block.iter_mut().zip(values).for_each(|(to, from)| *to = *from);
    block
}

/// Luma of an RGB pixel: BT.601 weights, rounded, as Pillow's `convert("L")`.
pub(crate) fn luma([red, green, blue]: [u8; 3]) -> u8 {
    ((u32::from(red) * 19595 + u32::from(green) * 38470 + u32::from(blue) * 7471 + 0x8000) >> 16) as u8
}

/// Grey (1 channel) or RGB (3) as `pixels`: as stored, or by way of `converted`.
pub(crate) fn packed<'a>(stored: &'a [u8], channels: usize, pixels: Pixels, converted: &'a mut Vec<u8>) -> &'a [u8] {
    match (channels, pixels) {
        (1, Pixels::Grey) | (3, Pixels::Rgb) => stored,
        (1, Pixels::Rgb) => {
            converted.resize(3 * stored.len(), 0);
            let (rgb, _) = converted.as_chunks_mut::<3>();
            rgb.iter_mut().zip(stored).for_each(|(rgb, level)| *rgb = [*level; 3]);
            converted
        }
        (_, _) => {
            converted.resize(stored.len() / 3, 0);
            let (rgb, _) = stored.as_chunks::<3>();
            converted.iter_mut().zip(rgb).for_each(|(grey, rgb)| *grey = luma(*rgb));
            converted
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn white_black_and_primaries() {
        let convert = |matrix, full, [y, u, v]: [u8; 3]| {
            let mut out = [0; 6];
            let subsampling = Subsampling { columns: 2, rows: 1 };
            let planes = Planes { width: 2, y: &[y, y], u: &[u], v: &[v], subsampling };
            Converter::new(matrix, full).rgb(planes, &mut out);
            [out[0], out[1], out[2]]
        };
        assert_eq!(convert(2, false, [235, 128, 128]), [255, 255, 255]);
        assert_eq!(convert(2, false, [16, 128, 128]), [0, 0, 0]);
        assert_eq!(convert(2, true, [200, 128, 128]), [200, 200, 200]);
        // BT.601 red is (81, 90, 240), BT.709 red is (63, 102, 240), to the nearest level.
        let near = |got: [u8; 3], want: [u8; 3]| got.iter().zip(want).all(|(got, want)| got.abs_diff(want) <= 2);
        assert!(near(convert(6, false, [81, 90, 240]), [254, 0, 0]));
        assert!(near(convert(1, false, [63, 102, 240]), [255, 0, 0]));
    }

    #[test]
    fn every_pixel_has_its_chroma_at_any_size() {
        let converter = Converter::new(1, false);
        let level = |plane: usize, row: usize, column: usize| ((90 * plane + 37 * row + 11 * column) % 251) as u8;
        let plane = |number: usize, height: usize, width: usize| -> Vec<u8> {
            (0..height).flat_map(|row| (0..width).map(move |column| level(number, row, column))).collect()
        };
        for (height, width) in [1, 2, 5].iter().flat_map(|h| [1, 2, 3, 63, 64, 65, 127, 128, 129].map(|w| (*h, w))) {
            for subsampling in [(2, 2), (2, 1), (1, 1)].map(|(columns, rows)| Subsampling { columns, rows }) {
                let Subsampling { columns, rows } = subsampling;
                let y = plane(0, height, width);
                let [u, v] = [1, 2].map(|number| plane(number, height.div_ceil(rows), width.div_ceil(columns)));
                let mut out = vec![0; 3 * y.len()];
                converter.rgb(Planes { width, y: &y, u: &u, v: &v, subsampling }, &mut out);
                for (at, pixel) in out.chunks_exact(3).enumerate() {
                    let (row, column) = (at / width, at % width);
                    let [u, v] = [1, 2].map(|number| [level(number, row / rows, column / columns)]);
                    let alone = Planes { width: 1, y: &[y[at]], u: &u, v: &v, subsampling };
                    let mut want = [0; 3];
                    converter.rgb(alone, &mut want);
                    assert_eq!(pixel, want, "{height}x{width} {subsampling:?} at {row}, {column}");
                }
            }
        }
    }

    #[test]
    fn luma_keeps_grey() {
        for level in 0..=255 {
            assert_eq!(luma([level; 3]), level);
        }
    }
}
