"""Follow a warp through a kernel's KV steps, and compare its values with exact arithmetic."""
