//! Matrix products in the engine by definition: of every position, of flattened frames and of flattened clips, in the
//! order of the user's framework; many rows and few.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod reference;

use framefit::core::axes::Order;
use framefit::core::ops::{Dense, Flatten, Linear, LinearLayout};
use framefit::core::schedule::Cut;
use framefit::core::{Dims3, Op, Origin, Shape};
use framefit::engine::Kernels;
use framefit::engine::probe::{self, Given, Seen};
use framefit::kernels::Isa;
use reference::{Array, Element, THREADS, assert_close};

/// Numbers from −1 to 1 without a pattern.
fn numbers(count: usize, seed: usize) -> Vec<f64> {
    let mixed = |i: usize| ((i + 1) * 2_654_435_761 + seed * 40_503) as u64 % 1_000_003;
    (0..count).map(|i| mixed(i) as f64 / 500_001.5 - 1.0).collect()
}

/// What the matrix meets at once.
#[derive(Clone, Copy, Debug)]
enum Of {
    Positions,
    Frames(Order),
    Clips(Order),
}

struct Case {
    of: Of,
    layout: LinearLayout,
    clips: usize,
    dims: Dims3,
    channels: usize,
    units: usize,
}

impl Case {
    /// Rows of the product, and the features of each: where they lie in x, in the user's order.
    fn rows(&self) -> Vec<Vec<usize>> {
        let Dims3 { t, h, w } = self.dims;
        let at = |[t, n, y, x, c]: [usize; 5]| (((t * self.clips + n) * h + y) * w + x) * self.channels + c;
        let mut rows = Vec::new();
        match self.of {
            Of::Positions => {
                for position in 0..t * self.clips * h * w {
                    rows.push((0..self.channels).map(|c| position * self.channels + c).collect());
                }
            }
            Of::Frames(order) => {
                for (t, n) in (0..t).flat_map(|t| (0..self.clips).map(move |n| (t, n))) {
                    rows.push(self.features(order, t..t + 1).map(|[t, y, x, c]| at([t, n, y, x, c])).collect());
                }
            }
            Of::Clips(order) => {
                for n in 0..self.clips {
                    rows.push(self.features(order, 0..t).map(|[t, y, x, c]| at([t, n, y, x, c])).collect());
                }
            }
        }
        rows
    }

    /// (t, y, x, c) of the features of a vector.
    fn features(&self, order: Order, frames: std::ops::Range<usize>) -> impl Iterator<Item = [usize; 4]> {
        let (Dims3 { h, w, .. }, channels) = (self.dims, self.channels);
        let mut all = Vec::new();
        for t in frames {
            for y in 0..h {
                for x in 0..w {
                    all.extend((0..channels).map(|c| [t, y, x, c]));
                }
            }
        }
        if order == Order::PyTorch {
            all.sort_by_key(|&[t, y, x, c]| [c, t, y, x]);
        }
        all.into_iter()
    }

    fn check(&self) {
        self.run::<f64>(Isa::Scalar);
        for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
            self.run::<f32>(isa);
        }
    }

    fn run<E: Element + framefit::engine::Element>(&self, isa: Isa) {
        let rows = self.rows();
        let (count, features, units) = (rows.len(), rows[0].len(), self.units);
        let x = numbers(self.clips * self.dims.volume() * self.channels, 1);
        let (w, bias, dy) = (numbers(units * features, 2), numbers(units, 3), numbers(count * units, 4));
        let at = |k: usize, d: usize| match self.layout {
            LinearLayout::PyTorch => k * features + d,
            LinearLayout::Keras => d * units + k,
        };
        let (mut y, mut dx) = (vec![0.0; count * units], vec![0.0; x.len()]);
        let (mut dw, mut db) = (vec![0.0; w.len()], vec![0.0; units]);
        for (row, places) in rows.iter().enumerate() {
            for k in 0..units {
                let dy = dy[row * units + k];
                let sum: f64 = places.iter().enumerate().map(|(d, &place)| x[place] * w[at(k, d)]).sum();
                y[row * units + k] = sum + bias[k];
                db[k] += dy;
                for (d, &place) in places.iter().enumerate() {
                    dx[place] += dy * w[at(k, d)];
                    dw[at(k, d)] += dy * x[place];
                }
            }
        }

        let mut b = probe::builder(Shape::video(self.dims, self.channels)).unwrap();
        let layout = self.layout;
        let dense = Op::Dense(Dense { in_channels: features, units, bias: true, layout });
        let layers = match self.of {
            Of::Positions => vec![dense],
            Of::Frames(order) => vec![Op::Flatten(Flatten { per_frame: true, order }), dense],
            Of::Clips(order) => {
                let linear = Linear { in_features: features, out_features: units, bias: true, layout };
                vec![Op::Flatten(Flatten::clip(order)), Op::Linear(linear)]
            }
        };
        for op in layers {
            let name = if matches!(op, Op::Flatten(_)) { "flatten" } else { "product" };
            b.layer(name, op, &Origin::BuiltIn).unwrap();
        }
        let graph = b.finish().unwrap();
        let weight = if layout == LinearLayout::PyTorch { "product.weight" } else { "product.kernel" };
        let params = [(weight.to_owned(), w.clone()), ("product.bias".to_owned(), bias.clone())];
        let given = Given { source: &x, output_gradient: &dy, params: &params };
        for cut in [Cut::WHOLE, Cut::exact(2, 1), Cut::exact(13, 0)] {
            let kernels = Kernels { isa, threads: THREADS };
            let seen: Seen<E> = probe::train(&graph, kernels, cut, &given).unwrap();
            let what = format!("{:?} {layout:?} {} {isa} {cut:?}", self.of, E::NAME);
            let close = |of: &str, got: &[E], want: &[f64]| {
                let want = Array { dims: vec![want.len()], values: want.to_vec() };
                assert_close(&format!("{what}: {of}"), got, &want);
            };
            close("output", &seen.output, &y);
            close("dx", &seen.source_gradient, &dx);
            close("dw", seen.gradient(weight).unwrap(), &dw);
            close("db", seen.gradient("product.bias").unwrap(), &db);
        }
    }
}

const LAYOUTS: [LinearLayout; 2] = [LinearLayout::PyTorch, LinearLayout::Keras];

#[test]
fn every_order_of_flattened_frames_and_clips() {
    for layout in LAYOUTS {
        for of in
            [Of::Frames(Order::PyTorch), Of::Frames(Order::Keras), Of::Clips(Order::PyTorch), Of::Clips(Order::Keras)]
        {
            Case { of, layout, clips: 2, dims: Dims3 { t: 5, h: 2, w: 3 }, channels: 4, units: 3 }.check();
        }
    }
}

/// Around the number of rows from which on they are tiled, and a rest after the tiles.
#[test]
fn many_rows_and_few() {
    for (t, clips, h, w) in [(9, 1, 2, 7), (8, 1, 4, 4), (43, 1, 1, 3), (20, 2, 3, 5), (16, 4, 5, 2)] {
        for layout in LAYOUTS {
            Case { of: Of::Positions, layout, clips, dims: Dims3 { t, h, w }, channels: 5, units: 7 }.check();
        }
    }
    Case {
        of: Of::Frames(Order::PyTorch),
        layout: LinearLayout::PyTorch,
        clips: 3,
        dims: Dims3 { t: 70, h: 2, w: 3 },
        channels: 6,
        units: 40,
    }
    .check();
}
