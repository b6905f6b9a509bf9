"""What programs that measure bars share: figures and their table, running modules bar by bar, running commands."""
