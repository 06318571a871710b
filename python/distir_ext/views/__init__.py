"""Tables, HTML and figures of results, which are data themselves."""
