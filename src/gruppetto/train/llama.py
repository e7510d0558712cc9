"""A Llama in one sitting: the parameter names and the mathematics of Hugging Face's ``LlamaForCausalLM``.

Because names and mathematics agree, exporting is a matter of writing two files, and whoever loads them needs
none of this code. Written by hand because importing the original takes longer than a demo's patience.

    x ← embed(ids)
    x ← x + attention(norm(x));  x ← x + swiglu(norm(x))      for every block
    logits ← head(norm(x))

Sources: RMSNorm 1910.07467, RoPE 2104.09864, SwiGLU 2002.05202, grouped-query attention 2305.13245, Llama
2302.13971.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gruppetto.train.setting import ModelSetting

__all__ = ["CausalOutput", "Llama", "initial_std"]

NORM_EPS = 1e-6
IGNORED = -100
"""The label of a position that has nothing to predict, as everywhere in torch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CausalOutput:
    """``logits`` (batch, time, vocab); ``loss`` in nats per predicted token, None without labels."""

    loss: Tensor | None
    logits: Tensor


def initial_std(setting: ModelSetting) -> float:
    """The spread of first weights, 1/(2·√dim): 0.02 at dim 625, where the usual constant comes from.

    That constant starts small models so close to zero that they lose a hundred steps getting away from it.
    """
    return 0.5 / math.sqrt(setting.dim)


def rotary_table(context: int, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary angles, each (context, head_dim), the two halves of a head alike."""
    frequency = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angle = torch.outer(torch.arange(context, dtype=torch.float32), frequency)
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (x_i, x_{i + head_dim/2}) by its position's angle; x (batch, heads, time, head_dim)."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Attention(nn.Module):
    """Causal self-attention with rotary positions; ``num_kv_heads`` key heads serve ``heads`` of queries."""

    def __init__(self, setting: ModelSetting) -> None:
        super().__init__()
        self.head_dim = setting.head_dim
        self.grouped = setting.num_kv_heads != setting.heads
        kv_dim = setting.num_kv_heads * setting.head_dim
        self.q_proj = nn.Linear(setting.dim, setting.dim, bias=False)
        self.k_proj = nn.Linear(setting.dim, kv_dim, bias=False)
        self.v_proj = nn.Linear(setting.dim, kv_dim, bias=False)
        self.o_proj = nn.Linear(setting.dim, setting.dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, time, _ = x.shape
        q, k, v = (
            project(x).view(batch, time, -1, self.head_dim).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.grouped)
        out: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, time, -1))
        return out


class SwiGLU(nn.Module):
    """down(silu(gate(x)) · up(x))."""

    def __init__(self, setting: ModelSetting) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(setting.dim, setting.ffn_dim, bias=False)
        self.up_proj = nn.Linear(setting.dim, setting.ffn_dim, bias=False)
        self.down_proj = nn.Linear(setting.ffn_dim, setting.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Block(nn.Module):
    """One layer: attention, then SwiGLU, each behind its norm and beside the residual stream."""

    def __init__(self, setting: ModelSetting) -> None:
        super().__init__()
        self.self_attn = Attention(setting)
        self.mlp = SwiGLU(setting)
        self.input_layernorm = nn.RMSNorm(setting.dim, eps=NORM_EPS)
        self.post_attention_layernorm = nn.RMSNorm(setting.dim, eps=NORM_EPS)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Trunk(nn.Module):
    """All but the head."""

    def __init__(self, setting: ModelSetting, vocab_size: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab_size, setting.dim)
        self.layers = nn.ModuleList(Block(setting) for _ in range(setting.layers))
        self.norm = nn.RMSNorm(setting.dim, eps=NORM_EPS)

    def forward(self, input_ids: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x, cos, sin)
        out: Tensor = self.norm(x)
        return out


class Llama(nn.Module):
    """A causal language model, called as ``model(input_ids, labels=labels)`` like those of transformers.

    ``input_ids`` and ``labels`` are int64 (batch, time) and aligned: the shift by one happens in here, so
    that ``labels`` is usually ``input_ids`` itself and time − 1 tokens of each row are predicted.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, setting: ModelSetting, vocab_size: int, generator: torch.Generator) -> None:
        super().__init__()
        # Weights are drawn below, from the generator: the default draw would move the global one.
        with torch.device("meta"):
            self.model = Trunk(setting, vocab_size)
            self.lm_head = nn.Linear(setting.dim, vocab_size, bias=False)
        self.to_empty(device="cpu")
        if setting.tie_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        # Computed, not learned: no part of the state.
        cos, sin = rotary_table(setting.context, setting.head_dim, setting.rope_theta)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self._draw_weights(initial_std(setting), generator, into_stream=2 * setting.layers)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> CausalOutput:
        time = input_ids.shape[1]
        assert time <= len(self.cos), f"{time} tokens do not fit the context of {len(self.cos)}"
        logits = self.lm_head(self.model(input_ids, self.cos[:time], self.sin[:time]))
        if labels is None:
            return CausalOutput(loss=None, logits=logits)
        # Shifting the labels rather than the logits leaves the large tensor where it is.
        following = F.pad(labels[:, 1:], (0, 1), value=IGNORED)
        loss = F.cross_entropy(logits.flatten(0, 1), following.flatten(), ignore_index=IGNORED)
        return CausalOutput(loss=loss, logits=logits)

    @torch.no_grad()
    def _draw_weights(self, std: float, generator: torch.Generator, *, into_stream: int) -> None:
        """Gains of one and normal matrices; the ``into_stream`` that add to the residual stream share its variance."""
        for name, parameter in self.named_parameters():
            if parameter.ndim == 1:
                parameter.fill_(1.0)
                continue
            shared = name.endswith(("o_proj.weight", "down_proj.weight"))
            parameter.normal_(0.0, std / math.sqrt(into_stream) if shared else std, generator=generator)
