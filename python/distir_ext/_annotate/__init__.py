"""Behind annotations: where a function can be annotated; what other frameworks call it."""
