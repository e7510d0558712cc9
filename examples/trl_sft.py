"""Fine-tuning a model on disk with TRL, whole or by LoRA, as a learner: one line is Gruppetto's, marked.

    gruppetto syncer --listen 127.0.0.1:7171 --state /tmp/trl-sft
    python examples/trl_sft.py --name a --lora

The model is a tiny one that the example makes itself; pass ``--model`` for your own. With LoRA only the adapters
travel: all learners have to begin with the same model on disk.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from gruppetto import GruppettoError
from gruppetto.attach.integrations.transformers import Callback


def tiny_model(place: Path) -> Path:
    """A byte-level Llama without any training, the same in every process."""
    if (place / "config.json").exists():
        return place
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    plain.pre_tokenizer, plain.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="<eos>", pad_token="<eos>").save_pretrained(place)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=len(letters) + 1, num_key_value_heads=4, **sizes)
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(place)
    return place


def main(arguments: list[str] | None = None) -> nn.Module:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--syncer", default="http://127.0.0.1:7171")
    parser.add_argument("--name", required=True)
    parser.add_argument("--model", type=Path, default=Path("/tmp/gruppetto-tiny-model"))
    parser.add_argument("--out", default="/tmp/trl-sft-model")
    parser.add_argument("--lora", action="store_true")
    args = parser.parse_args(arguments)

    sums = [{"prompt": f"{a}+{b}=", "completion": str(a + b)} for a in range(32) for b in range(32)]
    trainer = SFTTrainer(
        str(tiny_model(args.model)),
        SFTConfig(
            args.out,
            max_steps=100_000,  # the run ends it earlier
            per_device_train_batch_size=8,
            learning_rate=1e-3,
            logging_steps=50,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            bf16=False,
        ),
        train_dataset=Dataset.from_list(sums),
        peft_config=LoraConfig(r=4, target_modules=["q_proj", "v_proj"]) if args.lora else None,
        callbacks=[Callback(syncer=args.syncer, name=args.name)],  # 1
    )
    trainer.train()
    trainer.save_model()
    return trainer.model


if __name__ == "__main__":
    try:
        main()
    except GruppettoError as error:
        error.exit()  # in one line: what, where, and how to mend it
