//! Y'CbCr to RGB or grey, as swscale converts by default.
//!
//! The matrix is the one that the stream names (BT.709, BT.2020, SMPTE 240M, FCC); BT.601 where it names none, as
//! `ffmpeg` assumes. Limited range is expanded to 0..=255, full range is kept. Each chroma sample colours the luma
//! samples it was averaged from, without interpolation, and fractions of a level are cut off: so RGB is within 2 levels
//! of what `ffmpeg -pix_fmt rgb24` writes for 4:2:0. Grey is rounded, and equal to `-pix_fmt gray`.

/// Planes of one frame, 8 bits per sample, without padding between rows.
#[derive(Clone, Copy)]
pub(super) struct Planes<'a> {
    pub(super) width: usize,
    pub(super) y: &'a [u8],
    /// Chroma is half as wide as luma.
    pub(super) u: &'a [u8],
    pub(super) v: &'a [u8],
    /// Luma rows per chroma row: 2 in 4:2:0, 1 in 4:2:2.
    pub(super) rows_per_chroma: usize,
}

/// Coefficients of one matrix and range, as factors for [`high`]: levels come out times 32, which leaves room for sums
/// beyond black and white in 16 bits.
pub(super) struct Converter {
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
    pub(super) fn new(matrix: u8, full_range: bool) -> Self {
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
    pub(super) fn grey(&self, planes: Planes<'_>, out: &mut [u8]) {
        for (out, level) in out.iter_mut().zip(planes.y) {
            *out = self.grey[usize::from(*level)];
        }
    }

    /// Planes → `[H][W][3]`.
    pub(super) fn rgb(&self, planes: Planes<'_>, out: &mut [u8]) {
        let chroma_width = planes.width / 2;
        if chroma_width == 0 {
            return;
        }
        let rows = planes.y.chunks_exact(planes.width).zip(out.chunks_exact_mut(3 * planes.width)).enumerate();
        for (row, (y, out)) in rows {
            let at = row / planes.rows_per_chroma * chroma_width;
            let (Some(u), Some(v)) = (planes.u.get(at..at + chroma_width), planes.v.get(at..at + chroma_width)) else {
                return;
            };
            let ((y, y_rest), (out, out_rest)) = (y.as_chunks::<BLOCK>(), out.as_chunks_mut::<{ 3 * BLOCK }>());
            let ((u, u_rest), (v, v_rest)) = (u.as_chunks::<{ BLOCK / 2 }>(), v.as_chunks::<{ BLOCK / 2 }>());
            for (((y, out), u), v) in y.iter().zip(out).zip(u).zip(v) {
                self.block(y, u, v, out);
            }
            if !y_rest.is_empty() {
                let mut block = [0; 3 * BLOCK];
                self.block(&padded(y_rest), &padded(u_rest), &padded(v_rest), &mut block);
                out_rest.iter_mut().zip(block).for_each(|(out, level)| *out = level);
            }
        }
    }

    fn block(&self, y: &[u8; BLOCK], u: &[u8; BLOCK / 2], v: &[u8; BLOCK / 2], out: &mut [u8; 3 * BLOCK]) {
        let mut chroma = [[0i16; BLOCK]; 3];
        let [red, green, blue] = &mut chroma;
        let pairs = u.iter().zip(v).zip(red.as_chunks_mut().0).zip(green.as_chunks_mut().0).zip(blue.as_chunks_mut().0);
        for ((((u, v), red), green), blue) in pairs {
            let (u, v) = ((i16::from(*u) - 128) << 8, (i16::from(*v) - 128) << 8);
            *red = [high(v, self.v_to_r); 2];
            *green = [high(u, self.u_to_g) + high(v, self.v_to_g); 2];
            *blue = [high(u, self.u_to_b); 2];
        }
        let mut levels = [[0u8; BLOCK]; 3];
        for (levels, chroma) in levels.iter_mut().zip(&chroma) {
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
pub(super) fn luma([red, green, blue]: [u8; 3]) -> u8 {
    ((u32::from(red) * 19595 + u32::from(green) * 38470 + u32::from(blue) * 7471 + 0x8000) >> 16) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn white_black_and_primaries() {
        let convert = |matrix, full, [y, u, v]: [u8; 3]| {
            let mut out = [0; 6];
            let planes = Planes { width: 2, y: &[y, y], u: &[u], v: &[v], rows_per_chroma: 1 };
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
    fn luma_keeps_grey() {
        for level in 0..=255 {
            assert_eq!(luma([level; 3]), level);
        }
    }
}
