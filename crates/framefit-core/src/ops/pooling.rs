use super::checks::{Windows, invalid, positive, video_only};
use super::{BackwardReads, Layer, Operations};
use crate::axes::{Dims3, Shape, View};
use crate::error::ShapeError;
use crate::graph::ParamSpec;
use crate::time::TimeMap;
use serde::{Deserialize, Serialize};

fn pool_windows(kernel: Dims3, stride: Dims3, padding: Dims3, ceil: bool) -> Windows {
    Windows { kernel, stride, before: padding, after: padding, dilation: Dims3::cube(1), ceil }
}

fn pooled(windows: &Windows, input: &Shape, at: Layer<'_>) -> Result<Shape, ShapeError> {
    video_only(input, at)?;
    for ((axis, padding), (_, kernel)) in windows.before.by_axis().into_iter().zip(windows.kernel.by_axis()) {
        if padding > kernel / 2 {
            let rule = format!("at most half the kernel ({}) along {axis}", kernel / 2);
            return Err(invalid("the padding", rule, padding, at));
        }
    }
    Ok(input.resized(windows.output(input.dims, at)?, input.channels))
}

fn window_operations(kernel: Dims3, output: &Shape) -> Operations {
    let each = (output.per_clip() * kernel.volume()) as u64;
    Operations { forward: each, input_gradient: each, weight_gradient: 0 }
}

/// x: `[T,N,H,W,C]` -> y: `[T',N,H',W',C]`
///
/// Maximum over each window; padding counts as −∞, as PyTorch's `MaxPool3d`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MaxPool3d {
    /// kT, kH, kW.
    pub kernel: Dims3,
    /// Step between windows.
    pub stride: Dims3,
    /// Positions outside that a window may cover on either side, at most half the kernel.
    pub padding: Dims3,
    /// Whether a last window may reach beyond the padding, so long as it starts inside the input or the padding
    /// before it.
    pub ceil_mode: bool,
}

impl MaxPool3d {
    /// Windows side by side, without padding.
    pub const fn tiles(kernel: Dims3) -> Self {
        Self { kernel, stride: kernel, padding: Dims3::cube(0), ceil_mode: false }
    }

    fn windows(&self) -> Windows {
        pool_windows(self.kernel, self.stride, self.padding, self.ceil_mode)
    }

    pub(super) fn output(&self, input: &Shape, at: Layer<'_>) -> Result<Shape, ShapeError> {
        pooled(&self.windows(), input, at)
    }

    pub(super) fn params(&self, _input: &Shape) -> Vec<ParamSpec> {
        Vec::new()
    }

    pub(super) fn time(&self, input: &Shape, output: &Shape) -> TimeMap {
        self.windows().time(input.dims.t, output.dims.t)
    }

    pub(super) fn backward_reads(&self) -> BackwardReads {
        BackwardReads::INPUT
    }

    pub(super) fn operations(&self, _input: &Shape, output: &Shape) -> Operations {
        window_operations(self.kernel, output)
    }
}

/// x: `[T,N,H,W,C]` -> y: `[T',N,H',W',C]`
///
/// Mean over each window, as PyTorch's `AvgPool3d`. What reaches beyond the padding is never counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AvgPool3d {
    /// kT, kH, kW.
    pub kernel: Dims3,
    /// Step between windows.
    pub stride: Dims3,
    /// Zeros outside that a window may cover on either side, at most half the kernel.
    pub padding: Dims3,
    /// Whether a last window may reach beyond the padding, so long as it starts inside the input or the padding
    /// before it.
    pub ceil_mode: bool,
    /// Whether the zeros of the padding count in the mean; Keras's `same` does not count them.
    pub count_include_pad: bool,
}

impl AvgPool3d {
    /// Windows side by side, without padding.
    pub const fn tiles(kernel: Dims3) -> Self {
        Self { kernel, stride: kernel, padding: Dims3::cube(0), ceil_mode: false, count_include_pad: true }
    }

    fn windows(&self) -> Windows {
        pool_windows(self.kernel, self.stride, self.padding, self.ceil_mode)
    }

    pub(super) fn output(&self, input: &Shape, at: Layer<'_>) -> Result<Shape, ShapeError> {
        pooled(&self.windows(), input, at)
    }

    pub(super) fn params(&self, _input: &Shape) -> Vec<ParamSpec> {
        Vec::new()
    }

    pub(super) fn time(&self, input: &Shape, output: &Shape) -> TimeMap {
        self.windows().time(input.dims.t, output.dims.t)
    }

    pub(super) fn backward_reads(&self) -> BackwardReads {
        BackwardReads::NONE
    }

    pub(super) fn operations(&self, _input: &Shape, output: &Shape) -> Operations {
        window_operations(self.kernel, output)
    }
}

/// What a pool makes of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PoolKind {
    /// Its mean.
    Average,
    /// Its maximum.
    Maximum,
}

/// x: `[T,N,H,W,C]` -> y: `[T',N,H',W',C]`
///
/// Output o of O along an axis of I covers the inputs `⌊o·I/O⌋..⌈(o+1)·I/O⌉`, as PyTorch's `AdaptiveAvgPool3d` and
/// `AdaptiveMaxPool3d`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdaptivePool3d {
    /// T', H', W'; `None` keeps the input's extent.
    pub output: [Option<usize>; 3],
    /// Mean or maximum.
    pub kind: PoolKind,
}

impl AdaptivePool3d {
    pub(super) fn output(&self, input: &Shape, at: Layer<'_>) -> Result<Shape, ShapeError> {
        video_only(input, at)?;
        let [t, h, w] = self.output;
        let Dims3 { t: frames, h: rows, w: columns } = input.dims;
        let dims = Dims3 { t: t.unwrap_or(frames), h: h.unwrap_or(rows), w: w.unwrap_or(columns) };
        positive("the output", &[dims.t, dims.h, dims.w], at)?;
        positive("the extent of the input", &[frames, rows, columns], at)?;
        Ok(input.resized(dims, input.channels))
    }

    pub(super) fn params(&self, _input: &Shape) -> Vec<ParamSpec> {
        Vec::new()
    }

    pub(super) fn time(&self, input: &Shape, output: &Shape) -> TimeMap {
        TimeMap::adaptive(input.dims.t, output.dims.t)
    }

    pub(super) fn backward_reads(&self) -> BackwardReads {
        match self.kind {
            PoolKind::Average => BackwardReads::NONE,
            PoolKind::Maximum => BackwardReads::INPUT,
        }
    }

    pub(super) fn operations(&self, input: &Shape, output: &Shape) -> Operations {
        let largest = |(input, output): (usize, usize)| input.div_ceil(output.max(1));
        let (i, o) = (input.dims, output.dims);
        let kernel = Dims3 { t: largest((i.t, o.t)), h: largest((i.h, o.h)), w: largest((i.w, o.w)) };
        window_operations(kernel, output)
    }

    pub(super) fn kind(&self) -> &'static str {
        match self.kind {
            PoolKind::Average => "AdaptiveAvgPool3d",
            PoolKind::Maximum => "AdaptiveMaxPool3d",
        }
    }
}

/// x: `[T,N,H,W,C]` -> y: `[1,N,1,1,C]`
///
/// The mean over T, H and W: PyTorch's `AdaptiveAvgPool3d(1)`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GlobalAvgPool3d;

impl GlobalAvgPool3d {
    pub(super) fn output(&self, input: &Shape, at: Layer<'_>) -> Result<Shape, ShapeError> {
        video_only(input, at)?;
        let view = match input.view {
            View::FlatFrames(order) => View::Flat(order),
            View::Flat(_) | View::Video => View::Video,
        };
        Ok(Shape { dims: Dims3::cube(1), view, ..*input })
    }

    pub(super) fn params(&self, _input: &Shape) -> Vec<ParamSpec> {
        Vec::new()
    }

    pub(super) fn time(&self, input: &Shape, _output: &Shape) -> TimeMap {
        TimeMap::whole(input.dims.t)
    }

    pub(super) fn backward_reads(&self) -> BackwardReads {
        BackwardReads::NONE
    }

    pub(super) fn operations(&self, input: &Shape, _output: &Shape) -> Operations {
        Operations::pointwise(1, input)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{dims, flat, flat_frames, message, output, video};
    use super::super::{BackwardReads, Op};
    use super::*;
    use crate::axes::Order;

    /// Windows in order while the one before has not reached the end, those that stick out only with `ceil`, and
    /// none that starts in the padding at the end.
    fn windows(input: usize, (kernel, stride, padding): (usize, usize, usize), ceil: bool) -> usize {
        let padded = input + 2 * padding;
        let fits = |o: usize| o * stride + kernel <= padded;
        let before_reaches = |o: usize| o > 0 && (o - 1) * stride + kernel >= padded;
        let starts_inside = |o: usize| o * stride < input + padding;
        (0..).take_while(|&o| fits(o) || (ceil && !before_reaches(o) && starts_inside(o))).count()
    }

    #[test]
    fn the_last_window_of_ceil_mode_starts_inside() {
        for input in 1..10usize {
            for kernel in 1..5 {
                for stride in 1..5 {
                    for padding in 0..=kernel / 2 {
                        for ceil_mode in [false, true] {
                            if input + 2 * padding < kernel {
                                continue;
                            }
                            let pool = MaxPool3d {
                                kernel: dims(kernel, kernel, 1),
                                stride: dims(stride, stride, 1),
                                padding: dims(padding, padding, 0),
                                ceil_mode,
                            };
                            let want = windows(input, (kernel, stride, padding), ceil_mode);
                            let made = output(&Op::MaxPool3d(pool.clone()), video(input, input, 2, 3));
                            assert_eq!(made, video(want, want, 2, 3), "{pool:?} of {input}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn pytorch_pools_of_these_sizes() {
        let max = |kernel, stride, padding| {
            Op::MaxPool3d(MaxPool3d {
                kernel: Dims3::cube(kernel),
                stride: Dims3::cube(stride),
                padding: Dims3::cube(padding),
                ceil_mode: true,
            })
        };
        assert_eq!(output(&max(2, 3, 0), video(5, 8, 6, 2)), video(2, 3, 2, 2));
        assert_eq!(output(&max(3, 2, 1), video(6, 7, 8, 2)), video(4, 4, 5, 2));
        // A window larger than the input, that sticks out.
        assert_eq!(output(&max(3, 2, 0), video(2, 2, 2, 1)), video(1, 1, 1, 1));
        let text = message(&max(4, 2, 0), &[video(2, 8, 8, 1)]);
        assert!(text.starts_with("layer needs at least 3 along time, but receives 2"), "{text}");
        let text = message(&max(3, 2, 2), &[video(8, 8, 8, 1)]);
        assert_eq!(
            text,
            "layer: the padding must be at most half the kernel (1) along time, but is 2 (built-in model)"
        );
    }

    #[test]
    fn a_window_that_sticks_out_waits_for_the_last_frame() {
        let pool = Op::AvgPool3d(AvgPool3d { ceil_mode: true, ..AvgPool3d::tiles(dims(2, 1, 1)) });
        let input = video(5, 4, 4, 1);
        let time = pool.time(&input, &output(&pool, input));
        assert_eq!((time.emit(4), time.emit(5)), (2, 3));
    }

    #[test]
    fn adaptive_pools_keep_what_is_not_given() {
        let pool = |output, kind| Op::AdaptivePool3d(AdaptivePool3d { output, kind });
        let input = video(7, 3, 5, 2);
        let of_space = pool([None, Some(1), Some(1)], PoolKind::Average);
        assert_eq!(output(&of_space, input), video(7, 1, 1, 2));
        assert_eq!(of_space.time(&input, &output(&of_space, input)).emit(3), 3);
        let larger = pool([Some(9), Some(1), Some(2)], PoolKind::Maximum);
        assert_eq!(output(&larger, input), video(9, 1, 2, 2));
        assert_eq!(larger.backward_reads(), BackwardReads { input: true, output: false });
        assert_eq!(of_space.backward_reads(), BackwardReads { input: false, output: false });
        let none = pool([Some(0), None, None], PoolKind::Average);
        assert_eq!(message(&none, &[input]), "layer: the output must be at least 1, but is 0 (built-in model)");
    }

    #[test]
    fn a_sequence_of_vectors_is_pooled_over_time() {
        let vectors = flat_frames(Order::PyTorch, video(6, 1, 1, 4));
        let pool = Op::MaxPool3d(MaxPool3d::tiles(dims(2, 1, 1)));
        assert_eq!(output(&pool, vectors), flat_frames(Order::PyTorch, video(3, 1, 1, 4)));
        let mean = Op::GlobalAvgPool3d(GlobalAvgPool3d);
        assert_eq!(output(&mean, vectors), flat(Order::PyTorch, video(1, 1, 1, 4)));
        let text = message(&pool, &[flat_frames(Order::PyTorch, video(6, 2, 2, 4))]);
        assert_eq!(text, "layer works on frames, but before has flattened its input (built-in model)");
    }
}
