"""What an agent sees of its workers' life, and what it finds when they hang."""
