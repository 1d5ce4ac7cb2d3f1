"""Tensors of torch as values and buffers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import adit

# All types of numbers that torch has.
TYPES = sorted(
    {value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str
)
KEYS = [f"row/{number}" for number in range(8)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[adit.Store]:
    """Return an open store."""
    path = tmp_path / "kv.img"
    adit.Store.format(path, size=128 << 20)
    with adit.Store(path) as store:
        yield store
    path.unlink()


def noise(*shape: int, seed: int = 1) -> torch.Tensor:
    """Return random bytes."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def raw(tensor: torch.Tensor) -> bytes:
    """Return a tensor's bytes, by torch alone."""
    return bytes(tensor.detach().reshape(-1).contiguous().view(torch.uint8).tolist())


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_every_type_goes_in_and_out(store: adit.Store, dtype: torch.dtype) -> None:
    nbytes = 16 * max(dtype.itemsize, 1)
    try:
        tensor, back = noise(nbytes).view(dtype), torch.zeros(nbytes, dtype=torch.uint8).view(dtype)
    except RuntimeError as why:
        pytest.skip(f"torch makes no tensor of it: {why}")
    assert store.put("a", tensor) is True
    assert store.get("a") == noise(nbytes).numpy().tobytes()
    assert store.get_into("a", back) == nbytes
    assert torch.equal(back.view(torch.uint8), noise(nbytes))


def test_any_shape_that_is_contiguous(store: adit.Store) -> None:
    rows = noise(8, 32).view(torch.bfloat16)
    whole = torch.zeros(4, 4, 4)
    for tensor in (
        torch.tensor(7, dtype=torch.int16),
        torch.zeros(0, 5),
        torch.empty(0, dtype=torch.float8_e4m3fn),
        rows[3:6],
        rows[2, 1:5],
        whole.permute(2, 0, 1).permute(1, 2, 0),
        torch.zeros(1, 6).expand(1, 6),
        torch.zeros(6, 1).t(),
        torch.zeros(3, requires_grad=True),
        torch.nn.Parameter(torch.ones(3)),
        torch.ones(3, dtype=torch.complex64).conj().resolve_conj(),
    ):
        assert tensor.is_contiguous() and store.put("a", tensor)
        assert store.get("a") == raw(tensor), tensor
        back = torch.full_like(tensor, 1).detach()
        assert store.get_into("a", back) == tensor.nbytes and raw(back) == raw(tensor)
    # Only the bytes of a slice are written.
    table = torch.zeros(8, 32, dtype=torch.uint8)
    store.put("row", noise(32))
    assert store.get_into("row", table[3]) == 32
    assert torch.equal(table[3], noise(32)) and int(table.to(torch.int64).sum()) == int(table[3].sum())


def refusals() -> list[tuple[str, Any, str]]:
    """Return tensors that have no bytes to use, and what says so."""
    fake = torch._subclasses.fake_tensor.FakeTensorMode()
    with fake:
        faked = torch.zeros(3)
    freed = torch.zeros(64)[8:]
    freed.untyped_storage().resize_(0)
    return [
        ("strided", torch.zeros(4, 4)[:, ::2], r"not contiguous; give tensor\.contiguous\(\)"),
        ("transposed", torch.zeros(4, 3).t(), r"\.contiguous\(\)"),
        ("channels", torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last), r"\.contiguous\(\)"),
        ("meta", torch.zeros(3, device="meta"), r"'meta' and has no bytes.*\.cpu\(\)"),
        ("sparse", torch.eye(3).to_sparse(), r"torch\.sparse_coo; give tensor\.to_dense\(\)"),
        ("conjugate", torch.ones(3, dtype=torch.complex64).conj(), r"resolve_conj"),
        ("negative", torch.ones(3, dtype=torch.complex64).conj().imag[:1], r"resolve_neg"),
        ("fake", faked, "no memory|data pointer"),
        ("freed", freed, "no memory"),
        ("zero", torch._efficientzerotensor(3), "no memory|data pointer"),
    ]


@pytest.mark.parametrize("case", refusals(), ids=lambda case: str(case[0]))
@pytest.mark.filterwarnings("ignore")
def test_others_are_refused_with_what_to_do(store: adit.Store, case: tuple[str, Any, str]) -> None:
    _, tensor, says = case
    with pytest.raises(adit.BadBufferError, match=says):
        store.put("a", tensor)
    with pytest.raises(adit.BadBufferError):
        store.get_into("a", tensor)
    assert store.get("a") is None


def test_a_tensor_of_another_device_is_refused(store: adit.Store) -> None:
    # torch names what it has no code for, too.
    torch.utils.rename_privateuse1_backend("elsewhere")

    class Elsewhere(torch.Tensor):
        @property
        def device(self) -> torch.device:  # type: ignore[override]
            return torch.device("elsewhere:0")

    there = torch.zeros(3).as_subclass(Elsewhere)
    with pytest.raises(adit.BadBufferError, match=r"on 'elsewhere:0'; give tensor\.cpu\(\)"):
        store.put("a", there)
    with pytest.raises(adit.BadBufferError, match=r"on 'elsewhere:0'; read into a tensor on the CPU"):
        store.get_into("a", there)


def test_every_call_takes_tensors(store: adit.Store) -> None:
    rows = noise(8, 4096)
    assert store.put_many(KEYS, rows) == [True] * 8
    back = torch.zeros_like(rows)
    assert store.get_many_into(KEYS, back) == [4096] * 8 and torch.equal(back, rows)
    assert store.put_from("stream", (row for row in rows.view(torch.float8_e5m2)))
    back = torch.zeros(8 * 4096, dtype=torch.uint8)
    reader = store.reader("stream")
    assert reader is not None
    with reader:
        assert reader.readinto(back[:100]) == 100 and reader.tell() == 100
        assert reader.readinto(back[100:]) == back.nbytes - 100
        assert reader.readinto1(back) == 0
    assert torch.equal(back, rows.reshape(-1))
    with store.futures() as futures:
        assert futures.put("a", rows.view(torch.bfloat16)).result(30) is True
        back = torch.zeros(8, 2048, dtype=torch.bfloat16)
        assert futures.get_into("a", back).result(30) == rows.nbytes
        assert torch.equal(back.view(torch.uint8), rows)

    async def serve() -> torch.Tensor:
        async with store.aio() as aio:
            await aio.put("b", rows)
            into = torch.zeros_like(rows)
            await aio.get_into("b", into)
            return into

    assert torch.equal(asyncio.run(serve()), rows)
    layout = store.layout(layers=2, kv_heads=1, head_dim=64, tokens=16, dtype="bf16")
    blocks = noise(2, layout.layer_bytes)
    with store.reserve_blocks(layout, ["block"]) as writer:
        for layer in range(2):
            writer.put_layer(layer, [blocks[layer]])
        assert writer.commit() == [True]
    back = torch.zeros_like(blocks)
    assert store.get_into("block", back) == blocks.nbytes and torch.equal(back, blocks)


def test_a_tensor_is_registered_and_used_in_place(store: adit.Store, tmp_path: Path) -> None:
    path = tmp_path / "pool"
    path.write_bytes(bytes(64 << 12))
    pool = torch.from_file(str(path), shared=True, size=64 << 12, dtype=torch.uint8).view(64, 4096)
    rows = noise(64, 4096)
    pool.copy_(rows)
    before = store.stats()["copied_bytes"]
    with store.register(pool):
        assert store.put("a", pool[:32].view(torch.bfloat16))
        pool.zero_()
        assert store.get_into("a", pool[32:]) == 32 * 4096
        assert torch.equal(pool[32:], rows[:32])
    assert store.stats()["copied_bytes"] == before
    path.unlink()


def test_a_tensor_lives_as_long_as_its_job(store: adit.Store) -> None:
    queue = store.queue()
    for number in range(32):
        queue.submit_get_into([KEYS[0]], [torch.zeros(1 << 20, dtype=torch.uint8)], token=number)
        queue.submit_put([KEYS[0]], [noise(1 << 20, seed=number)])
    queue.close()
    assert store.get(KEYS[0]) == noise(1 << 20, seed=31).numpy().tobytes()
