"""Following a warp through a kernel's KV steps, next to exact arithmetic."""
