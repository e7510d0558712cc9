"""A small vision transformer on pictures that it draws itself: three lines are Gruppetto's, marked.

    gruppetto syncer --listen 127.0.0.1:7171 --state /tmp/vit
    python examples/vit.py --name a

What a contribution weighs is its "tokens": here, its pictures.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import torch
from torch import Tensor, nn

import gruppetto

SIZE, PATCH, WIDTH, BATCH, CLASSES = 16, 4, 32, 32, 4


class ViT(nn.Module):
    """Patches, two blocks, the mean of what comes out."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, WIDTH, PATCH, PATCH)
        self.places = nn.Parameter(0.02 * torch.randn(1, (SIZE // PATCH) ** 2, WIDTH))
        block = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, pictures: Tensor) -> Tensor:
        hidden = self.patches(pictures).flatten(2).transpose(1, 2) + self.places
        return self.head(self.blocks(hidden).mean(1))


def draw(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Noise with a bright spot; its class is the quarter in which the spot lies."""
    labels = torch.randint(CLASSES, (BATCH,), generator=generator)
    spot = torch.randint(SIZE // 2, (2, BATCH), generator=generator)
    pictures = 0.3 * torch.randn(BATCH, 1, SIZE, SIZE, generator=generator)
    pictures[torch.arange(BATCH), 0, spot[0] + SIZE // 2 * (labels // 2), spot[1] + SIZE // 2 * (labels % 2)] = 3.0
    return pictures, labels


def batches(seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """For ever."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield draw(generator)


def main(arguments: list[str] | None = None) -> nn.Module:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--syncer", default="http://127.0.0.1:7171")
    parser.add_argument("--name", required=True)
    args = parser.parse_args(arguments)

    model = ViT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    learner = gruppetto.Learner(model, optimizer, syncer=args.syncer, name=args.name, tokens_per_step=BATCH)  # 1
    with learner:  # 2
        for step, (pictures, labels) in enumerate(learner.until_finished(batches(seed=learner.slot))):  # 3
            logits = model(pictures)
            nn.functional.cross_entropy(logits, labels).backward()
            optimizer.step()
            optimizer.zero_grad()
            if step % 50 == 0:
                right = (logits.argmax(1) == labels).float().mean()
                print(f"step {step:5d}  round {learner.round:5d}  right {right:.0%}", flush=True)
    return model


if __name__ == "__main__":
    try:
        main()
    except gruppetto.GruppettoError as error:
        error.exit()  # in one line: what, where, and how to mend it
