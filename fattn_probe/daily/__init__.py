"""What people type every day."""
