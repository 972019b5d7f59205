"""A run: plan, coordinator, retries, and the parties that take part."""
