"""Text for terminals and pages: tables, the frame of HTML pages, folded lists."""
