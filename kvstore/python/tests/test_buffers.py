"""What objects have bytes that can be stored and read into: buffers, tensors by name, and arrays by DLPack."""

from __future__ import annotations

import array
import ctypes
import gc
import mmap
import sys
import types
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from conftest import noise, pool

import adit


class _Pair(ctypes.Structure):
    _fields_ = (("number", ctypes.c_int), ("object", ctypes.py_object))


class _Named(ctypes.Structure):
    """Its names are the letters of objects and pointers."""

    _fields_ = (("O", ctypes.c_int), ("P", ctypes.c_double), ("z", ctypes.c_byte))


ADDRESSES: dict[str, Callable[[], Any]] = {
    "objects": lambda: np.array([object(), [1], "text"], dtype=object),
    "no objects": lambda: np.empty(0, dtype=object),
    "one object": lambda: np.array({}, dtype=object),
    "a field": lambda: np.zeros(3, dtype=[("a", "f8"), ("b", object)]),
    "a field of a field": lambda: np.zeros(3, dtype=[("a", [("x", "i4"), ("y", "O", (2,))])]),
    "beside a date": lambda: np.zeros(3, dtype=[("when", "M8[s]"), ("what", object)]),
    "strings elsewhere": lambda: np.array(["a" * 100], dtype=np.dtypes.StringDType()),
    "a view": lambda: memoryview(np.array([None])),  # type: ignore[arg-type]
    "py_object": lambda: (ctypes.py_object * 2)(),
    "void pointers": lambda: (ctypes.c_void_p * 2)(),
    "texts": lambda: (ctypes.c_char_p * 2)(),
    "wide texts": lambda: (ctypes.c_wchar_p * 2)(),
    "pointers": lambda: (ctypes.POINTER(ctypes.c_int) * 2)(),
    "functions": lambda: (ctypes.CFUNCTYPE(None) * 2)(),
    "a structure": _Pair,
    "structures": lambda: (_Pair * 2)(),
}


@pytest.mark.parametrize("name", ADDRESSES)
def test_addresses_are_refused_in_any_call(either: adit.Store | adit.Client, name: str) -> None:
    buffer = ADDRESSES[name]()
    either.put("there", bytes(100))
    reader, queue = either.reader("there"), either.queue()
    assert reader is not None
    for call in (
        lambda: either.put("a", buffer),
        lambda: either.put_many(["a"], [buffer]),
        lambda: either.put_from("a", [buffer]),
        lambda: either.get_into("there", buffer),
        lambda: either.get_many_into(["there"], [buffer]),
        lambda: reader.readinto(buffer),
        lambda: reader.readinto1(buffer),
        lambda: queue.submit_put(["a"], [buffer]),
        lambda: queue.submit_get_into(["there"], [buffer]),
    ):
        with pytest.raises(adit.BadBufferError, match="addresses mean nothing|read-only"):
            call()
    assert either.get("a") is None
    reader.close()
    queue.close()


@pytest.mark.parametrize(
    "buffer",
    [
        b"some bytes",
        bytearray(b"some bytes"),
        memoryview(b"some bytes"),
        memoryview(bytearray(16)).cast("d"),
        memoryview(bytearray(16)).cast("B", (4, 4)),
        array.array("d", [1.5, 2.5]),
        array.array("u", "wide"),
        (ctypes.c_int * 4)(1, 2, 3, 4),
        (_Named * 2)(),
        ctypes.c_double(2.5),
        np.float64(2.5),
        np.arange(6, dtype=np.complex128).reshape(2, 3),
        np.arange(6, dtype=np.clongdouble),
        np.arange(6, dtype=np.float16),
        np.array(5),
        np.empty((0, 3)),
        np.array(["2026-11-28"], dtype="M8[D]"),
        np.array(["text", "O"]),
        np.zeros(3, dtype=[("O", "i4"), ("Z", "S3"), ("P", "u1", (2, 2))]),
        np.zeros(3, dtype=[("when", "M8[s]"), ("x", "f4")]),
    ],
    ids=lambda buffer: f"{type(buffer).__name__} {getattr(buffer, 'dtype', '')}",
)
def test_all_others_go_in_and_out(store: adit.Store, buffer: Any) -> None:
    nbytes = buffer.nbytes if hasattr(buffer, "nbytes") else memoryview(buffer).nbytes
    assert store.put("a", buffer) is True
    value = store.get("a")
    assert value is not None and len(value) == nbytes
    again = bytearray(nbytes)
    assert store.get_into("a", again) == nbytes and again == value
    if isinstance(buffer, np.ndarray):
        assert value == buffer.tobytes()
        back = np.zeros_like(buffer)
        assert store.get_into("a", back) == nbytes and back.tobytes() == value


def test_a_mapping_goes_in_and_out(store: adit.Store) -> None:
    with mmap.mmap(-1, 8192) as memory:
        memory[:4] = b"some"
        assert store.put("a", memory)
        memory[:4] = b"none"
        assert store.get_into("a", memory) == 8192 and memory[:4] == b"some"


class Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("number", ctypes.c_int32))


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", Device),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class Plain(ctypes.Structure):
    _fields_ = (("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    )


new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype, new_capsule.argtypes = (
    ctypes.py_object,
    (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p),
)
NAMES = {Plain: b"dltensor", Versioned: b"dltensor_versioned"}


class Exporter:
    """An array of another library: it has DLPack and no buffer."""

    def __init__(
        self, data: bytearray, /, kind: type[Plain] | type[Versioned] = Versioned, **fields: Any
    ) -> None:
        self.data, self.kind, self.fields, self.deleted = data, kind, fields, 0
        self.device: tuple[int, int] = fields.pop("device", (1, 0))
        self.shape, self.strides = fields.pop("shape", [len(data)]), fields.pop("strides", None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def _export(self) -> Any:
        buffer = (ctypes.c_ubyte * len(self.data)).from_buffer(self.data)
        array, ndim = self.kind(), len(self.shape)
        tensor = array.tensor
        tensor.data = ctypes.addressof(buffer) if self.data else None
        tensor.device, tensor.ndim = Device(1, 0), ndim
        tensor.code, tensor.bits, tensor.lanes = 1, 8, 1
        tensor.shape = (ctypes.c_int64 * ndim)(*self.shape)
        if self.strides is not None:
            tensor.strides = (ctypes.c_int64 * ndim)(*self.strides)
        if isinstance(array, Versioned):
            array.major, array.minor = 1, 1
        for name, value in self.fields.items():
            setattr(array if hasattr(array, name) else tensor, name, value)

        def delete(_: int) -> None:
            self.deleted += 1
            self.kept.clear()

        deleter = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(delete)
        array.deleter = ctypes.cast(deleter, ctypes.c_void_p)
        # The deleter itself runs to its end.
        self.kept, self.deleter = [array, buffer, tensor.shape, tensor.strides], deleter
        return new_capsule(ctypes.addressof(array), NAMES[self.kind], None)

    def __dlpack__(self, *, max_version: tuple[int, int] | None = None) -> Any:
        assert max_version is not None and max_version >= (1, 0)
        return self._export()


class Old(Exporter):
    """One from before there were versions."""

    def __dlpack__(self) -> Any:  # type: ignore[override]
        return self._export()


@pytest.mark.parametrize("make", [Exporter, partial(Exporter, kind=Plain), partial(Old, kind=Plain)])
def test_arrays_with_dlpack_go_in_and_out(
    either: adit.Store | adit.Client, make: Callable[..., Exporter]
) -> None:
    value = bytes(noise(1, 24))
    cases: list[tuple[dict[str, Any], bytes]] = [
        ({}, value),
        ({"shape": [2, 3, 4]}, value),
        ({"shape": [2, 3], "bits": 32, "code": 2}, value),
        ({"shape": [12], "bits": 16, "code": 4}, value),
        ({"shape": [3], "bits": 16, "lanes": 4}, value),
        ({"shape": [2, 12], "strides": [12, 1]}, value),
        ({"shape": [1, 24], "strides": [77, 1]}, value),
        ({"shape": [5], "byte_offset": 7}, value[7:12]),
        ({"shape": []}, value[:1]),
        ({"shape": [], "bits": 64}, value[:8]),
        ({"shape": [0, 3], "strides": [9, 9]}, b""),
    ]
    for fields, part in cases:
        array = make(bytearray(value), **fields)
        assert either.put("a", array) is True, fields
        assert array.deleted == 1 and either.get("a") == part, fields
        back = make(bytearray(24), **fields)
        if back.kind is Plain:
            with pytest.raises(adit.BadBufferError, match="does not say that it is not"):
                either.get_into("a", back)
            assert back.deleted == 1 and not any(back.data), fields
            continue
        assert either.get_into("a", back) == len(part) and back.deleted == 1, fields
        at = fields.get("byte_offset", 0)
        assert bytes(back.data[at : at + len(part)]) == part and sum(back.data) == sum(part), fields


def test_arrays_with_dlpack_that_cannot_be_used(store: adit.Store) -> None:
    store.put("a", bytes(4))
    for fields, says in (
        ({"shape": [2, 3], "strides": [1, 2]}, "not contiguous"),
        ({"shape": [12], "strides": [2]}, "not contiguous"),
        ({"shape": [12], "strides": [-1]}, "not contiguous"),
        ({"shape": [-1]}, "not contiguous"),
        ({"ndim": -1}, "not contiguous"),
        ({"shape": [1 << 62, 4]}, "contiguous|more bytes"),
        ({"shape": [1 << 62], "bits": 64}, "more bytes"),
        ({"bits": 4}, "parts of bytes; give a view of it as uint8"),
        ({"code": 3, "bits": 64, "shape": [3]}, "handles"),
        ({"data": None}, "no memory"),
        ({"device": (2, 0)}, r"another device; give one of the CPU's, such as array\.cpu\(\)"),
        ({"major": 2}, "it is of DLPack 2"),
    ):
        array = Exporter(bytearray(24), **fields)
        put, get = partial(store.put, "b", array), partial(store.get_into, "a", array)
        for call in (put, get):
            array.deleted = 0
            with pytest.raises(adit.BadBufferError, match=says):
                call()
            assert array.deleted == ("device" not in fields), fields
    assert store.get("b") is None
    for flags in (1, 2, 3):
        with pytest.raises(adit.BadBufferError, match="read-only, a copy, or"):
            store.get_into("a", Exporter(bytearray(24), flags=flags))
        assert store.put("b", Exporter(bytearray(24), flags=flags)) is True

    class Refusing(Exporter):
        def __dlpack__(self, **_: Any) -> Any:
            raise BufferError("it needs a gradient")

    with pytest.raises(adit.BadBufferError, match="it needs a gradient"):
        store.put("b", Refusing(bytearray(1)))

    class Empty(Exporter):
        def __dlpack__(self, **_: Any) -> Any:
            return new_capsule(1, b"another", None)

    with pytest.raises(adit.BadBufferError, match="returned no array"):
        store.put("b", Empty(bytearray(1)))


def test_an_array_with_dlpack_is_deleted_with_the_last_that_uses_it(store: adit.Store) -> None:
    memory = pool(4, 4096)
    array = Exporter(bytearray(0), shape=[4 * 4096], data=memory.ctypes.data)
    with store.register(array) as region:
        assert array.deleted == 0 and store.put("a", memory[1])
        region.close()
        assert array.deleted == 1
    late = Exporter(bytearray(b"late"))
    queue = store.queue()
    queue.submit_put(["late"], [late])
    queue.close()
    assert late.deleted == 1 and store.get("late") == b"late"


class Torch(types.ModuleType):
    """Has what the wheel asks of torch, which is not installed here."""

    strided = object()

    class Tensor:
        def __init__(self, data: bytearray, **answers: Any) -> None:
            self._memory = (ctypes.c_ubyte * len(data)).from_buffer(data)
            self._start = ctypes.addressof(self._memory)
            self.nbytes = len(data)
            self.device = types.SimpleNamespace(type="cpu")
            self.layout = Torch.strided
            self._answers = {"is_contiguous": True, "is_conj": False, "is_neg": False, **answers}

        def __getattr__(self, name: str) -> Callable[[], Any]:
            answers: dict[str, Any] = object.__getattribute__(self, "_answers")
            return lambda: answers[name]

        def data_ptr(self) -> int:
            return self._start

        def untyped_storage(self) -> Any:
            room = self._answers.get("room", self.nbytes)
            return types.SimpleNamespace(data_ptr=lambda: self._start, nbytes=lambda: room)


def test_tensors_of_torch_are_asked_for_their_storage(
    either: adit.Store | adit.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", Torch("torch"))
    assert either.put("a", Torch.Tensor(bytearray(b"tensor")))
    back = bytearray(6)
    assert either.get_into("a", Torch.Tensor(back)) == 6
    assert back == b"tensor"
    for answers, says in (
        ({"is_contiguous": False}, r"give tensor\.contiguous\(\)"),
        ({"is_conj": True}, "resolve_conj"),
        ({"is_neg": True}, "resolve_neg"),
        ({"room": 5}, "no memory"),
    ):
        with pytest.raises(adit.BadBufferError, match=says):
            either.put("b", Torch.Tensor(bytearray(6), **answers))
    tensor = Torch.Tensor(bytearray(6))
    gone = weakref.ref(tensor)
    queue = either.queue()
    queue.submit_put(["kept"], [tensor])
    del tensor
    queue.close()
    gc.collect()
    assert gone() is None and either.get("kept") == bytes(6)
