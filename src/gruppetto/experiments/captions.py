"""Images with a line of text below: drawn shapes, what each shows in words, and a small decoder that reads on.

A window is 784 pixels, then the bytes of the caption, then zeros. The decoder is a Llama whose first sixteen positions
are patches of the image instead of bytes; it predicts the caption alone, up to its first zero, in nats a byte.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gruppetto.experiments.images import SIDE, Bytes, Shape, draw
from gruppetto.train.llama import IGNORED, CausalOutput, Llama, initial_std
from gruppetto.train.setting import ModelSetting

__all__ = ["CAPTION_BYTES", "CaptionDecoder", "caption", "captioned", "captions_right"]

CAPTION_BYTES = 30
PATCH = 7
GRID = SIDE // PATCH
KINDS = ("pole", "bar", "slash", "slope", "cross", "frame", "disc", "ring", "block", "chess")
"""In the order of :func:`gruppetto.experiments.images.draw`."""
MIDDLE, USUAL_SIZE, USUAL_INK = 14.0, 6.5, 170.0
"""Where one word ends and the other begins."""


def caption(shape: Shape) -> str:
    """What is seen, in words.

    >>> caption(Shape(kind=7, y=10.0, x=17.0, size=8.0, ink=120.0))
    'large dim ring, upper right'
    """
    size = "large" if shape.size > USUAL_SIZE else "small"
    ink = "clear" if shape.ink > USUAL_INK else "dim"
    place = ("lower" if shape.y > MIDDLE else "upper", "right" if shape.x > MIDDLE else "left")
    return f"{size} {ink} {KINDS[shape.kind]}, {' '.join(place)}"


def captioned(count: int, rng: np.random.Generator) -> Bytes:
    """So many windows, uint8 (count, 784 + CAPTION_BYTES)."""
    windows = np.zeros((count, SIDE * SIDE + CAPTION_BYTES), np.uint8)
    for window in windows:
        window[: SIDE * SIDE], shape = draw(rng)
        text = caption(shape).encode()
        window[SIDE * SIDE :][: len(text)] = np.frombuffer(text, np.uint8)
    return windows


class CaptionDecoder(nn.Module):
    """Called as ``model(windows, labels=windows)``, int64 (batch, 784 + CAPTION_BYTES).

    ``logits`` are (batch, CAPTION_BYTES, vocab): of each byte, from the image and the bytes before it.
    """

    def __init__(self, setting: ModelSetting, vocab_size: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(setting.seed)
        self.llama = Llama(setting, vocab_size, generator)
        # Drawn below, from the generator.
        with torch.device("meta"):
            self.patch_embed = nn.Linear(PATCH * PATCH, setting.dim, bias=False)
        self.patch_embed.to_empty(device="cpu")
        self.pos_embed = nn.Parameter(torch.empty(GRID * GRID, setting.dim))
        with torch.no_grad():
            for drawn in (self.patch_embed.weight, self.pos_embed):
                drawn.normal_(0.0, initial_std(setting), generator=generator)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> CausalOutput:
        pixels, text = input_ids[:, : SIDE * SIDE], input_ids[:, SIDE * SIDE :]
        trunk, first = self.llama.model, GRID * GRID
        image = (pixels.float() / 127.5 - 1.0).view(-1, GRID, PATCH, GRID, PATCH).transpose(2, 3)
        patches = self.patch_embed(image.reshape(-1, first, PATCH * PATCH)) + self.pos_embed
        # The last byte predicts nothing, and so is not read.
        x = torch.cat((patches, trunk.embed_tokens(text[:, :-1])), dim=1)
        cos, sin = self.llama.cos[: x.shape[1]], self.llama.sin[: x.shape[1]]
        for layer in trunk.layers:
            x = layer(x, cos, sin)
        logits: Tensor = self.llama.lm_head(trunk.norm(x[:, first - 1 :]))
        if labels is None:
            return CausalOutput(loss=None, logits=logits)
        asked = said(labels[:, -CAPTION_BYTES:])
        loss = F.cross_entropy(logits.flatten(0, 1), asked.flatten(), ignore_index=IGNORED)
        return CausalOutput(loss=loss, logits=logits)


def said(text: Tensor) -> Tensor:
    """The caption up to its first zero; nothing is asked of the zeros behind it."""
    over = F.pad((text == 0).cumsum(1)[:, :-1], (1, 0)) > 0
    return text.masked_fill(over, IGNORED)


@torch.no_grad()
def captions_right(model: nn.Module, windows: Tensor) -> float:
    """The share of captions of which every byte is the likeliest one, which is what a greedy reader would say."""
    asked = said(windows[:, -CAPTION_BYTES:])
    right = (model(windows).logits.argmax(-1) == asked) | (asked == IGNORED)
    return float(right.all(1).float().mean())
