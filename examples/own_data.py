"""A loop in the manner of nanoGPT on its own token file, under the run's ledger: four lines, marked, and the imports.

    gruppetto syncer --listen 127.0.0.1:7171 --state /tmp/own-data
    python examples/own_data.py --name a

Started again it goes on with the first batch that nobody has merged; another learner never sees the same.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import gruppetto
import gruppetto.data

CONTEXT, BATCH, WIDTH = 64, 4, 64
TOKENS = 2 * BATCH * CONTEXT
"""Of a step, which has two batches."""


class GPT(nn.Module):
    """Two causal blocks over bytes; the labels are shifted in here."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        block = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        nn.init.normal_(self.wte.weight, std=0.02)
        self.mask = nn.Buffer(nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        hidden = self.blocks(self.wte(input_ids) + self.wpe.weight, mask=self.mask, is_causal=True)
        logits = hidden[:, :-1] @ self.wte.weight.T
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())


def token_file(place: Path) -> Path:
    """As nanoGPT's ``prepare.py`` leaves it: numbers of 16 bits and nothing else."""
    if not place.exists():
        np.frombuffer(Path(argparse.__file__).read_bytes(), np.uint8).astype(np.uint16).tofile(place)
    return place


def main(arguments: list[str] | None = None) -> nn.Module:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--syncer", default="http://127.0.0.1:7171")
    parser.add_argument("--name", required=True)
    parser.add_argument("--tokens", type=Path, default=Path("train.bin"))
    args = parser.parse_args(arguments)

    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    windows = gruppetto.data.TokenWindows(token_file(args.tokens), context=CONTEXT)
    data = gruppetto.data.slots(windows)  # 1
    learner = gruppetto.Learner(model, optimizer, syncer=args.syncer, name=args.name, tokens_per_step=TOKENS)  # 2
    with learner:  # 3
        batches = learner.until_finished(data.of(learner, batch_size=BATCH))  # 4
        for step, pair in enumerate(zip(batches, batches, strict=False)):
            with torch.autocast("cpu", torch.bfloat16):
                losses = [model(**batch) for batch in pair]
            (sum(losses) / len(losses)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if step % 50 == 0:
                print(f"step {step:5d}  round {learner.round:5d}  loss {losses[0].item():.3f}", flush=True)
    return model


if __name__ == "__main__":
    try:
        main()
    except gruppetto.GruppettoError as error:
        error.exit()  # in one line: what, where, and how to mend it
