"""Follow a warp through a kernel's KV steps, and compare it with exact arithmetic."""
