"""Drawing: one file per picture. What is drawn comes as data; nothing here computes it."""
