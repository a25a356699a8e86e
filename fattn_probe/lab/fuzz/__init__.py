"""Random scenarios: drawn, judged, shrunk to the smallest that fails, and collected by their launches."""
