"""Running cases, and inspecting runs with a debugger."""
