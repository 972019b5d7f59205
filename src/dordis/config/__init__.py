"""The configuration: schema, reading, presets."""
