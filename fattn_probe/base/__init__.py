"""Code that does not depend on attention: files, programs, the cache, the terminal."""
