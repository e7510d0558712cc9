"""A vision transformer (2010.11929) whose images come the way text does: a window is the pixels, then the label.

So slots, cursors, batches and evaluation are those of language models; the loss is in nats per image. Patches of 7 × 7
pixels of an image of 28 × 28, learned positions, pre-norm blocks that see all patches, and the mean of them decides.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gruppetto.train.llama import CausalOutput, initial_std
from gruppetto.train.setting import VIT_CLASSES, VIT_SIDE, ModelSetting

__all__ = ["VisionTransformer"]

PATCH = 7
GRID = VIT_SIDE // PATCH


class Block(nn.Module):
    """Attention among all patches, then a perceptron, each behind its norm and beside the residual stream."""

    def __init__(self, setting: ModelSetting) -> None:
        super().__init__()
        self.heads = setting.heads
        self.norm1 = nn.LayerNorm(setting.dim)
        self.qkv = nn.Linear(setting.dim, 3 * setting.dim, bias=False)
        self.o_proj = nn.Linear(setting.dim, setting.dim, bias=False)
        self.norm2 = nn.LayerNorm(setting.dim)
        self.up_proj = nn.Linear(setting.dim, setting.ffn_dim, bias=False)
        self.down_proj = nn.Linear(setting.ffn_dim, setting.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, patches, dim = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, patches, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.o_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, patches, dim))
        out: Tensor = x + self.down_proj(F.gelu(self.up_proj(self.norm2(x))))
        return out


class VisionTransformer(nn.Module):
    """Called as ``model(windows, labels=windows)``, int64 (batch, 28·28 + 1); the label is the last of a window.

    ``logits`` are (batch, 10).
    """

    def __init__(self, setting: ModelSetting, generator: torch.Generator) -> None:
        super().__init__()
        # Drawn below, from the generator.
        with torch.device("meta"):
            self.patch_embed = nn.Linear(PATCH * PATCH, setting.dim, bias=False)
            self.pos_embed = nn.Parameter(torch.empty(GRID * GRID, setting.dim))
            self.blocks = nn.ModuleList(Block(setting) for _ in range(setting.layers))
            self.norm = nn.LayerNorm(setting.dim)
            self.head = nn.Linear(setting.dim, VIT_CLASSES, bias=False)
        self.to_empty(device="cpu")
        self._draw_weights(initial_std(setting), generator, into_stream=2 * setting.layers)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> CausalOutput:
        assert input_ids.shape[1] == VIT_SIDE * VIT_SIDE + 1, "a window is an image and its label"
        pixels = input_ids[:, :-1].float() / 127.5 - 1.0
        patches = pixels.view(-1, GRID, PATCH, GRID, PATCH).transpose(2, 3).reshape(-1, GRID * GRID, PATCH * PATCH)
        x = self.patch_embed(patches) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x).mean(1))
        return CausalOutput(loss=None if labels is None else F.cross_entropy(logits, labels[:, -1]), logits=logits)

    @torch.no_grad()
    def _draw_weights(self, std: float, generator: torch.Generator, *, into_stream: int) -> None:
        for name, parameter in self.named_parameters():
            if parameter.ndim == 1:
                parameter.fill_(1.0 if name.endswith("weight") else 0.0)
                continue
            shared = name.endswith(("o_proj.weight", "down_proj.weight"))
            parameter.normal_(0.0, std / math.sqrt(into_stream) if shared else std, generator=generator)
