"""Hashes, against published test vectors (FIPS 180-4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from headscope.digest import sha256_of, sha256_of_file

VECTORS = {
    b"": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    b"abc": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
}


@pytest.mark.parametrize("data", VECTORS)
def test_bytes_text_and_files_are_hashed_alike(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(data)
    assert sha256_of(data) == sha256_of(data.decode()) == sha256_of_file(path) == VECTORS[data]
