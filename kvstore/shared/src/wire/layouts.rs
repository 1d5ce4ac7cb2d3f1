//! Layouts of KV blocks as numbers of a message.

use adit_kvstore::layout::{BlockShape, Dtype, Layout, Order};

/// Encodes a layout as numbers of a message.
pub fn layout_numbers(layout: &Layout) -> [u64; 4] {
    let BlockShape { layers, tensors_per_layer, kv_heads, head_dim, dtype, tokens } =
        *layout.block();
    let slots = match layout.order() {
        Order::BlockMajor => 0,
        Order::LayerMajor { slots } => slots,
    };
    let two = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
    let dtype = DTYPES.iter().position(|it| *it == dtype).expect("all are listed") as u32;
    [
        two(layers, tensors_per_layer.into()),
        two(kv_heads, head_dim),
        two(tokens, dtype),
        slots.into(),
    ]
}

const DTYPES: [Dtype; 5] = [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::Fp8, Dtype::Int8];

/// Decodes a layout from the numbers of a message; `None` if there is no such layout.
pub fn layout_of(numbers: [u64; 4]) -> Option<Layout> {
    let two = |number: u64| ((number >> 32) as u32, number as u32);
    let [(layers, tensors), (kv_heads, head_dim), (tokens, dtype), (_, slots)] = numbers.map(two);
    let block = BlockShape {
        layers,
        tensors_per_layer: u8::try_from(tensors).ok()?,
        kv_heads,
        head_dim,
        dtype: *DTYPES.get(dtype as usize)?,
        tokens,
    };
    let order = if slots == 0 { Order::BlockMajor } else { Order::LayerMajor { slots } };
    Layout::new(block, order).ok()
}
