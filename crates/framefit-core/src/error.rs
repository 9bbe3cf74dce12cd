use crate::axes::Axis;
use crate::graph::Origin;

/// A layer that does not fit the value it is given.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// A layer made for another number of channels or features.
    #[error("{layer} expects {want} {what}, but receives {got} ({origin})")]
    Mismatch {
        /// The layer's name.
        layer: String,
        /// What is counted: channels, features.
        what: &'static str,
        /// What the layer was made for.
        want: usize,
        /// What its input has.
        got: usize,
        /// Where the user wrote the layer.
        origin: Origin,
    },
    /// A kernel that reaches over the whole padded input.
    #[error(
        "{layer} needs at least {need} along {axis}, but receives {got}: use a larger clip, fewer pooling layers, or a smaller kernel ({origin})"
    )]
    TooSmall {
        /// The layer's name.
        layer: String,
        /// The axis that runs out.
        axis: Axis,
        /// The least extent the layer works on.
        need: usize,
        /// The extent it is given.
        got: usize,
        /// Where the user wrote the layer.
        origin: Origin,
    },
    /// A number in the layer's definition that no layer can have.
    #[error("{layer}: {what} must be {rule}, but is {got} ({origin})")]
    Invalid {
        /// The layer's name.
        layer: String,
        /// The setting.
        what: &'static str,
        /// What it has to be.
        rule: String,
        /// What it is.
        got: usize,
        /// Where the user wrote the layer.
        origin: Origin,
    },
    /// A fraction in the layer's definition that no layer can have.
    #[error("{layer}: {what} must be {rule}, but is {got} ({origin})")]
    Fraction {
        /// The layer's name.
        layer: String,
        /// The setting.
        what: &'static str,
        /// What it has to be.
        rule: &'static str,
        /// What it is.
        got: String,
        /// Where the user wrote the layer.
        origin: Origin,
    },
    /// Branches that cannot be joined.
    #[error(
        "{layer} joins values of the same {what}, but receives {got}: give both branches the same strides, padding and channels ({origin})"
    )]
    Unequal {
        /// The layer's name.
        layer: String,
        /// What has to agree.
        what: &'static str,
        /// The first input, and the one that differs.
        got: String,
        /// Where the user wrote the layer.
        origin: Origin,
    },
    /// A layer that takes videos after a flattening one.
    #[error("{layer} works on frames, but {before} has flattened its input ({origin})")]
    Flattened {
        /// The layer's name.
        layer: String,
        /// The value's maker.
        before: String,
        /// Where the user wrote the layer.
        origin: Origin,
    },
    /// A value that no layer reads and that is not the output.
    #[error("nothing reads what {layer} makes: leave the layer out, or use its output ({origin})")]
    Unread {
        /// The value's maker.
        layer: String,
        /// Where the user wrote the layer.
        origin: Origin,
    },
    /// A size beyond what this computer can count.
    #[error("{layer} has more values than this computer can address ({origin})")]
    TooLarge {
        /// The layer's name.
        layer: String,
        /// Where the user wrote the layer.
        origin: Origin,
    },
}
