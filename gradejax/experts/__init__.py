"""Who the experts are, and what they said."""
