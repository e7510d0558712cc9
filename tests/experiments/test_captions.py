"""Captions say what is drawn, and the decoder is asked for them alone."""

from __future__ import annotations

import numpy as np
import torch

from gruppetto.experiments.captions import CAPTION_BYTES, CaptionDecoder, caption, captioned, captions_right
from gruppetto.experiments.images import SIDE, draw
from gruppetto.experiments.models import MODELS

PIXELS = SIDE * SIDE


def test_a_window_is_an_image_and_its_caption() -> None:
    windows, rng = captioned(40, np.random.default_rng(3)), np.random.default_rng(3)
    for window in windows:
        pixels, shape = draw(rng)
        assert np.array_equal(window[:PIXELS], pixels)
        assert bytes(window[PIXELS:]).rstrip(b"\0").decode() == caption(shape)
    assert windows.shape == (40, PIXELS + CAPTION_BYTES)


def test_the_loss_is_that_of_the_caption_alone_and_the_image_is_seen() -> None:
    model = CaptionDecoder(MODELS["captioner"], 256)
    windows = torch.from_numpy(captioned(3, np.random.default_rng(4)).astype(np.int64))
    found = model(windows, labels=windows)
    log_odds = found.logits.log_softmax(-1)
    asked = []
    for row, window in zip(log_odds, windows[:, PIXELS:], strict=True):
        length = min(CAPTION_BYTES, int((window != 0).sum()) + 1)
        asked += [row[i, window[i]] for i in range(length)]
    torch.testing.assert_close(found.loss, -torch.stack(asked).mean())
    # A byte is not seen before it is said; the image is seen by all of them.
    changed = windows.clone()
    changed[:, PIXELS + 9] = ord("z")
    torch.testing.assert_close(model(changed).logits[:, :10], found.logits[:, :10])
    assert not torch.equal(model(changed).logits[:, 10], found.logits[:, 10])
    changed = windows.clone()
    changed[:, :PIXELS] = 255 - changed[:, :PIXELS]
    assert not torch.isclose(model(changed).logits[:, 0], found.logits[:, 0]).all()


def test_a_caption_is_right_if_all_of_it_is() -> None:
    windows = torch.from_numpy(captioned(2, np.random.default_rng(5)).astype(np.int64))

    class Knows(torch.nn.Module):
        def forward(self, asked: torch.Tensor) -> object:
            logits = torch.nn.functional.one_hot(windows[:, PIXELS:], 256).float()
            logits[1, 4] = logits[1, 4].roll(1)  # the second one is wrong in one byte
            return type("Output", (), {"logits": logits})

    assert captions_right(Knows(), windows) == 0.5
