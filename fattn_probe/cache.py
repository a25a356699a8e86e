"""The folder for downloads and builds."""

import os
from pathlib import Path

import platformdirs

from fattn_probe.errors import MachineError
from fattn_probe.files import is_folder

VARIABLE = "FATTN_PROBE_CACHE"


def cache_dir() -> Path:
    """The cache folder: $FATTN_PROBE_CACHE, or the platform's own place for caches; MachineError if it is a file."""
    override = os.environ.get(VARIABLE)
    folder = Path(override) if override else platformdirs.user_cache_path("fattn-probe")
    if os.path.lexists(folder) and not is_folder(folder):
        raise MachineError(f"{folder}: the cache must be a folder, and this is a file; set {VARIABLE} to another place")
    return folder
