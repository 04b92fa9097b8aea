"""Real training in ranks: what finds its place by torchrun's variables finds it here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import nbproc
from nbproc import start_processes

pytestmark = pytest.mark.slow


def ddp(steps: int) -> dict[str, Any]:
    """Train a small model with DDP on gloo; the weights must agree over the ranks."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for _ in range(steps):
        data = torch.randn(16, 4, generator=generator)
        loss = (model(data) - data.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    weights = model.module.weight.detach().clone()
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), "model.pt")
    dist.barrier()
    dist.destroy_process_group()
    return {"weights": weights, "losses": losses}


def load(workers: int) -> tuple[int, set[int]]:
    """Read a dataset through workers; return the sum and the pids of the processes that read."""
    import torch
    from torch.utils.data import DataLoader, DistributedSampler, get_worker_info

    class Local(torch.utils.data.Dataset[tuple[int, int]]):
        def __len__(self) -> int:
            return 40

        def __getitem__(self, index: int) -> tuple[int, int]:
            assert get_worker_info() is not None
            return index * index, os.getpid()

    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    sampler: Any = DistributedSampler(Local(), num_replicas=world_size, rank=rank, shuffle=False)
    loader = DataLoader(Local(), batch_size=5, num_workers=workers, sampler=sampler)
    total, pids = 0, set()
    for values, readers in loader:
        total += int(values.sum())
        pids |= set(readers.tolist())
    return total, pids


def with_accelerate() -> dict[str, Any]:
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.arange(16.0).reshape(8, 2), torch.ones(8, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    batches = 0
    for features, target in loader:
        loss = torch.nn.functional.mse_loss(model(features / 16), target)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        batches += 1
    total = accelerator.reduce(torch.tensor([float(accelerator.process_index + 1)]), "sum")
    found = {
        "rank": accelerator.process_index,
        "processes": accelerator.num_processes,
        "kind": accelerator.distributed_type.value,
        "batches": batches,
        "sum": total.item(),
        "weight": accelerator.unwrap_model(model).weight.detach().clone(),
    }
    accelerator.end_training()
    return found


def with_lightning(devices: int, directory: str) -> dict[str, Any]:
    import lightning
    import torch

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch: Any, index: int) -> Any:
            (features,) = batch
            return self.layer(features).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    data = torch.utils.data.TensorDataset(torch.randn(16, 2))
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=devices,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=directory,
    )
    model = Model()
    trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=2))
    return {
        "rank": trainer.global_rank,
        "world_size": trainer.world_size,
        "launcher": type(trainer.strategy.launcher).__name__,
        "environment": type(trainer.strategy.cluster_environment).__name__,
        "batches": trainer.num_training_batches,
        "weight": model.layer.weight.detach().clone(),
    }


@pytest.mark.parametrize("nprocs", [2, 4])
def test_ddp_on_gloo(nprocs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.chdir(tmp_path)
    values = start_processes("ddp", ddp, (20,), nprocs=nprocs).result()
    assert all(torch.equal(value["weights"], values[0]["weights"]) for value in values)
    assert values[0]["losses"][-1] < values[0]["losses"][0]
    assert torch.equal(torch.load(tmp_path / "model.pt")["weight"], values[0]["weights"])


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_data_loader_with_workers(method: str) -> None:
    values = start_processes("load", load, (2,), nprocs=2, start_method=method).result()
    assert sum(total for total, _ in values) == sum(index * index for index in range(40))
    assert [len(pids) for _, pids in values] == [2, 2]
    assert not values[0][1] & values[1][1]


def test_accelerate_finds_the_ranks() -> None:
    import torch

    values = start_processes("accelerate", with_accelerate, nprocs=2).result()
    assert [value["rank"] for value in values] == [0, 1]
    assert [(value["processes"], value["kind"], value["batches"], value["sum"]) for value in values] == [
        (2, "MULTI_CPU", 2, 3.0)
    ] * 2
    assert torch.equal(values[0]["weight"], values[1]["weight"])


def test_lightning_takes_the_ranks_for_torchruns(tmp_path: Path) -> None:
    import torch

    values = start_processes(
        "lightning", with_lightning, (2, str(tmp_path)), nprocs=2, redirects=nbproc.Std.ALL
    ).result()
    assert [value["rank"] for value in values] == [0, 1]
    for value in values:
        assert value["world_size"] == 2
        assert value["environment"] == "TorchElasticEnvironment"
        assert value["batches"] == 4
    assert torch.equal(values[0]["weight"], values[1]["weight"])


def test_a_rank_that_fails_before_a_barrier_stops_the_others_and_comes_first() -> None:
    def waits_for_all() -> None:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        dist.barrier()
        if dist.get_rank() == 1:
            raise ValueError("bad batch 17")
        dist.barrier()

    context = start_processes("barrier", waits_for_all, nprocs=3, redirects=nbproc.Std.ALL)
    with pytest.raises(nbproc.SpawnError) as raised:
        context.result()
    assert str(raised.value).startswith("rank 1 failed first: ValueError: bad batch 17")
    assert context.snapshot().first_failed == 1
    failed = set(raised.value.failures)
    assert 1 in failed
    told = str(raised.value)
    for rank in {0, 2} - failed:
        assert "waits_for_all" in context.snapshot().ranks[rank].words, told
