"""The reference trainer: a learner worth running, and the rivals to measure it against.

Read in this order::

    setting     every dial of this room, without importing torch
    corpus      where text comes from, and which part of it is never trained on (hub: from Hugging Face; unpacked: from
                an archive, whose members archive and packing read and globs matches; packages: those of registries)
    manifest    what exactly was in it
    tokens      text to numbers, kept on disk (cache: never half-written)
    data        corpus and tokens made ready from one setting
    order       which windows a slot trains on: a pure function of (seed, slot, index)
    batches     windows as tensors, with a cursor
    llama       the model, in the shape and with the names of a Hugging Face Llama
    model       a setting in, a freshly initialised model out
    inner       AdamW and the learning rate of a round
    step        one training step, the same in every mode
    evaluate    the held-out loss, and a sample of text
    log         what a training process writes down
    rivals      what decoupled training is measured against: single, data parallel, synchronous DiLoCo
    baseline    a rival as a run of real processes (rank: one of them)
    export      the trained model as Hugging Face loads it

Importing this package imports nothing else: torch takes seconds, transformers takes more.
"""

from __future__ import annotations
