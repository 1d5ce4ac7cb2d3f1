"""KV blocks of a model, whole and layer by layer."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import noise, pool

import adit

KEYS = [f"block/{number}" for number in range(6)]


def shape(store: adit.Store, slots: int | None = 4) -> adit.Layout:
    return store.layout(
        layers=4, kv_heads=2, head_dim=64, tokens=16, dtype="bf16", slots=slots
    )


def test_a_layout_says_how_long_blocks_are(store: adit.Store) -> None:
    layout = shape(store)
    assert (layout.layers, layout.layer_bytes, layout.block_bytes) == (4, 8192, 32_768)
    assert "4 layers of 8192 bytes" in repr(layout)


@pytest.mark.parametrize("slots", [None, 4])
def test_layers_of_whole_blocks_are_read_one_by_one(store: adit.Store, slots: int | None) -> None:
    layout = shape(store, slots)
    blocks = noise(6, layout.block_bytes)
    assert store.put_many(KEYS, blocks, layout=layout) == [True] * 6
    rows = pool(6, layout.layer_bytes)
    with store.register(rows):
        for layer in range(4):
            lengths = store.get_layer(layer, [*KEYS[:5], "none"], rows)
            assert lengths == [8192] * 5 + [None]
            part = blocks[:5, layer * 8192 : (layer + 1) * 8192]
            assert np.array_equal(rows[:5], part)
    assert store.get_many(KEYS) == [block.tobytes() for block in blocks]
    store.put("alone", blocks[0], layout=layout)
    with store.register(rows):
        assert store.get_layer(3, ["alone"], rows[:1]) == [8192]
        assert np.array_equal(rows[0], blocks[0, 3 * 8192 :])


@pytest.mark.parametrize("registered", [False, True])
def test_blocks_are_written_layer_by_layer(store: adit.Store, registered: bool) -> None:
    layout = shape(store)
    blocks = noise(6, layout.block_bytes)
    rows = pool(6, layout.layer_bytes)
    region = store.register(rows) if registered else None
    with store.reserve_blocks(layout, KEYS) as writer:
        for layer in (2, 0, 3, 1):
            rows[:] = blocks[:, layer * 8192 : (layer + 1) * 8192]
            writer.put_layer(layer, rows)
            assert not store.exists(KEYS[0]), "a block appears as a whole"
        assert writer.commit() == [True] * 6
    assert store.get_many(KEYS) == [block.tobytes() for block in blocks]
    if region is not None:
        assert store.stats()["copied_bytes"] == 0
        region.close()


def test_blocks_that_are_not_committed_leave_no_trace(store: adit.Store) -> None:
    layout = shape(store, None)
    with store.reserve_blocks(layout, KEYS) as writer:
        writer.put_layer(0, [bytes(layout.layer_bytes)] * 6)
        with pytest.raises(adit.InvalidError, match="length of a layer"):
            writer.put_layer(1, [bytes(100)] * 6)
        with pytest.raises(adit.InvalidError, match="number of data"):
            writer.put_layer(1, [bytes(layout.layer_bytes)] * 5)
    with pytest.raises(adit.InvalidError, match="no object is being written"):
        writer.commit()
    with pytest.raises(adit.InvalidError, match="no object is being written"):
        writer.put_layer(1, [bytes(layout.layer_bytes)] * 6)
    assert store.exists_many(KEYS) == [False] * 6
    with pytest.raises(adit.InvalidError, match="never filled"):
        store.reserve_blocks(layout, KEYS).commit()


def test_a_layer_goes_to_registered_memory_only(store: adit.Store) -> None:
    layout = shape(store)
    store.put_many(KEYS, noise(6, layout.block_bytes), layout=layout)
    rows = pool(6, layout.layer_bytes)
    with store.register(rows) as region:
        elsewhere = bytearray(layout.layer_bytes)
        with pytest.raises(adit.BadBufferError, match="buffer 5 is not in registered memory"):
            store.get_layer(0, KEYS, [*rows[:5], elsewhere])
        with pytest.raises(adit.BadBufferError, match="buffer 1 .* another request has it"):
            store.get_layer(0, KEYS[:2], [rows[0], rows[0]])
        with pytest.raises(adit.InvalidError):
            store.get_layer(99, KEYS[:1], rows[:1])
        assert store.get_layer(0, KEYS, rows) == [8192] * 6, "all memory came back"
        assert region.nbytes == rows.nbytes
