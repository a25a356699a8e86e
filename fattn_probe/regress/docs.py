"""docs/suite.schema.json, from the schema: `python -m fattn_probe.regress.docs docs`."""

import sys
from pathlib import Path

from fattn_probe.regress.suite import Suite
from fattn_probe.scenario.docs import schema_json

if __name__ == "__main__":
    (Path(sys.argv[1]) / "suite.schema.json").write_text(schema_json(Suite), encoding="utf-8")
