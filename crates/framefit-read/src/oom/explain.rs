use super::message::Message;
use framefit_core::{Bytes, Graph, Op, Order};
use serde::Serialize;
use std::fmt;

/// The model that a message is compared with.
#[derive(Clone, Copy, Debug)]
pub struct Against<'a> {
    /// The model.
    pub graph: &'a Graph,
    /// N, clips of a batch.
    pub clips: usize,
}

/// One thing that the requested bytes can be.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Reading {
    /// What, in words.
    pub what: String,
    /// How the bytes come about, such as `512·3119040·4 B`.
    pub arithmetic: String,
    /// Exactly.
    pub bytes: Bytes,
    /// What would help.
    pub remedy: String,
}

/// A message and what its bytes can be.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The message.
    pub message: Message,
    /// Every reading that fits, weights before activations, in the order of the model.
    pub readings: Vec<Reading>,
    /// The names of the tensors that were compared.
    pub compared: usize,
}

const ELEMENT: [(&str, u64); 2] = [("f32", 4), ("f16 or bf16", 2)];

/// Compares what a message asks for with the tensors of a model.
pub fn explain(message: Message, against: Option<Against<'_>>) -> Report {
    let mut readings = Vec::new();
    let mut compared = 0;
    if let Some(Against { graph, clips }) = against {
        let requested = message.requested;
        for param in &graph.params {
            compared += 1;
            for (element, size) in ELEMENT {
                let bytes = param.len() as u64 * size;
                if requested.is(bytes) {
                    readings.push(Reading {
                        what: format!("{} in {element}, its gradient, or one of Adam's two moments of it", param.name),
                        arithmetic: format!("{}·{size} B", product(&param.dims)),
                        bytes: Bytes(bytes),
                        remedy: "a weight does not depend on the batch: fewer clips at a time cannot help. Its gradient and Adam's moments take as much again, three times; a global pooling before the layer makes it small".to_owned(),
                    });
                }
            }
        }
        for value in &graph.values {
            let Some(node) = value.made_by.map(|id| graph.node(id)) else { continue };
            if node.op.in_place() {
                continue;
            }
            compared += 1;
            for (element, size) in ELEMENT {
                let bytes = (value.shape.per_clip() * clips) as u64 * size;
                if requested.is(bytes) {
                    let shape = value.shape.text(Order::PyTorch, &clips.to_string());
                    readings.push(Reading {
                        what: format!("the output of {} in {element}, or its gradient: {shape}", node.name),
                        arithmetic: format!("{}·{size} B", shape.replace('x', "·")),
                        bytes: Bytes(bytes),
                        remedy: "an activation grows with the batch and with the clip: fewer clips at a time help as long as the batch has more than one".to_owned(),
                    });
                }
            }
        }
        readings.extend(missized_linear(graph, &message));
    }
    Report { message, readings, compared }
}

/// A smaller request says too little for a layer of unknown size to be read into it.
const TELLING: Bytes = Bytes(256 << 20);

/// The weight of a linear layer made for more features than it receives.
fn missized_linear(graph: &Graph, message: &Message) -> Vec<Reading> {
    let requested = message.requested;
    let mut readings = Vec::new();
    for node in &graph.nodes {
        let Op::Linear(linear) = &node.op else { continue };
        let row = linear.out_features as u64 * 4;
        let features = (requested.bytes.0 + row / 2) / row;
        let receives = graph.shape(node.input()).per_clip() as u64;
        if requested.bytes < TELLING || features <= receives || !requested.is(features * row) {
            continue;
        }
        let spread = requested.within.0.div_ceil(row);
        readings.push(Reading {
            what: format!(
                "{}.weight made for about {features} features (within {spread}), where this model gives it {receives}",
                node.name
            ),
            arithmetic: format!("{}·{features}·4 B", linear.out_features),
            bytes: Bytes(features * row),
            remedy: format!("give the layer the {receives} features that it receives"),
        });
    }
    readings
}

fn product(dims: &[usize]) -> String {
    dims.iter().map(usize::to_string).collect::<Vec<_>>().join("·")
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let m = &self.message;
        write!(f, "line {}: {} could not be had", m.line, m.requested.bytes)?;
        let parts = [("of", m.capacity), ("tensors held", m.allocated), ("free were", m.free)];
        for (words, amount) in parts {
            if let Some(amount) = amount {
                write!(f, ", {words} {}", amount.bytes)?;
            }
        }
        writeln!(f)?;
        if m.capacity.is_some_and(|c| c.bytes < m.requested.bytes) {
            writeln!(f, "  it is more than the whole device has: freeing memory cannot help")?;
        }
        for reading in &self.readings {
            writeln!(f, "  can be {}", reading.what)?;
            writeln!(f, "    {} = {}", reading.arithmetic, reading.bytes)?;
            writeln!(f, "    {}", reading.remedy)?;
        }
        match (self.readings.is_empty(), self.compared) {
            (true, 0) => {
                writeln!(f, "  say the model and its clip (--model, --clip, --size) to have its tensors compared")
            }
            (true, n) => writeln!(f, "  none of the model's {n} tensors has this size"),
            (false, _) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::read;
    use super::*;
    use framefit_core::ops::{Conv3d, Flatten, Linear, LinearLayout, MaxPool3d, Relu};
    use framefit_core::{Dims3, GraphBuilder, Origin, Shape};

    fn flattened() -> Graph {
        let at = Origin::BuiltIn;
        let mut b = GraphBuilder::new(Shape::video(Dims3 { t: 60, h: 230, w: 230 }, 3));
        for (n, c, k) in [(1, 3, 32), (2, 32, 64)] {
            b.layer(&format!("conv{n}"), Op::Conv3d(Conv3d::same(c, k, Dims3::cube(3))), &at).unwrap();
            b.layer(&format!("relu{n}"), Op::Relu(Relu), &at).unwrap();
            b.layer(&format!("pool{n}"), Op::MaxPool3d(MaxPool3d::tiles(Dims3::cube(2))), &at).unwrap();
        }
        b.layer("flatten", Op::Flatten(Flatten::clip(Order::PyTorch)), &at).unwrap();
        let in_features = b.shape().per_clip();
        b.layer(
            "fc1",
            Op::Linear(Linear { in_features, out_features: 512, bias: true, layout: LinearLayout::PyTorch }),
            &at,
        )
        .unwrap();
        b.finish().unwrap()
    }

    fn of(text: &str, clips: usize) -> Report {
        let graph = flattened();
        explain(read(text).remove(0), Some(Against { graph: &graph, clips }))
    }

    #[test]
    fn a_first_linear_for_the_wrong_size_is_recognised_by_its_weight() {
        let report = of("CUDA out of memory. Tried to allocate 48.43 GiB. GPU 0 has a total capacity of 11.99 GiB", 1);
        let [reading] = &report.readings[..] else { panic!("one reading: {report}") };
        assert!(reading.what.starts_with("fc1.weight made for about 2539"), "{}", reading.what);
        assert!(reading.what.ends_with("gives it 3119040"), "{}", reading.what);
        assert!(report.to_string().contains("more than the whole device"), "{report}");
    }

    #[test]
    fn the_right_size_is_the_weight_itself() {
        let report = of("Tried to allocate 5.95 GiB", 1);
        assert_eq!(report.readings[0].bytes.0, 512 * 3_119_040 * 4);
        assert!(report.readings[0].what.starts_with("fc1.weight in f32"), "{report}");
    }

    #[test]
    fn an_activation_is_recognised_with_its_batch() {
        // 2·32·60·230·230·4 bytes
        let report = of("Tried to allocate 774.90 MiB", 2);
        assert!(report.readings.iter().any(|r| r.what.starts_with("the output of conv1 in f32")), "{report}");
        let other = of("Tried to allocate 774.90 MiB", 1);
        assert!(!other.readings.iter().any(|r| r.what.contains("conv1 in f32")), "{other}");
    }

    #[test]
    fn what_fits_nothing_says_so() {
        let report = of("Tried to allocate 20.00 MiB", 1);
        assert!(report.to_string().contains("none of the model's"), "{report}");
    }
}
