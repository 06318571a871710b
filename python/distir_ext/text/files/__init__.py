"""Files from elsewhere.

Each is opened, read and checked as data; errors name the file.
"""
