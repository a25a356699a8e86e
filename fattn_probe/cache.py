"""Where fattn-probe keeps what it downloaded and built."""

import os
from pathlib import Path

import platformdirs


def cache_dir() -> Path:
    """The cache folder: $FATTN_PROBE_CACHE, or the platform's own place for caches."""
    override = os.environ.get("FATTN_PROBE_CACHE")
    return Path(override) if override else platformdirs.user_cache_path("fattn-probe")
