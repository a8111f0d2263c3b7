import torch

from headscope.core import widest
from headscope.core.widest import exact, widest_type
from headscope.core.widest import widest as widened


def test_float64_where_there_is_one():
    x = torch.tensor([1, 2], dtype=torch.bfloat16)
    assert widened(x).dtype == exact(x).dtype == torch.float64
    assert widened(x > 1).tolist() == [0.0, 1.0]
    assert (widest_type("cpu"), widest_type("cuda:1")) == (torch.float64, torch.float64)


def test_without_float64(monkeypatch):
    assert widest_type("mps") == torch.float32
    monkeypatch.setattr(widest, "WITHOUT_FLOAT64", {"cpu"})
    x = torch.tensor([1, 2], dtype=torch.float16)
    assert widened(x).dtype == torch.float32
    assert exact(x).dtype == torch.float64
    assert exact(x).device.type == "cpu"
