"""The trained model as Hugging Face loads it: weights, configuration, tokenizer.

``AutoModelForCausalLM.from_pretrained(directory)`` gives the same logits and ``AutoTokenizer`` the same
numbers, with no line of this package.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import nn

from gruppetto.errors import StateError
from gruppetto.train.llama import NORM_EPS, initial_std
from gruppetto.train.setting import ModelSetting
from gruppetto.train.tokens import Tokenizer

__all__ = ["export", "fill"]


def export(model: nn.Module, setting: ModelSetting, tokenizer: Tokenizer, directory: Path) -> None:
    """Write ``directory``, which appears whole or not at all.

    Raises :class:`StateError` when something is there already or nothing can be written there.
    """
    if directory.exists() and not (directory.is_dir() and not any(directory.iterdir())):
        raise StateError("is there already", where=str(directory), fix="name a new directory for the model")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        making = Path(tempfile.mkdtemp(dir=directory.parent, prefix=".making-"))
    except OSError as error:
        raise StateError(
            f"cannot be written ({error.strerror})", where=str(directory), fix="check rights and space"
        ) from error
    try:
        if setting.architecture == "llama":
            _write_llama(model, setting, tokenizer, making)
        else:
            model.save_pretrained(making)  # type: ignore[operator]
        generation = {"eos_token_id": tokenizer.end_of_document, "do_sample": True, "temperature": 0.8}
        _write_json(making / "generation_config.json", generation)
        (making / "tokenizer.json").write_text(tokenizer.definition(), encoding="utf-8")
        _write_json(
            making / "tokenizer_config.json",
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "clean_up_tokenization_spaces": False,
                "model_max_length": setting.context,
            },
        )
        # Who may read it says the umask, also of what safetensors and a temporary directory keep to their owner.
        allowed = (making / "tokenizer.json").stat().st_mode & 0o777
        for path in making.iterdir():
            path.chmod(allowed)
        making.chmod(allowed | (allowed & 0o444) >> 2)
        making.replace(directory)
    except OSError as error:
        raise StateError(
            f"cannot be written ({error.strerror})", where=str(directory), fix="check rights and space"
        ) from error
    finally:
        shutil.rmtree(making, ignore_errors=True)


@torch.no_grad()
def fill(model: nn.Module, tensors: Mapping[str, NDArray[np.float32]]) -> None:
    """Put the global weights into the model. Raises :class:`StateError` if they are another one's."""
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    for name, parameter in trained.items():
        if name not in tensors:
            raise StateError(f"there is no {name}", where="weights", fix="take them of the same model")
        if tensors[name].shape != parameter.shape:
            raise StateError(
                f"{name} is {list(tensors[name].shape)}, and the model's {list(parameter.shape)}",
                where="weights",
                fix="take them of the same model",
            )
    if more := sorted(tensors.keys() - trained.keys()):
        raise StateError(f"{more[0]} is of no use", where="weights", fix="take them of the same model")
    for name, parameter in trained.items():
        parameter.copy_(torch.from_numpy(np.array(tensors[name], np.float32)))


def _write_llama(model: nn.Module, setting: ModelSetting, tokenizer: Tokenizer, directory: Path) -> None:
    # Parameters only, each once: a tied head is the embedding and is not written again.
    weights = {name: parameter.detach().contiguous() for name, parameter in model.named_parameters()}
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    _write_json(
        directory / "config.json",
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "dtype": "float32",
            "vocab_size": tokenizer.vocab_size,
            "hidden_size": setting.dim,
            "intermediate_size": setting.ffn_dim,
            "num_hidden_layers": setting.layers,
            "num_attention_heads": setting.heads,
            "num_key_value_heads": setting.num_kv_heads,
            "head_dim": setting.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": setting.context,
            "rms_norm_eps": NORM_EPS,
            "rope_theta": setting.rope_theta,
            "initializer_range": initial_std(setting),
            "tie_word_embeddings": setting.tie_embeddings,
            "attention_bias": False,
            "mlp_bias": False,
            "bos_token_id": None,
            "eos_token_id": tokenizer.end_of_document,
            "pad_token_id": None,
        },
    )


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
