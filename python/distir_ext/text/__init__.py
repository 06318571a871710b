"""Text: messages, tables, YAML, and what any name becomes in code, terminals and HTML.

Knows nothing of TVM's programs; results are shown by what ``views`` registers in ``display``.
"""
