"""Models of other frameworks, imported by TVM's frontends, with plans to shard their weights."""
