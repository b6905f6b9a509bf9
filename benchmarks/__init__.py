"""Programs that measure; each prints its figures with the machine they were taken on, as text, JSON or a picture."""
