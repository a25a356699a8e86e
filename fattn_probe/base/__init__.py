"""What knows nothing of attention."""
