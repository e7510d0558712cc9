"""The Hugging Face Trainer as a learner, with its data under the run's ledger: two lines are Gruppetto's, marked.

    gruppetto syncer --listen 127.0.0.1:7171 --state /tmp/hf-trainer
    python examples/hf_trainer.py --name a

Without the first of them, and with the Trainer's own data set, it is one line; every learner then shuffles for itself.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import gruppetto.data
from gruppetto.attach.integrations.transformers import Callback

CONTEXT = 64


def main(arguments: list[str] | None = None) -> nn.Module:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--syncer", default="http://127.0.0.1:7171")
    parser.add_argument("--name", required=True)
    parser.add_argument("--out", default="/tmp/hf-trainer-model")
    args = parser.parse_args(arguments)

    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=CONTEXT,
    )
    text = np.frombuffer(Path(argparse.__file__).read_bytes(), np.uint8)
    windows = gruppetto.data.TokenWindows(text, context=CONTEXT)
    data = gruppetto.data.slots(windows)  # 1
    trainer = Trainer(
        LlamaForCausalLM(config),
        TrainingArguments(
            args.out,
            max_steps=100_000,  # the run ends it earlier
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            learning_rate=1e-3,
            logging_steps=50,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
        ),
        train_dataset=data,
        callbacks=[Callback(data=data, syncer=args.syncer, name=args.name)],  # 2
    )
    trainer.train()
    trainer.save_model()  # the run's weights, the same bits in every learner
    return trainer.model


if __name__ == "__main__":
    try:
        main()
    except gruppetto.GruppettoError as error:
        error.exit()  # in one line: what, where, and how to mend it
