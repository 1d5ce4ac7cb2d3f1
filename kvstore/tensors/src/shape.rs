//! Sizes of a model's KV tensors.

use std::fmt;

use crate::error::{Error, Result};

/// One of a layer's two tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Component {
    /// The keys.
    K,
    /// The values.
    V,
}

/// A tensor: the keys or values of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorId {
    /// The layer, from 0.
    pub layer: u32,
    /// K or V.
    pub component: Component,
}

impl TensorId {
    /// Both tensors of a layer.
    pub fn pair(layer: u32) -> [TensorId; 2] {
        [Component::K, Component::V].map(|component| TensorId { layer, component })
    }

    /// Returns the number among `2 * layers` tensors: all keys come before all values, so that the keys of consecutive
    /// layers are one sequential stream, and the values another.
    pub fn number(self, layers: u32) -> u32 {
        assert!(self.layer < layers, "layer {} is one of {layers}", self.layer);
        match self.component {
            Component::K => self.layer,
            Component::V => layers + self.layer,
        }
    }
}

impl fmt::Display for TensorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let component = if self.component == Component::K { 'K' } else { 'V' };
        write!(f, "{component} of layer {}", self.layer)
    }
}

/// The dimensions of a model that determine its KV tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Model {
    /// Its name, as a command line spells it.
    pub name: &'static str,
    /// Transformer layers.
    pub layers: u32,
    /// Attention heads with their own keys and values.
    pub heads: u32,
    /// Elements of a head's key or value.
    pub head_elements: u32,
}

impl Model {
    /// OPT-1.3B ("OPT: Open Pre-trained Transformer Language Models", table 1).
    pub const OPT_1_3B: Model =
        Model { name: "opt-1.3b", layers: 24, heads: 32, head_elements: 64 };
    /// OPT-6.7B (the same table).
    pub const OPT_6_7B: Model =
        Model { name: "opt-6.7b", layers: 32, heads: 32, head_elements: 128 };
    /// OPT-13B (the same table).
    pub const OPT_13B: Model = Model { name: "opt-13b", layers: 40, heads: 40, head_elements: 128 };
    /// The models known by name.
    pub const ALL: [Model; 3] = [Model::OPT_1_3B, Model::OPT_6_7B, Model::OPT_13B];

    /// Finds a model by its name.
    ///
    /// # Errors
    /// [`Error::Invalid`], which lists the known names.
    pub fn named(name: &str) -> Result<Model> {
        let found = Model::ALL.into_iter().find(|model| model.name == name);
        let names = || Model::ALL.map(|model| model.name).join(", ");
        found.ok_or_else(|| Error::invalid("the model", name, format!("use one of {}", names())))
    }
}

/// The tensors of one run: a model, a batch and its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The model.
    pub model: Model,
    /// Sequences computed together.
    pub batch: u32,
    /// Bytes of an element: 2 for FP16 and BF16.
    pub element_bytes: u32,
    /// Tokens of each prompt, which prefill writes.
    pub prompt_tokens: u32,
    /// Tokens to generate for each sequence. Prefill generates the first one.
    pub generated_tokens: u32,
}

impl Shape {
    /// Creates a shape with elements of 2 bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a number is 0, or the set would not fit into 2^60 bytes.
    pub fn new(model: Model, batch: u32, prompt: u32, generated: u32) -> Result<Shape> {
        let shape = Shape {
            model,
            batch,
            element_bytes: 2,
            prompt_tokens: prompt,
            generated_tokens: generated,
        };
        shape.check().map(|()| shape)
    }

    /// Checks the numbers, because the fields are public.
    pub(crate) fn check(&self) -> Result<()> {
        let Model { layers, heads, head_elements, .. } = self.model;
        let dimensions = [layers, heads, head_elements, self.batch, self.element_bytes];
        if dimensions.contains(&0) || self.prompt_tokens == 0 || self.generated_tokens == 0 {
            return Err(Error::invalid("a shape", format!("{self:?}"), "use numbers from 1 on"));
        }
        let tokens = u64::from(self.prompt_tokens) + u64::from(self.generated_tokens);
        let mut factors = dimensions.map(u64::from).into_iter().chain([2, tokens]);
        let bytes = factors.try_fold(1u64, |product, factor| product.checked_mul(factor));
        if bytes.is_none_or(|bytes| bytes > 1 << 60) || tokens > u64::from(u32::MAX) {
            return Err(Error::invalid("a shape", format!("{self:?}"), "use smaller numbers"));
        }
        Ok(())
    }

    /// Returns the bytes of one token in one tensor: batch x heads x elements of a head x bytes of an element. This is
    /// the smallest unit of reads and writes (Dual-Blade, table II).
    pub fn unit_bytes(&self) -> u64 {
        let Model { heads, head_elements, .. } = self.model;
        [self.batch, heads, head_elements, self.element_bytes].map(u64::from).iter().product()
    }

    /// Returns the bytes of a tensor with this many tokens.
    pub fn bytes(&self, tokens: u32) -> u64 {
        self.unit_bytes() * u64::from(tokens)
    }

    /// Returns the maximum tokens of a tensor: the prompt's and the generated ones except the last, whose keys and
    /// values no later token needs.
    pub fn tokens_max(&self) -> u32 {
        self.prompt_tokens + self.generated_tokens - 1
    }

    /// Returns the final bytes of a tensor, which the plan reserves.
    pub fn tensor_bytes(&self) -> u64 {
        self.bytes(self.tokens_max())
    }

    /// Returns the final bytes of a layer's pair of tensors.
    pub fn pair_bytes(&self) -> u64 {
        2 * self.tensor_bytes()
    }

    /// Returns the final bytes of all tensors.
    pub fn set_bytes(&self) -> u64 {
        self.pair_bytes() * u64::from(self.model.layers)
    }

    /// Returns the number of decode steps after prefill; each reads all tensors.
    pub fn decode_steps(&self) -> u32 {
        self.generated_tokens - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_one() -> Shape {
        Shape::new(Model::OPT_13B, 1, 1, 1).expect("a shape")
    }

    #[test]
    fn sizes_are_those_of_the_paper() {
        let of = |model, batch| Shape::new(model, batch, 512, 32).expect("a shape");
        for (model, kib) in [(Model::OPT_1_3B, 4), (Model::OPT_6_7B, 8), (Model::OPT_13B, 10)] {
            assert_eq!(of(model, 1).unit_bytes(), kib << 10, "table II, {}", model.name);
            assert_eq!(of(model, 3).unit_bytes(), (3 * kib) << 10);
        }
        let shape = of(Model::OPT_6_7B, 32);
        assert_eq!(shape.bytes(512), 128 << 20, "prefill writes 128 MiB");
        assert_eq!(shape.unit_bytes(), 256 << 10, "a decode write has 256 KiB");
        assert_eq!(shape.tensor_bytes() >> 20, 135, "reads grow from 128 to 135 MiB");
        assert_eq!(shape.set_bytes() / 10_000_000, 911, "the set has 9.11 GB");
        assert_eq!(shape.decode_steps(), 31);
    }

    #[test]
    fn keys_are_numbered_before_values() {
        let numbers = |layer| TensorId::pair(layer).map(|tensor| tensor.number(3));
        assert_eq!([numbers(0), numbers(1), numbers(2)], [[0, 3], [1, 4], [2, 5]]);
        assert_eq!(TensorId::pair(7)[1].to_string(), "V of layer 7");
    }

    #[test]
    fn shapes_of_nothing_or_of_too_much_are_refused() {
        for (batch, prompt, generated) in [(0, 1, 1), (1, 0, 1), (1, 1, 0)] {
            assert!(Shape::new(Model::OPT_13B, batch, prompt, generated).is_err());
        }
        assert!(Shape::new(Model::OPT_13B, u32::MAX, u32::MAX, 1).is_err());
        let most = u32::MAX;
        let model = Model { name: "vast", layers: most, heads: most, head_elements: most };
        let vast = Shape { element_bytes: most, ..Shape { model, ..of_one() } };
        assert!(Shape { batch: most, ..vast }.check().is_err(), "its bytes exceed 128 bits");
        let error = Model::named("opt-2b").expect_err("no such model").to_string();
        assert!(error.contains("opt-1.3b, opt-6.7b, opt-13b"), "{error}");
        assert_eq!(Model::named("opt-13b").expect("it is known"), Model::OPT_13B);
    }
}
