"""The study: every kept loss, and the tables and pages that are drawn from them."""
