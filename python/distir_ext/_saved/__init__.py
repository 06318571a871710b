"""Programs in directories."""
