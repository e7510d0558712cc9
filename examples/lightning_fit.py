"""A Lightning fit as a learner: besides the import, one line is Gruppetto's, marked.

gruppetto syncer --listen 127.0.0.1:7171 --state /tmp/lightning-fit
python examples/lightning_fit.py --name a
"""

from __future__ import annotations

import argparse

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from gruppetto import GruppettoError
from gruppetto.attach.integrations.lightning import Callback


class Circle(pl.LightningModule):
    """Which points of the square lie in the circle?"""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.BatchNorm1d(32), nn.Linear(32, 1))

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        points, inside = batch
        return nn.functional.binary_cross_entropy_with_logits(self.net(points), inside)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def main(arguments: list[str] | None = None) -> nn.Module:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--syncer", default="http://127.0.0.1:7171")
    parser.add_argument("--name", required=True)
    args = parser.parse_args(arguments)

    points = torch.rand(1024, 2) * 2 - 1
    inside = (points.norm(dim=1) < 0.8).float()[:, None]
    loader = DataLoader(TensorDataset(points, inside), batch_size=16, shuffle=True)
    module = Circle()
    trainer = pl.Trainer(
        max_epochs=-1,  # the run ends it
        accumulate_grad_batches=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[Callback(syncer=args.syncer, name=args.name)],  # 1
    )
    trainer.fit(module, loader)
    return module


if __name__ == "__main__":
    try:
        main()
    except GruppettoError as error:
        error.exit()  # in one line: what, where, and how to mend it
