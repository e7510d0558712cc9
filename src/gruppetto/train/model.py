"""From a setting to a freshly initialised model.

Ours or one of transformers', every model is called as ``model(input_ids, labels=labels)`` and answers with
``.loss`` and ``.logits``; see :class:`gruppetto.train.llama.Llama` for what they mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gruppetto.errors import SettingError
from gruppetto.home import at_home
from gruppetto.train.llama import Llama
from gruppetto.train.setting import PRESETS, ModelSetting, preset
from gruppetto.train.vit import VisionTransformer

if TYPE_CHECKING:
    from torch import nn

__all__ = ["PRESETS", "ModelSetting", "build", "device_of", "num_parameters", "preset"]


def build(setting: ModelSetting, vocab_size: int) -> nn.Module:
    """A model with random weights, the same for the same setting and vocabulary on every machine.

    The global random generators are neither read nor moved. Raises :class:`SettingError` for a model that
    transformers does not know or cannot build.

    >>> model = build(PRESETS["tiny"], vocab_size=256)
    >>> num_parameters(model)
    217664
    """
    if vocab_size < 1:
        raise SettingError(f"is {vocab_size}", where="tokenizer.vocab_size", fix="use 1 or more")
    generator = torch.Generator().manual_seed(setting.seed)
    if setting.architecture == "llama":
        return Llama(setting, vocab_size, generator)
    if setting.architecture == "vit":
        return VisionTransformer(setting, generator)
    return _from_transformers(setting, vocab_size, generator)


def num_parameters(model: nn.Module) -> int:
    """Learned numbers in the model; a tied head counts once."""
    return sum(parameter.numel() for parameter in model.parameters())


def device_of(model: nn.Module) -> torch.device:
    """Where the model lives, and its batches have to go."""
    return next(model.parameters()).device


def _from_transformers(setting: ModelSetting, vocab_size: int, generator: torch.Generator) -> nn.Module:
    # Seconds and a hundred megabytes: only for those who ask.
    from transformers import AutoModelForCausalLM

    name = setting.architecture.removeprefix("hf:")
    try:
        config = _config(name, setting)
        config.vocab_size = vocab_size
        config.use_cache = False
        if hasattr(config, "router_aux_loss_coef"):
            # Experts are kept in use by a loss of each learner's own; without it a few of them take all tokens.
            config.output_router_logits = True
        for key, value in vars(config).items():
            # Dropout draws from the global generator, and nobody pre-trains on one pass of data with it.
            if isinstance(value, float) and ("dropout" in key or key.endswith("pdrop")):
                setattr(config, key, 0.0)
        # Transformers draws from the global generator: lend it our state and take it back.
        with torch.random.fork_rng(devices=[]):
            torch.random.set_rng_state(generator.get_state())
            model: nn.Module = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        # Sizes that do not fit each other may only show when tokens run through.
        with torch.no_grad():
            model(torch.zeros(1, 2, dtype=torch.int64))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise SettingError(
            f"transformers cannot build {name!r} ({_first_line(error)})",
            where="model.architecture",
            fix="name a model type such as qwen3, a directory with config.json, or a hub model you can reach",
        ) from error
    longest = getattr(config, "max_position_embeddings", setting.context)
    if isinstance(longest, int) and longest < setting.context:
        raise SettingError(
            f"is {setting.context}, but {name} reaches {longest}",
            where="model.context",
            fix=f"use {longest} or less",
        )
    return model.train()


def _config(name: str, setting: ModelSetting) -> Any:
    """The configuration stored under ``name``, or that of a model type cut to the setting's sizes."""
    from transformers import CONFIG_MAPPING, AutoConfig

    if at_home(name).exists() or "/" in name:
        return AutoConfig.from_pretrained(str(at_home(name)))
    if name not in CONFIG_MAPPING:
        raise ValueError("it is neither a model type, nor a directory, nor a hub name OWNER/NAME")
    known = CONFIG_MAPPING[name]()
    sizes = {
        "hidden_size": setting.dim,
        "intermediate_size": setting.ffn_dim,
        "moe_intermediate_size": setting.ffn_dim,
        "num_hidden_layers": setting.layers,
        "num_attention_heads": setting.heads,
        "num_key_value_heads": setting.num_kv_heads,
        "head_dim": setting.head_dim,
        "max_position_embeddings": setting.context,
        "tie_word_embeddings": setting.tie_embeddings,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    return CONFIG_MAPPING[name](**{key: value for key, value in sizes.items() if hasattr(known, key)})


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
