"""A plain training loop as one learner of a decoupled run: three lines are Gruppetto's, marked.

    gruppetto syncer --listen 127.0.0.1:7171 --state /tmp/plain-loop      # once
    python examples/plain_loop.py --name a                                # as many as you like, whenever you like
    python examples/plain_loop.py --name b

Stop any of them, or the syncer, and start it again: the others train on.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

import gruppetto

CONTEXT, BATCH, WIDTH = 64, 8, 64


class TinyGPT(nn.Module):  # two causal blocks over bytes
    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(256, WIDTH)
        self.wpe = nn.Embedding(CONTEXT, WIDTH)
        block = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        nn.init.normal_(self.wte.weight, std=0.02)
        self.mask = nn.Buffer(nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        hidden = self.wte(ids) + self.wpe.weight
        logits = self.blocks(hidden, mask=self.mask, is_causal=True) @ self.wte.weight.T
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def batches(text: Tensor, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Random windows of the text, for ever."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(text) - CONTEXT, (BATCH, 1), generator=generator)
        windows = text[starts + torch.arange(CONTEXT + 1)]
        yield windows[:, :-1], windows[:, 1:]


def main(arguments: list[str] | None = None) -> nn.Module:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--syncer", default="http://127.0.0.1:7171")
    parser.add_argument("--token", help="the syncer's token, if it wants one")
    parser.add_argument("--name", required=True)
    parser.add_argument("--steps", type=int, default=1000)
    args = parser.parse_args(arguments)

    torch.set_num_threads(1)
    text = torch.frombuffer(bytearray(Path(argparse.__file__).read_bytes()), dtype=torch.uint8).long()
    model = TinyGPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    learner = gruppetto.Learner(
        model, optimizer, syncer=args.syncer, token=args.token, name=args.name, tokens_per_step=BATCH * CONTEXT
    )  # 1
    with learner:  # 2
        loop = zip(range(args.steps), batches(text, seed=learner.slot), strict=False)
        for step, (ids, targets) in learner.until_finished(loop):  # 3
            loss = model(ids, targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if step % 50 == 0:
                print(f"step {step:5d}  round {learner.round:5d}  loss {loss.item():.3f}", flush=True)
    return model


if __name__ == "__main__":
    try:
        main()
    except gruppetto.GruppettoError as error:
        error.exit()  # in one line: what, where, and how to mend it
