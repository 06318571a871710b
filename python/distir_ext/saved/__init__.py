"""Programs and states of sessions in directories: ``dx.save`` and ``dx.load``.

What is read may come from elsewhere, and is checked.
"""
