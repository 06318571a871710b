"""Tables, HTML, pages and figures of results, which are data themselves.

``results`` is the one place that attaches them; a drawing or a group of tables is a file.
"""
