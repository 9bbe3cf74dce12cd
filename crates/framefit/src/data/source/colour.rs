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

/// Fixed-point coefficients of one matrix and range.
pub(super) struct Converter {
    /// Luma expanded to full range, times 2^16.
    luma: Box<[i32; 256]>,
    /// Luma expanded to full range.
    grey: Box<[u8; 256]>,
    v_to_r: i32,
    u_to_g: i32,
    v_to_g: i32,
    u_to_b: i32,
}

const ONE: f64 = 65536.0;

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
        let (offset, luma, chroma) = if full_range { (0, 1.0, 1.0) } else { (16, 255.0 / 219.0, 255.0 / 224.0) };
        let fixed = |value: f64| (value * ONE).round() as i32;
        // Rounded up, so that white stays white where fractions are cut off.
        let gain = (luma * ONE).ceil() as i32;
        let mut expanded = Box::new([0; 256]);
        let mut grey = Box::new([0; 256]);
        for (code, (expanded, grey)) in expanded.iter_mut().zip(grey.iter_mut()).enumerate() {
            *expanded = (code as i32 - offset) * gain;
            *grey = level(*expanded + (1 << 15));
        }
        Self {
            luma: expanded,
            grey,
            v_to_r: fixed(2.0 * (1.0 - red) * chroma),
            u_to_g: -fixed(2.0 * (1.0 - blue) * blue / green * chroma),
            v_to_g: -fixed(2.0 * (1.0 - red) * red / green * chroma),
            u_to_b: fixed(2.0 * (1.0 - blue) * chroma),
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
            let (y, _) = y.as_chunks::<2>();
            let (out, _) = out.as_chunks_mut::<6>();
            for (((y, out), u), v) in y.iter().zip(out).zip(u).zip(v) {
                let (u, v) = (i32::from(*u) - 128, i32::from(*v) - 128);
                let red = self.v_to_r * v;
                let green = self.u_to_g * u + self.v_to_g * v;
                let blue = self.u_to_b * u;
                let (first, second) = (self.luma[usize::from(y[0])], self.luma[usize::from(y[1])]);
                *out = [
                    level(first + red),
                    level(first + green),
                    level(first + blue),
                    level(second + red),
                    level(second + green),
                    level(second + blue),
                ];
            }
        }
    }
}

/// The whole part, clipped to a byte.
fn level(fixed: i32) -> u8 {
    (fixed >> 16).clamp(0, 255) as u8
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
