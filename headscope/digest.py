"""SHA-256 of files and of bytes: by these two functions and no others."""

from __future__ import annotations

import hashlib
from pathlib import Path


def sha256_of(data: str | bytes) -> str:
    """Return the SHA-256 of bytes, or of a text's UTF-8 bytes, in hexadecimal."""
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()


def sha256_of_file(path: Path) -> str:
    """Return the SHA-256 of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
