"""Errors of heads from sums, against z and y of all tokens laid end to end."""

import numpy as np
import pytest
import torch

from headscope.attention import attention_pattern
from headscope.measures.linear.feature_maps import linear_attention
from headscope.measures.linear.sentence_sums import EVERY, LinearSums

SCALE, D, HEADS = 0.4, 3, 2
LENGTHS = (5, 3, 6, 4)


def measured() -> tuple[LinearSums, dict[str, np.ndarray], np.ndarray]:
    """Sums of two batches with padding; every form's output and z at real tokens, (t, h, d)."""
    generator = torch.Generator().manual_seed(2)
    sums, z_of, y_of = LinearSums(len(LENGTHS)), [], {form: [] for form in EVERY}
    for first, lengths in ((0, LENGTHS[:2]), (2, LENGTHS[2:])):
        n = max(lengths)
        q, k, v = torch.randn(3, 2, HEADS, n, D, generator=generator, dtype=torch.float64)
        real = torch.arange(n)[None] < torch.tensor(lengths)[:, None]
        mask = real[:, None, None]
        z = attention_pattern(q, k, scale=SCALE, mask=mask) @ v
        sums.update(5, first, real, q, k, v, z, scale=SCALE, mask=mask)
        for form in EVERY:
            y = linear_attention(form, q, k, v, scale=SCALE, mask=mask)
            y_of[form] += [y[b, :, :length].transpose(0, 1) for b, length in enumerate(lengths)]
        z_of += [z[b, :, :length].transpose(0, 1) for b, length in enumerate(lengths)]
    return sums, {f: torch.cat(y).numpy() for f, y in y_of.items()}, torch.cat(z_of).numpy()


def test_errors_are_those_of_all_tokens():
    sums, outputs, z = measured()
    found = sums.by_row[5].errors(sums.tokens, np.ones((1, len(LENGTHS))))
    scales = sums.by_row[5].scales()
    assert sums.tokens.tolist() == list(LENGTHS)
    for h in range(HEADS):
        own = z[:, h]
        spread = np.linalg.norm(own - own.mean(0))
        for i, form in enumerate(EVERY):
            y = outputs[form][:, h]
            assert found["error"][0, h, i] == pytest.approx(np.linalg.norm(y - own) / spread)
            c = np.linalg.lstsq(y.reshape(-1, 1), own.ravel(), rcond=None)[0][0]
            assert scales[h, i] == pytest.approx(c)
            assert found["scaled"][0, h, i] == pytest.approx(np.linalg.norm(c * y - own) / spread)
            # A scale, and an offset for each dimension: one design for all of them.
            design = np.column_stack([y.ravel(), np.tile(np.eye(D), (len(y), 1))])
            left = own.ravel() - design @ np.linalg.lstsq(design, own.ravel(), rcond=None)[0]
            assert found["fitted"][0, h, i] == pytest.approx(np.linalg.norm(left) / spread)
            assert found["fitted"][0, h, i] <= min(1.0, found["scaled"][0, h, i]) + 1e-9


def test_a_resample_is_the_text_with_its_sentences_repeated():
    """With the fits of the whole text: z - m and c y + b - z, sentences counted as drawn."""
    sums, outputs, z = measured()
    counts = np.array([[2.0, 0.0, 1.0, 1.0]])
    found = sums.by_row[5].errors(sums.tokens, counts)
    weight = np.repeat(counts[0], LENGTHS)[:, None]
    i = EVERY.index("linear")
    for h in range(HEADS):
        own, y = z[:, h], outputs["linear"][:, h]
        c = (y * own).sum() / (y * y).sum()
        error = (weight * (c * y - own) ** 2).sum() / (weight * (own - own.mean(0)) ** 2).sum()
        assert found["scaled"][0, h, i] == pytest.approx(np.sqrt(error))


def test_a_head_that_never_changes_has_no_error_and_one_that_sees_all_the_whole_entropy():
    sums = LinearSums(1)
    q, k, varied = torch.randn(3, 1, 1, 4, D, generator=torch.Generator().manual_seed(0))
    v = torch.ones(1, 1, 4, D)
    real = torch.ones(1, 4, dtype=torch.bool)
    sums.update(0, 0, real, q, k, v, v, scale=SCALE, mask=None)
    found = sums.by_row[0].errors(sums.tokens, np.ones((1, 1)))
    assert all(np.isnan(values).all() for values in found.values())
    sums, causal = LinearSums(1), torch.ones(4, 4, dtype=torch.bool).tril()
    sums.update(0, 0, real, 0 * q, 0 * k, varied, varied, scale=SCALE, mask=causal)
    assert sums.by_row[0].entropy[0, 0] == pytest.approx(1.0)  # a share of what can be seen
