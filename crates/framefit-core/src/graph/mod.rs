//! The graph: layers in the order they run, the values between them and their parameters.

mod origin;
mod params;

pub use origin::Origin;
pub use params::{Initial, Param, ParamSpec, StoredOrder};

use crate::axes::{Dims3, Shape};
use crate::error::ShapeError;
use crate::ops::{Layer, Op, Operations};
use serde::Serialize;

/// Index of a node in [`Graph::nodes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct NodeId(pub usize);

/// Index of a value in [`Graph::values`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct ValueId(pub usize);

/// Index of a parameter in [`Graph::params`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct ParamId(pub usize);

/// A layer.
#[derive(Clone, Debug, Serialize)]
pub struct Node {
    /// What it does.
    pub op: Op,
    /// What it reads, in order; most layers read one value.
    pub inputs: Vec<ValueId>,
    /// What it makes.
    pub output: ValueId,
    /// Its parameters, in the order of [`Op::params`].
    pub params: Vec<ParamId>,
    /// Its name in the user's model, such as `conv1`.
    pub name: String,
    /// Where the user wrote it.
    pub origin: Origin,
}

/// What one layer hands to the next.
#[derive(Clone, Debug, Serialize)]
pub struct Value {
    /// Extents of one clip.
    pub shape: Shape,
    /// The layer that makes it; the source has none.
    pub made_by: Option<NodeId>,
}

/// A model: [`Graph::SOURCE`] goes in, [`Graph::output`] comes out.
#[derive(Clone, Debug, Serialize)]
pub struct Graph {
    /// Layers, in an order in which every input is made before it is read.
    pub nodes: Vec<Node>,
    /// Values; the first is the source.
    pub values: Vec<Value>,
    /// Parameters, in the order of the layers.
    pub params: Vec<Param>,
    /// The logits.
    pub output: ValueId,
}

impl Node {
    /// The first of its inputs: the only one of most layers.
    pub fn input(&self) -> ValueId {
        self.inputs[0]
    }
}

impl Graph {
    /// The normalised frames of a clip.
    pub const SOURCE: ValueId = ValueId(0);

    /// The extents of a value.
    pub fn shape(&self, value: ValueId) -> &Shape {
        &self.values[value.0].shape
    }

    /// A layer.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0]
    }

    /// A parameter.
    pub fn param(&self, id: ParamId) -> &Param {
        &self.params[id.0]
    }

    /// Node ids in running order.
    pub fn node_ids(&self) -> impl DoubleEndedIterator<Item = NodeId> + use<> {
        (0..self.nodes.len()).map(NodeId)
    }

    /// Operations of one clip through one layer.
    pub fn operations(&self, id: NodeId) -> Operations {
        let node = self.node(id);
        node.op.operations(self.shape(node.input()), self.shape(node.output))
    }

    /// Number of classes: the features of the output, of one frame where there is a label per frame.
    pub fn classes(&self) -> usize {
        self.shape(self.output).per_frame()
    }

    /// Frames of the output: one where the clip has one label.
    pub fn labelled_frames(&self) -> usize {
        self.shape(self.output).dims.t
    }

    /// The same model for clips of another number of frames.
    ///
    /// # Errors
    /// When a layer does not fit such a clip.
    pub fn with_frames(&self, frames: usize) -> Result<Graph, ShapeError> {
        let source = *self.shape(Graph::SOURCE);
        let dims = Dims3 { t: frames, ..source.dims };
        let mut builder = GraphBuilder::new(Shape { dims, ..source });
        for node in &self.nodes {
            builder.layer_on(&node.inputs, &node.name, node.op.clone(), &node.origin)?;
        }
        builder.finish()
    }

    /// Number of values in all parameters.
    pub fn param_count(&self) -> u64 {
        self.params.iter().map(|p| p.len() as u64).sum()
    }

    /// Number of values that the optimizer changes.
    pub fn trained_count(&self) -> u64 {
        self.params.iter().filter(|p| p.trained).map(|p| p.len() as u64).sum()
    }
}

/// Adds layers, each to the value that the last one made, or to any that are there already.
#[derive(Debug)]
pub struct GraphBuilder {
    graph: Graph,
}

impl GraphBuilder {
    /// A graph whose source has these extents.
    pub fn new(source: Shape) -> Self {
        let values = vec![Value { shape: source, made_by: None }];
        Self { graph: Graph { nodes: Vec::new(), values, params: Vec::new(), output: Graph::SOURCE } }
    }

    /// What the next layer would receive.
    pub fn last(&self) -> ValueId {
        self.graph.output
    }

    /// The extents that the next layer would receive.
    pub fn shape(&self) -> &Shape {
        self.graph.shape(self.graph.output)
    }

    /// The extents of a value.
    pub fn shape_of(&self, value: ValueId) -> &Shape {
        self.graph.shape(value)
    }

    /// Adds a layer that reads what the last one made.
    ///
    /// # Errors
    /// When the layer does not fit what it receives, or makes more values than can be addressed.
    pub fn layer(&mut self, name: &str, op: Op, origin: &Origin) -> Result<ValueId, ShapeError> {
        self.layer_on(&[self.last()], name, op, origin)
    }

    /// Adds a layer that reads these values, in this order.
    ///
    /// # Errors
    /// As [`GraphBuilder::layer`], and when the layer takes another number of inputs.
    pub fn layer_on(&mut self, inputs: &[ValueId], name: &str, op: Op, origin: &Origin) -> Result<ValueId, ShapeError> {
        let graph = &mut self.graph;
        let arity = op.arity();
        if !arity.contains(&inputs.len()) {
            return Err(ShapeError::Invalid {
                layer: name.to_owned(),
                what: "the number of inputs",
                rule: if *arity.start() == *arity.end() {
                    format!("{}", arity.start())
                } else {
                    format!("at least {}", arity.start())
                },
                got: inputs.len(),
                origin: origin.clone(),
            });
        }
        let before = graph.values[inputs[0].0].made_by.map_or("the source", |n| &graph.nodes[n.0].name).to_owned();
        let at = Layer { name, origin, before: &before };
        let too_large = || ShapeError::TooLarge { layer: name.to_owned(), origin: origin.clone() };
        let shapes: Vec<Shape> = inputs.iter().map(|&v| *graph.shape(v)).collect();
        addressable(&shapes).ok_or_else(too_large)?;
        let shape = op.output(&shapes, at)?;
        addressable(&[shape]).ok_or_else(too_large)?;
        let node = NodeId(graph.nodes.len());
        let output = ValueId(graph.values.len());
        let mut params = Vec::new();
        for spec in op.params(&shapes[0]) {
            spec.dims.iter().try_fold(16usize, |n, &d| n.checked_mul(d)).ok_or_else(too_large)?;
            params.push(ParamId(graph.params.len()));
            graph.params.push(Param::of(node, name, spec));
        }
        let inputs = inputs.to_vec();
        graph.nodes.push(Node { op, inputs, output, params, name: name.to_owned(), origin: origin.clone() });
        graph.values.push(Value { shape, made_by: Some(node) });
        graph.output = output;
        Ok(output)
    }

    /// The finished graph; its output is what the last layer made.
    ///
    /// # Errors
    /// When something is made that nothing reads.
    pub fn finish(self) -> Result<Graph, ShapeError> {
        let graph = self.graph;
        for (index, value) in graph.values.iter().enumerate() {
            let read = graph.nodes.iter().any(|n| n.inputs.contains(&ValueId(index)));
            if !read && index != graph.output.0 {
                let (layer, origin) = match value.made_by {
                    Some(node) => (graph.node(node).name.clone(), graph.node(node).origin.clone()),
                    None => ("the source".to_owned(), Origin::BuiltIn),
                };
                return Err(ShapeError::Unread { layer, origin });
            }
        }
        Ok(graph)
    }
}

/// Whether all of a micro-batch of up to 2^16 clips in double precision can be counted.
fn addressable(shapes: &[Shape]) -> Option<()> {
    for shape in shapes {
        [shape.dims.t, shape.dims.h, shape.dims.w, shape.channels]
            .iter()
            .try_fold(8usize << 16, |n, &d| n.checked_mul(d))
            .filter(|&n| n <= isize::MAX as usize)?;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::axes::Order;
    use crate::ops::{Conv3d, Flatten, Linear, LinearLayout, MaxPool3d, Relu};

    fn seed_shape() -> Shape {
        Shape::video(Dims3 { t: 60, h: 230, w: 230 }, 3)
    }

    fn two_blocks() -> GraphBuilder {
        let mut b = GraphBuilder::new(seed_shape());
        for (name, c, k) in [("conv1", 3, 32), ("conv2", 32, 64)] {
            b.layer(name, Op::Conv3d(Conv3d::same(c, k, Dims3::cube(3))), &Origin::BuiltIn).unwrap();
            b.layer("relu", Op::Relu(Relu), &Origin::BuiltIn).unwrap();
            b.layer("pool", Op::MaxPool3d(MaxPool3d::tiles(Dims3::cube(2))), &Origin::BuiltIn).unwrap();
        }
        b
    }

    #[test]
    fn a_first_linear_of_the_wrong_size_is_named_with_both_sizes() {
        let mut b = two_blocks();
        assert_eq!(b.shape().text(Order::PyTorch, "N"), "Nx64x15x57x57");
        b.layer("flatten", Op::Flatten(Flatten::clip(Order::PyTorch)), &Origin::BuiltIn).unwrap();
        let linear =
            Linear { in_features: 64 * 30 * 115 * 115, out_features: 512, bias: true, layout: LinearLayout::PyTorch };
        let error = b.layer("fc1", Op::Linear(linear), &Origin::BuiltIn).unwrap_err();
        assert_eq!(error.to_string(), "fc1 expects 25392000 features, but receives 3119040 (built-in model)");
    }

    #[test]
    fn the_right_flattened_weight_has_a_slice_per_frame() {
        let mut b = two_blocks();
        b.layer("flatten", Op::Flatten(Flatten::clip(Order::PyTorch)), &Origin::BuiltIn).unwrap();
        let features = b.shape().per_clip();
        let linear = Linear { in_features: features, out_features: 512, bias: true, layout: LinearLayout::PyTorch };
        b.layer("fc1", Op::Linear(linear), &Origin::BuiltIn).unwrap();
        let graph = b.finish().unwrap();
        let weight = graph.params.iter().find(|p| p.name == "fc1.weight").unwrap();
        assert_eq!(weight.dims, [512, 3_119_040]);
        assert_eq!(weight.stored.dims(), [15, 512, 57, 57, 64]);
        assert_eq!(weight.len() * 4, 6_387_793_920);
    }

    #[test]
    fn a_clip_that_pooling_uses_up_names_the_layer_and_the_axis() {
        let mut b = GraphBuilder::new(Shape::video(Dims3 { t: 1, h: 8, w: 8 }, 3));
        let error = b.layer("pool1", Op::MaxPool3d(MaxPool3d::tiles(Dims3::cube(2))), &Origin::BuiltIn).unwrap_err();
        assert!(error.to_string().starts_with("pool1 needs at least 2 along time, but receives 1"), "{error}");
    }

    #[test]
    fn sizes_beyond_the_address_space_are_errors_not_overflows() {
        let huge = Shape::video(Dims3 { t: 1 << 40, h: 1 << 20, w: 1 << 20 }, 3);
        let mut b = GraphBuilder::new(huge);
        let error = b.layer("relu", Op::Relu(Relu), &Origin::BuiltIn).unwrap_err();
        assert!(matches!(error, ShapeError::TooLarge { .. }), "{error}");
    }
}
