from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from payload_rank import Notebook, Rank

from nbproc.ranks import payload

np = pytest.importorskip("numpy")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # torch calls some kinds of tensors experimental


@pytest.fixture(scope="module")
def rank() -> Iterator[Rank]:
    rank = Rank()
    yield rank
    rank.end()


@pytest.fixture(scope="module")
def portable_rank() -> Iterator[Rank]:
    rank = Rank({"NBPROC_PORTABLE": "1"})
    yield rank
    rank.end()


def same(x: Any) -> Any:
    return x


DTYPES = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)
PLAIN = [
    one
    for one in DTYPES
    if not any(
        word in str(one)
        for word in ("qint", "quint", "bits", "int1", "int2", "int3", "int4", "int5", "int6", "int7", "float4", "e8m0")
    )
    or str(one) in ("torch.int16", "torch.int32", "torch.int64", "torch.uint16", "torch.uint32", "torch.uint64")
]


@pytest.mark.parametrize("size", [0, 5, 50_000])
def test_all_dtypes(rank: Rank, size: int) -> None:
    tensors = [torch.arange(size * one.itemsize, dtype=torch.int64).to(torch.uint8).view(torch.uint8) for one in PLAIN]
    values = {
        str(one): raw.view(one) if one is not torch.bool else raw > 3 for one, raw in zip(PLAIN, tensors, strict=True)
    }
    assert {"torch.bfloat16", "torch.float8_e4m3fn", "torch.uint16", "torch.complex64"} <= set(values)
    back = rank.call(same, values)
    for name, value in values.items():
        assert back[name].dtype is value.dtype, name
        assert back[name].shape == value.shape, name
        assert torch.equal(back[name].view(torch.uint8), value.view(torch.uint8)), name


def test_views_of_one_storage_stay_views_of_one_storage(rank: Rank) -> None:
    def write(base: torch.Tensor, column: torch.Tensor, odd: torch.Tensor) -> Any:
        base.zero_()
        return column.sum().item(), odd.sum().item(), column.stride(), odd.storage_offset(), base, column

    base = torch.ones(300, 300)
    out = rank.call(write, base, base[:, 3], base.view(-1)[1::2])
    assert out[:4] == (0, 0, (300,), 1)
    assert out[4].untyped_storage().data_ptr() == out[5].untyped_storage().data_ptr()
    assert base.sum() == 90_000


def test_a_storage_is_sent_once(rank: Rank) -> None:
    base = torch.ones(1_000_000)
    packed = payload.Packer().pack(
        {"fn": same, "args": (base, base[1:], base.view(1000, 1000), base.view(1000, 1000).T)}
    )
    assert 4_000_000 <= packed.size < 4_010_000


def test_tied_weights_modules_and_their_optimizer(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = Notebook()
    monkeypatch.setitem(sys.modules, "__main__", notebook.module)
    notebook.run(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.a = torch.nn.Linear(64, 64)\n"
        "        self.b = torch.nn.Linear(64, 64)\n"
        "        self.b.weight = self.a.weight\n"
        "        self.register_buffer('steps', torch.zeros(1))\n"
        "    def forward(self, x):\n"
        "        return self.b(self.a(x))\n"
        "net = Net()\n"
        "optimizer = torch.optim.Adam(net.parameters())\n"
        "def step(net, optimizer):\n"
        "    assert net.a.weight is net.b.weight and isinstance(net.a.weight, torch.nn.Parameter)\n"
        "    assert optimizer.param_groups[0]['params'][0] is net.a.weight\n"
        "    net(torch.ones(2, 64)).sum().backward()\n"
        "    optimizer.step()\n"
        "    return net, optimizer\n"
    )
    before = notebook["net"].a.weight.detach().clone()
    net, optimizer = rank.call(notebook["step"], notebook["net"], notebook["optimizer"])
    assert type(net) is notebook["Net"]
    assert net.a.weight is net.b.weight
    assert net.a.weight.requires_grad
    assert optimizer.param_groups[0]["params"][0] is net.a.weight
    assert not torch.equal(net.a.weight, before)
    assert torch.equal(notebook["net"].a.weight, before)


class Tagged(torch.Tensor):
    """A subclass with an attribute."""


def test_odd_tensors(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    tagged = torch.ones(3).as_subclass(Tagged)
    tagged.tag = "x"  # type: ignore[attr-defined]
    with_attribute = torch.ones(3)
    with_attribute.note = "kept"  # type: ignore[attr-defined]
    strided = torch.arange(1_000_000.0).view(1000, 1000)[::3, ::7]
    values = {
        "sparse": torch.eye(5).to_sparse(),
        "csr": torch.eye(5).to_sparse_csr(),
        "quantized": torch.quantize_per_tensor(torch.arange(10.0), 0.1, 2, torch.quint8),
        "meta": torch.ones(3, device="meta"),
        "conj": torch.ones(3, dtype=torch.complex64).conj(),
        "negative": torch.ones(3, dtype=torch.complex64).conj().imag,
        "expanded": torch.ones(1).expand(1000),
        "strided": strided,
        "scalar": torch.tensor(3.5),
        "leaf": torch.ones(3, requires_grad=True),
        "tagged": tagged,
        "tagged new": torch.ones(3, dtype=torch.uint16).as_subclass(Tagged),
        "parameter": torch.nn.Parameter(torch.ones(3).to(torch.float8_e4m3fn), requires_grad=False),
        "attribute": with_attribute,
        "storage": torch.arange(10, dtype=torch.uint8).untyped_storage(),
        "device": torch.device("cpu"),
        "size": torch.Size([1, 2]),
        "dtype": torch.bfloat16,
        "generator": torch.Generator().manual_seed(3),
    }
    back = rank.call(same, values)
    assert torch.equal(back["sparse"].to_dense(), torch.eye(5))
    assert torch.equal(back["csr"].to_dense(), torch.eye(5))
    assert back["csr"].layout is torch.sparse_csr
    assert torch.equal(back["quantized"].int_repr(), values["quantized"].int_repr())
    assert back["meta"].device.type == "meta"
    assert back["conj"].is_conj()
    assert torch.equal(back["negative"], values["negative"])
    assert back["expanded"].stride() == (0,)
    assert torch.equal(back["strided"], strided)
    assert back["strided"].stride() == strided.stride()
    assert back["scalar"] == 3.5
    assert back["leaf"].requires_grad
    assert back["leaf"].is_leaf
    assert type(back["tagged"]) is Tagged
    assert back["tagged"].tag == "x"
    assert type(back["tagged new"]) is Tagged
    assert back["tagged new"].tolist() == [1, 1, 1]
    assert type(back["parameter"]) is torch.nn.Parameter
    assert back["parameter"].dtype is torch.float8_e4m3fn
    assert back["attribute"].note == "kept"
    assert back["storage"].tolist() == list(range(10))
    assert back["generator"].initial_seed() == 3
    assert [back[name] for name in ("device", "size", "dtype")] == [
        values[name] for name in ("device", "size", "dtype")
    ]


def test_nested_tensors(rank: Rank) -> None:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        jagged = torch.nested.nested_tensor([torch.ones(2, 3), torch.zeros(4, 3)], layout=torch.jagged)
        old = torch.nested.nested_tensor([torch.ones(2, 3), torch.zeros(4, 3)])
        back = rank.call(same, [old, jagged])
    assert torch.equal(back[0].unbind()[1], torch.zeros(4, 3))
    assert torch.equal(back[1].unbind()[0], torch.ones(2, 3))


def test_a_received_tensor_cannot_be_resized_and_says_so(rank: Rank) -> None:
    def resize(x: torch.Tensor) -> list[str]:
        words = []
        for action in (
            lambda: x.resize_(1_000_000),
            lambda: x.untyped_storage().resize_(0),
            lambda: x.untyped_storage().resize_(1 << 24),
            lambda: x.resize_(10),
        ):
            try:
                action()
                words.append("done")
            except RuntimeError as error:
                words.append(str(error))
        return words

    for size in (100, 100_000):
        words = rank.call(resize, torch.ones(size))
        assert ["resiz" in one for one in words] == [True, True, True, False]
    back = rank.call(same, torch.ones(100_000))
    with pytest.raises(RuntimeError, match="resiz"):
        back.resize_(1_000_000)


def test_shared_tensors_stay_the_same_memory(rank: Rank) -> None:
    def add(x: torch.Tensor, part: torch.Tensor) -> tuple[bool, torch.Tensor]:
        x += 1
        part += 1
        return x.is_shared(), x

    x = torch.zeros(1000).share_memory_()
    shared, back = rank.call(add, x, x[:10])
    assert shared
    assert x.sum() == 1010
    x[0] = 7
    assert back[0] == 7


def test_a_shared_model_takes_steps_of_a_rank(rank: Rank) -> None:
    def change(model: torch.nn.Module) -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(5)

    model = torch.nn.Linear(10, 10)
    model.share_memory()
    rank.call(change, model)
    assert (model.weight == 5).all()


def test_many_shared_tensors(rank: Rank) -> None:
    def total(tensors: list[torch.Tensor]) -> float:
        return sum(float(one.sum()) for one in tensors)

    assert rank.call(total, [torch.ones(3).share_memory_() for _ in range(300)]) == 900


def test_a_received_tensor_can_be_shared_and_saved(rank: Rank, tmp_path: Any) -> None:
    def use(x: torch.Tensor, path: str) -> tuple[bool, float]:
        import copy

        torch.save(x, path)
        y = copy.deepcopy(x)
        x.share_memory_()
        x.fill_(2)
        return x.is_shared(), float(y.sum() + x.sum() + torch.load(path).sum())

    assert rank.call(use, torch.ones(50_000), str(tmp_path / "x.pt")) == (True, 200_000)


def test_arrays(rank: Rank) -> None:
    frozen = np.arange(100_000)
    frozen.flags.writeable = False
    big = np.arange(1_000_000.0).reshape(1000, 1000)
    values = {
        "plain": big,
        "fortran": np.asfortranarray(big),
        "strided": big[::3, ::7],
        "small strided": np.arange(24).reshape(4, 6)[:, ::2],
        "turned": big[::-1],
        "broadcast": np.broadcast_to(np.arange(3.0), (50_000, 3)),
        "objects": np.array([{"a": 1}, None, "x"] * 5, dtype=object),
        "record": np.zeros(1000, dtype=[("a", "i4"), ("b", "f8")]),
        "text": np.array(["a", "bcd"]),
        "time": np.array([1, 2], dtype="M8[s]"),
        "empty": np.zeros((0, 5)),
        "scalar": np.float64(2.5),
        "frozen": frozen,
        "masked": np.ma.masked_array([1, 2, 3], mask=[0, 1, 0]),
        "generator": np.random.default_rng(3),
    }
    back = rank.call(same, values)
    for name in set(values) - {"generator"}:
        assert back[name].dtype == values[name].dtype, name
        assert np.array_equal(back[name], values[name]), name
    assert back["plain"].flags.writeable
    assert not back["frozen"].flags.writeable
    assert back["fortran"].flags.f_contiguous
    assert back["objects"][0] == {"a": 1}
    assert back["generator"].random() == values["generator"].random()


def test_frames_and_tables_go_out_of_band(rank: Rank) -> None:
    pd = pytest.importorskip("pandas")
    pa = pytest.importorskip("pyarrow")
    frame = pd.DataFrame({"a": np.arange(100_000), "b": np.arange(100_000) / 3, "c": ["x", "yz"] * 50_000})
    frame["d"] = pd.Categorical(frame["c"])
    frame.index = pd.date_range("2020", periods=100_000, freq="min")
    table = pa.table({"x": np.arange(200_000), "s": ["some", "words"] * 100_000})

    def change(frame: Any, table: Any) -> Any:
        frame.loc[frame.index[0], "a"] = -1
        return frame, table

    packed = payload.Packer().pack({"fn": change, "args": (frame, table)})
    assert sum(map(len, packed.chunks)) < packed.size / 2
    new, same_table = rank.call(change, frame, table)
    assert new["a"].iloc[0] == -1
    assert frame["a"].iloc[0] == 0
    assert new.iloc[1:].equals(frame.iloc[1:])
    assert same_table.equals(table)


def test_everything_works_without_memory_files(portable_rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBPROC_PORTABLE", "1")
    x = torch.arange(100_000.0)
    back = portable_rank.call(lambda x: (x, x[::2], b"b" * 1_000_000), x)
    assert torch.equal(back[0], x)
    assert torch.equal(back[1], x[::2])
    assert back[2] == b"b" * 1_000_000


def test_ranks_get_what_they_share_once(rank: Rank) -> None:
    other = Rank()
    try:
        big = torch.ones(500_000)
        data = b"d" * 2_000_000
        packer = payload.Packer()
        payloads = packer.pack_each(
            {"fn": lambda big, i, own: (float(big.sum()) + i, len(own[0]), own[1] is big)},
            [{"args": (big, i, (data, big))} for i in range(2)],
        )
        from nbproc.ranks import results

        with payload.store(payloads) as shipment:
            assert shipment[0].files is not None
            import os

            assert sum(os.fstat(file).st_size for file in shipment[0].files.descriptors) < 4_100_000
            for one, parcel in zip((rank, other), shipment, strict=True):
                payload.send(one.sock, parcel)
        values = [results.receive_result(one.sock, i).value() for i, one in enumerate((rank, other))]
        assert values == [(500_000.0, 2_000_000, True), (500_001.0, 2_000_000, True)]
    finally:
        other.end()
