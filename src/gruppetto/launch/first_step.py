"""``python -m gruppetto.launch.first_step``: what a learner's process does until its first step, and some steps more.

Prints a line when the first step is done, then the median of the following ones in seconds.
"""

from __future__ import annotations

from statistics import median

from gruppetto.runtime.clock import MonotonicClock

__all__ = ["main"]

STEPS = 20


def main() -> None:
    import torch

    from gruppetto.train.inner import adamw
    from gruppetto.train.model import build
    from gruppetto.train.setting import TrainSetting
    from gruppetto.train.step import train_step

    setting = TrainSetting()
    torch.set_num_threads(setting.threads)
    model = build(setting.model, vocab_size=256)
    optimizer = adamw(model, setting.inner)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(256, (setting.batch_size, setting.context), generator=generator)
    clock, took = MonotonicClock(), []
    for step in range(STEPS + 1):
        began = clock.now()
        train_step(model, optimizer, (tokens, tokens), rate=1e-3, clip_norm=1.0)
        if step:
            took.append(clock.now() - began)
        else:
            print("first", flush=True)
    print(median(took), flush=True)


if __name__ == "__main__":
    main()
